//! Length-prefixed messages: one byte of flags, four of length, big-endian.

use bytes::{Buf, Bytes, BytesMut};

use super::status::{Code, Status, quote};
use crate::limits::GRPC_ASSEMBLY_FIRST_BYTES;

/// Bytes ahead of each message.
pub const PREFIX_LENGTH: usize = 5;

/// The prefix of an uncompressed message.
pub fn message_prefix(length: usize) -> [u8; PREFIX_LENGTH] {
    debug_assert!(u32::try_from(length).is_ok());
    let length = (length as u32).to_be_bytes();
    [0, length[0], length[1], length[2], length[3]]
}

/// Cuts a stream of bytes into messages.
///
/// A message that lies whole within one piece of input is a slice of it; one that spans pieces is put together in a
/// buffer that grows with what has come, not with what was announced.
#[derive(Debug, Default)]
pub struct MessageReader {
    prefix: [u8; PREFIX_LENGTH],
    prefix_filled: u8,
    body: BytesMut,
}

impl MessageReader {
    /// Takes the next whole message off the front of `data`, or all of `data` if none is whole yet. A message larger
    /// than `max` is refused as soon as its prefix is known, and so is a compressed one; `encoding` is the call's
    /// `grpc-encoding`, empty if there was none.
    #[inline]
    pub fn next(&mut self, data: &mut Bytes, max: usize, encoding: &[u8]) -> Result<Option<Bytes>, Status> {
        if self.prefix_filled == 0 {
            if let Some(prefix) = data.first_chunk::<PREFIX_LENGTH>() {
                let length = message_length(prefix, max)?;
                if data.len() >= PREFIX_LENGTH + length {
                    check_flags(prefix[0], encoding)?;
                    data.advance(PREFIX_LENGTH);
                    return Ok(Some(data.split_to(length)));
                }
            }
            if data.is_empty() {
                return Ok(None);
            }
        }
        self.assemble(data, max, encoding)
    }

    fn assemble(&mut self, data: &mut Bytes, max: usize, encoding: &[u8]) -> Result<Option<Bytes>, Status> {
        let filled = usize::from(self.prefix_filled);
        if filled < PREFIX_LENGTH {
            let part = data.split_to(data.len().min(PREFIX_LENGTH - filled));
            self.prefix[filled..filled + part.len()].copy_from_slice(&part);
            self.prefix_filled += part.len() as u8;
            if usize::from(self.prefix_filled) < PREFIX_LENGTH {
                return Ok(None);
            }
        }
        let length = message_length(&self.prefix, max)?;
        let part = data.split_to(data.len().min(length - self.body.len()));
        if self.body.is_empty() {
            self.body.reserve(length.min(part.len().max(GRPC_ASSEMBLY_FIRST_BYTES)));
        }
        self.body.extend_from_slice(&part);
        if self.body.len() < length {
            return Ok(None);
        }
        check_flags(self.prefix[0], encoding)?;
        self.prefix_filled = 0;
        Ok(Some(std::mem::take(&mut self.body).freeze()))
    }

    /// Bytes held of an unfinished message.
    pub fn held(&self) -> usize {
        self.body.len()
    }

    /// Whether the input may end here: not in a message. A prefix that is cut off passes, as in grpc-go.
    pub fn may_end(&self) -> bool {
        usize::from(self.prefix_filled) < PREFIX_LENGTH
    }
}

fn message_length(prefix: &[u8; PREFIX_LENGTH], max: usize) -> Result<usize, Status> {
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    if length > max {
        let text = format!("grpc: received message larger than max ({length} vs. {max})");
        return Err(Status::new(Code::ResourceExhausted, text));
    }
    Ok(length)
}

/// Judges the flags as grpc-go does when no compressor is installed.
#[inline]
fn check_flags(flags: u8, encoding: &[u8]) -> Result<(), Status> {
    match flags {
        0 => Ok(()),
        1 if encoding.is_empty() || encoding == b"identity" => Err(Status::new(
            Code::Internal,
            "grpc: compressed flag set with identity or empty encoding",
        )),
        1 => Err(no_decompressor(encoding)),
        _ => Err(Status::new(
            Code::Internal,
            format!("grpc: received unexpected payload format {flags}"),
        )),
    }
}

