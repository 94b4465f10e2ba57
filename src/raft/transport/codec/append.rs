//! The msgapp stream, version 2.
//!
//! Items are a byte and what follows it, numbers being of 8 bytes with the highest first:
//!
//! * 0: a heartbeat;
//! * 1: an append that begins where the last one ended, in the leader's own term: the number of entries, each entry
//!   behind its length, the commit index;
//! * 2: any other append: its length and the message.
//!
//! Both ends keep term and index of the last append's end, so an item of type 1 has to say neither.

use super::input::Input;
use super::message::bounded;
use super::{CodecError, Item};
use crate::limits::transport::{MESSAGE_BYTES_MAX, MESSAGE_ENTRIES_MAX};
use crate::raft::transport::wire::{self, Unsendable};
use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};

const HEARTBEAT: u8 = 0;
const ENTRIES: u8 = 1;
const APPEND: u8 = 2;

/// Where the last append ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct End {
    term: u64,
    index: u64,
}

impl End {
    fn of(message: &Message) -> End {
        let last = message.entries.last();
        End {
            term: message.term,
            index: last.map_or(message.index, |entry| entry.index),
        }
    }
}

/// Writes a msgapp stream, from its beginning.
#[derive(Debug, Default)]
pub struct AppendEncoder {
    end: End,
}

impl AppendEncoder {
    /// Appends an append to `out`.
    pub fn encode(&mut self, message: &Message, out: &mut Vec<u8>) -> Result<(), Unsendable> {
        assert_eq!(message.msg_type(), MessageType::MsgAppend, "on a msgapp stream");
        let begins = End {
            term: message.log_term,
            index: message.index,
        };
        if begins != self.end || message.log_term != message.term {
            out.push(APPEND);
            if let Err(error) = super::encode_message(message, out) {
                out.pop();
                return Err(error);
            }
            self.end = End::of(message);
            return Ok(());
        }
        out.push(ENTRIES);
        out.extend_from_slice(&(message.entries.len() as u64).to_be_bytes());
        for entry in &message.entries {
            out.extend_from_slice(&(wire::entry_length(entry) as u64).to_be_bytes());
            wire::encode_entry(entry, out);
        }
        out.extend_from_slice(&message.commit.to_be_bytes());
        self.end.index += message.entries.len() as u64;
        Ok(())
    }

    /// Appends a heartbeat to `out`.
    pub fn heartbeat(&self, out: &mut Vec<u8>) {
        out.push(HEARTBEAT);
    }
}

/// Reads a msgapp stream, from its beginning.
#[derive(Debug)]
pub struct AppendDecoder {
    input: Input,
    state: State,
    end: End,
    local: u64,
    remote: u64,
}

#[derive(Debug)]
enum State {
    /// An item's type comes.
    Type,
    /// The number of entries.
    Count,
    /// The length of an entry, of `left` that are to come; with none left, the commit index.
    Length { left: usize, append: Box<Append> },
    /// The bytes of an entry.
    Entry {
        left: usize,
        length: usize,
        append: Box<Append>,
    },
    /// The length of a whole message.
    MessageLength,
    /// The bytes of a whole message.
    Message(usize),
}

/// An append as far as it has come.
#[derive(Debug)]
struct Append {
    message: Message,
    /// Bytes of its entries.
    bytes: usize,
}

impl AppendDecoder {
    /// A decoder for what `remote` sends to `local`.
    pub fn new(local: u64, remote: u64) -> AppendDecoder {
        AppendDecoder {
            input: Input::default(),
            state: State::Type,
            end: End::default(),
            local,
            remote,
        }
    }

    /// Takes bytes, after [`next_item`](Self::next_item) has returned `None`.
    pub fn receive(&mut self, bytes: Bytes) {
        self.input.receive(bytes);
    }

    /// The next item; `None` when more bytes are wanted. After an error there is nothing to go on with.
    pub fn next_item(&mut self) -> Result<Option<Item>, CodecError> {
        loop {
            match std::mem::replace(&mut self.state, State::Type) {
                State::Type => match self.input.byte() {
                    None => return Ok(None),
                    Some(HEARTBEAT) => return Ok(Some(Item::Heartbeat)),
                    Some(ENTRIES) => self.state = State::Count,
                    Some(APPEND) => self.state = State::MessageLength,
                    Some(other) => return Err(CodecError::ItemType(other)),
                },
                State::Count => match self.input.number() {
                    None => return self.wait(State::Count),
                    Some(count) => self.state = self.begin(count)?,
                },
                State::Length { left: 0, append } => match self.input.number() {
                    None => return self.wait(State::Length { left: 0, append }),
                    Some(commit) => return Ok(Some(self.finish(append, commit))),
                },
                State::Length { left, append } => match self.input.number() {
                    None => return self.wait(State::Length { left, append }),
                    Some(length) => {
                        let length = bounded("an entry", length, MESSAGE_BYTES_MAX - append.bytes)?;
                        self.state = State::Entry { left, length, append };
                    }
                },
                State::Entry {
                    left,
                    length,
                    mut append,
                } => match self.input.piece(length) {
                    None => return self.wait(State::Entry { left, length, append }),
                    Some(bytes) => {
                        append.bytes += bytes.len();
                        append.message.entries.push(wire::decode_entry(bytes)?);
                        self.state = State::Length { left: left - 1, append };
                    }
                },
                State::MessageLength => match self.input.number() {
                    None => return self.wait(State::MessageLength),
                    Some(length) => self.state = State::Message(bounded("a message", length, MESSAGE_BYTES_MAX)?),
                },
                State::Message(length) => match self.input.piece(length) {
                    None => return self.wait(State::Message(length)),
                    Some(bytes) => return Ok(Some(self.whole(bytes)?)),
                },
            }
        }
    }

    /// Whether the stream may end here: not within an item.
    pub fn is_at_boundary(&self) -> bool {
        matches!(self.state, State::Type)
    }

    fn wait(&mut self, state: State) -> Result<Option<Item>, CodecError> {
        self.state = state;
        Ok(None)
    }

    fn begin(&self, count: u64) -> Result<State, CodecError> {
        let max = MESSAGE_ENTRIES_MAX;
        let within = usize::try_from(count).ok().filter(|within| *within <= max);
        let left = within.ok_or(CodecError::TooMany { count, max })?;
        let mut message = Message {
            to: self.local,
            from: self.remote,
            term: self.end.term,
            log_term: self.end.term,
            index: self.end.index,
            ..Message::default()
        };
        message.set_msg_type(MessageType::MsgAppend);
        let append = Box::new(Append { message, bytes: 0 });
        Ok(State::Length { left, append })
    }

    fn finish(&mut self, append: Box<Append>, commit: u64) -> Item {
        let Append { mut message, .. } = *append;
        message.commit = commit;
        // The index was a peer's word; what overflows is for the gate to refuse.
        self.end.index = self.end.index.wrapping_add(message.entries.len() as u64);
        Item::Message(Box::new(message))
    }

    fn whole(&mut self, bytes: Bytes) -> Result<Item, CodecError> {
        let message = wire::decode(bytes)?;
        if message.msg_type() != MessageType::MsgAppend {
            return Err(CodecError::NotAppend(wire::name(message.msg_type())));
        }
        self.end = End::of(&message);
        Ok(Item::Message(Box::new(message)))
    }
}
