//! Protobuf's wire format, as much of it as raftpb has: varints and length-delimited fields, read without copying.

use super::WireError;
use bytes::{Buf, Bytes};

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED_32: u64 = 5;

/// A field's value.
#[derive(Debug)]
pub(super) enum Value {
    Number(u64),
    Bytes(Bytes),
    /// 32 or 64 bits, which no field of raftpb has.
    Fixed,
}

impl Value {
    pub fn number(self, field: &'static str) -> Result<u64, WireError> {
        match self {
            Value::Number(number) => Ok(number),
            _ => Err(WireError::FieldType(field)),
        }
    }

    pub fn bytes(self, field: &'static str) -> Result<Bytes, WireError> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(WireError::FieldType(field)),
        }
    }

    /// One number of a repeated field, or all of them if they are packed. At most `max` in `list`.
    pub fn numbers(self, field: &'static str, list: &mut Vec<u64>, max: usize) -> Result<(), WireError> {
        let mut packed = match self {
            Value::Number(number) => {
                list.push(number);
                Bytes::new()
            }
            Value::Bytes(packed) => packed,
            Value::Fixed => return Err(WireError::FieldType(field)),
        };
        while !packed.is_empty() && list.len() <= max {
            list.push(take_number(&mut packed)?);
        }
        if list.len() > max {
            return Err(WireError::TooMany { field, max });
        }
        Ok(())
    }
}

/// The fields of a message, in the order they come.
pub(super) struct Fields(pub Bytes);

impl Fields {
    /// The next field's number and value; `None` at the end.
    pub fn next(&mut self) -> Result<Option<(u64, Value)>, WireError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = take_number(&mut self.0)?;
        let number = key >> 3;
        if number == 0 || number > (1 << 29) - 1 {
            return Err(WireError::Malformed("a field number out of range"));
        }
        let value = match key & 7 {
            VARINT => Value::Number(take_number(&mut self.0)?),
            LENGTH_DELIMITED => {
                let length = take_number(&mut self.0)?;
                let within = usize::try_from(length).ok().filter(|length| *length <= self.0.len());
                let length = within.ok_or(WireError::Malformed("a field longer than its message"))?;
                Value::Bytes(self.0.split_to(length))
            }
            FIXED_64 => self.skip(8)?,
            FIXED_32 => self.skip(4)?,
            _ => return Err(WireError::Malformed("a group, or an unknown wire type")),
        };
        Ok(Some((number, value)))
    }

    fn skip(&mut self, length: usize) -> Result<Value, WireError> {
        if self.0.len() < length {
            return Err(WireError::Malformed("a field longer than its message"));
        }
        self.0.advance(length);
        Ok(Value::Fixed)
    }
}

fn take_number(bytes: &mut Bytes) -> Result<u64, WireError> {
    let mut number = 0u64;
    for (position, &byte) in bytes.iter().take(10).enumerate() {
        if position == 9 && byte > 1 {
            return Err(WireError::Malformed("a varint of more than 64 bits"));
        }
        number |= u64::from(byte & 0x7f) << (7 * position);
        if byte < 0x80 {
            bytes.advance(position + 1);
            return Ok(number);
        }
    }
    Err(WireError::Malformed("a varint without an end"))
}

/// Where a message is written to, or only measured: both see the same calls, so that lengths are right.
pub(super) trait Sink {
    fn number(&mut self, number: u64);
    fn raw(&mut self, bytes: &[u8]);

    /// A field with a number, zero or not.
    fn field(&mut self, field: u64, number: u64) {
        self.number(field << 3 | VARINT);
        self.number(number);
    }

    /// A field with a number that is left out when zero.
    fn nonzero(&mut self, field: u64, number: u64) {
        if number != 0 {
            self.field(field, number);
        }
    }

    /// The head of a field of `length` bytes, which the caller writes.
    fn head(&mut self, field: u64, length: usize) {
        self.number(field << 3 | LENGTH_DELIMITED);
        self.number(length as u64);
    }

    /// A field of bytes that is left out when empty.
    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.head(field, bytes.len());
            self.raw(bytes);
        }
    }
}

impl Sink for Vec<u8> {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.push(number as u8);
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Counts the bytes that would be written.
#[derive(Default)]
pub(super) struct Length(pub usize);

impl Sink for Length {
    fn number(&mut self, number: u64) {
        self.0 += (64 - (number | 1).leading_zeros() as usize).div_ceil(7);
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}