/// The refusal of a call that announces an encoding.
pub(super) fn no_decompressor(encoding: &[u8]) -> Status {
    let text = format!(
        "grpc: Decompressor is not installed for grpc-encoding {}",
        quote(encoding)
    );
    Status::new(Code::Unimplemented, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        [&message_prefix(message.len())[..], message].concat()
    }

    fn read(bytes: &[u8], max: usize, encoding: &[u8]) -> Result<Option<Bytes>, Status> {
        MessageReader::default().next(&mut Bytes::copy_from_slice(bytes), max, encoding)
    }

    #[test]
    fn a_whole_message_is_a_slice_of_the_input() {
        let input = Bytes::from([framed(b"one"), framed(b""), framed(b"two")].concat());
        let mut reader = MessageReader::default();
        let mut rest = input.clone();
        let one = reader.next(&mut rest, 10, b"").unwrap().unwrap();
        assert_eq!((&one[..], one.as_ptr()), (&b"one"[..], input[5..].as_ptr()));
        assert_eq!(reader.next(&mut rest, 10, b"").unwrap().unwrap(), "");
        assert_eq!(reader.next(&mut rest, 10, b"").unwrap().unwrap(), "two");
        assert_eq!(reader.next(&mut rest, 10, b"").unwrap(), None);
        assert!(reader.may_end());
    }

    #[test]
    fn too_large_and_compressed_messages_are_refused_in_grpc_gos_words() {
        let refusal = |bytes: &[u8], encoding: &[u8]| read(bytes, 10, encoding).unwrap_err().to_string();
        assert_eq!(
            refusal(&message_prefix(11), b""),
            "ResourceExhausted: grpc: received message larger than max (11 vs. 10)"
        );
        assert_eq!(
            refusal(&[1, 0, 0, 0, 0], b""),
            "Internal: grpc: compressed flag set with identity or empty encoding"
        );
        assert_eq!(
            refusal(&[1, 0, 0, 0, 0], b"gzip"),
            "Unimplemented: grpc: Decompressor is not installed for grpc-encoding \"gzip\""
        );
        assert_eq!(
            refusal(&[7, 0, 0, 0, 0], b""),
            "Internal: grpc: received unexpected payload format 7"
        );
        assert!(read(&framed(&[1; 10]), 10, b"").unwrap().is_some());
    }

    /// grpc-go reads a prefix cut off as the end of the stream, and only a body cut off as an error.
    #[test]
    fn input_may_end_in_a_prefix_and_not_in_a_body() {
        let whole = framed(b"ab");
        for end in 0..whole.len() {
            let mut reader = MessageReader::default();
            let mut data = Bytes::copy_from_slice(&whole[..end]);
            assert_eq!(reader.next(&mut data, 10, b"").unwrap(), None);
            assert_eq!(reader.may_end(), end < PREFIX_LENGTH, "{end} bytes");
        }
    }

    #[test]
    fn memory_grows_with_what_came_not_with_what_was_announced() {
        let mut reader = MessageReader::default();
        let mut data = Bytes::from([&message_prefix(1 << 30)[..], b"x"].concat());
        assert_eq!(reader.next(&mut data, 1 << 31, b"").unwrap(), None);
        assert!(reader.body.capacity() <= 2 * GRPC_ASSEMBLY_FIRST_BYTES);
        assert_eq!(reader.held(), 1);
        assert!(!reader.may_end());
    }

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in_however_they_are_cut(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..10),
            cuts in proptest::collection::vec(1usize..100, 1..20),
        ) {
            let bytes = Bytes::from(messages.iter().flat_map(|message| framed(message)).collect::<Vec<u8>>());
            let mut reader = MessageReader::default();
            let mut found = Vec::new();
            let mut position = 0;
            for cut in cuts.iter().cycle() {
                let end = (position + cut).min(bytes.len());
                let mut piece = bytes.slice(position..end);
                position = end;
                while let Some(message) = reader.next(&mut piece, 1000, b"").unwrap() {
                    found.push(message.to_vec());
                }
                prop_assert!(piece.is_empty());
                if position == bytes.len() {
                    break;
                }
            }
            prop_assert_eq!(found, messages);
            prop_assert!(reader.may_end());
        }
    }
}
