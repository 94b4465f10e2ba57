//! The message stream.

use super::input::Input;
use super::{CodecError, Item};
use crate::limits::transport::MESSAGE_BYTES_MAX;
use crate::raft::transport::wire::{self, Unsendable, WireError};
use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};

/// Appends a message to `out`.
pub fn encode_message(message: &Message, out: &mut Vec<u8>) -> Result<(), Unsendable> {
    let start = out.len();
    out.extend_from_slice(&(wire::encoded_length(message) as u64).to_be_bytes());
    let encoded = wire::encode(message, out);
    if encoded.is_err() {
        out.truncate(start);
    }
    encoded
}

/// Appends a heartbeat to `out`.
pub fn encode_heartbeat(out: &mut Vec<u8>) {
    let mut heartbeat = Message::default();
    heartbeat.set_msg_type(MessageType::MsgHeartbeat);
    let encoded = encode_message(&heartbeat, out);
    debug_assert_eq!(encoded, Ok(()));
}

/// Reads a message stream.
#[derive(Debug)]
pub struct MessageDecoder {
    input: Input,
    /// Length of the message whose bytes come.
    length: Option<usize>,
    max: usize,
}

impl Default for MessageDecoder {
    fn default() -> MessageDecoder {
        MessageDecoder::new(MESSAGE_BYTES_MAX)
    }
}

impl MessageDecoder {
    /// A decoder that takes messages of up to `max` bytes.
    pub fn new(max: usize) -> MessageDecoder {
        MessageDecoder {
            input: Input::default(),
            length: None,
            max,
        }
    }

    /// Takes bytes, after [`next_item`](Self::next_item) has returned `None`.
    pub fn receive(&mut self, bytes: Bytes) {
        self.input.receive(bytes);
    }

    /// The next item; `None` when more bytes are wanted. After an error there is nothing to go on with.
    pub fn next_item(&mut self) -> Result<Option<Item>, CodecError> {
        let Some(bytes) = self.next_bytes()? else {
            return Ok(None);
        };
        Ok(Some(match wire::decode(bytes) {
            Ok(message) if is_heartbeat(&message) => Item::Heartbeat,
            Ok(message) => Item::Message(Box::new(message)),
            Err(WireError::MessageType(number)) => Item::Unknown(number),
            Err(error) => return Err(error.into()),
        }))
    }

    /// The bytes of the next message.
    fn next_bytes(&mut self) -> Result<Option<Bytes>, CodecError> {
        let length = match self.length {
            Some(length) => length,
            None => {
                let Some(length) = self.input.number() else {
                    return Ok(None);
                };
                *self.length.insert(bounded("a message", length, self.max)?)
            }
        };
        let bytes = self.input.piece(length);
        if bytes.is_some() {
            self.length = None;
        }
        Ok(bytes)
    }

    /// Whether the stream may end here: not within a message.
    pub fn is_at_boundary(&self) -> bool {
        self.length.is_none() && !self.input.is_within()
    }

    /// Bytes of memory taken for the message that comes.
    #[cfg(test)]
    pub(super) fn input_capacity(&self) -> usize {
        self.input.capacity()
    }

    /// What came behind the last message that was taken.
    pub fn into_rest(self) -> Bytes {
        self.input.into_rest()
    }
}

fn is_heartbeat(message: &Message) -> bool {
    message.msg_type() == MessageType::MsgHeartbeat && message.from == 0 && message.to == 0
}

pub(super) fn bounded(what: &'static str, length: u64, max: usize) -> Result<usize, CodecError> {
    let within = usize::try_from(length).ok().filter(|within| *within <= max);
    within.ok_or(CodecError::TooLong { what, length, max })
}
