//! Tests of whole connections: a client that writes frames by hand.

mod client;
mod flow;
mod limits;
mod peer;
mod property;
mod rules;

/// Bytes from hexadecimal digits.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

pub(crate) use client::{frame_bytes, frames};
