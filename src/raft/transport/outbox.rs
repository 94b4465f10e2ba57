//! What waits to be sent to one peer, and by which way it goes.
//!
//! Appends go by the msgapp stream, everything else by the message stream, so that votes and heartbeats never wait
//! behind entries. Where a stream is not open an append takes the message stream, and everything the pipeline. Each
//! way has a queue with bounds of its own; what does not fit is dropped.

use super::wire;
use crate::limits::transport as limits;
use raft::eraftpb::{Message, MessageType};
use std::collections::VecDeque;

/// A way to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The msgapp stream.
    Append,
    /// The message stream.
    Message,
    /// Requests of their own.
    Pipeline,
}

impl Way {
    /// What log lines call it.
    pub fn name(self) -> &'static str {
        match self {
            Way::Append => "stream MsgApp v2",
            Way::Message => "stream Message",
            Way::Pipeline => "pipeline",
        }
    }
}

/// A queue with its bounds.
#[derive(Debug)]
struct Queue {
    messages: VecDeque<(Message, usize)>,
    bytes: usize,
    messages_max: usize,
    bytes_max: usize,
}

impl Queue {
    fn new(messages_max: usize, bytes_max: usize) -> Queue {
        Queue {
            messages: VecDeque::new(),
            bytes: 0,
            messages_max,
            bytes_max,
        }
    }

    /// A message that is longer than the bound goes if it is alone.
    fn push(&mut self, message: Message) -> bool {
        let length = wire::encoded_length(&message);
        let is_over = self.bytes + length > self.bytes_max && !self.messages.is_empty();
        if is_over || self.messages.len() >= self.messages_max {
            return false;
        }
        self.bytes += length;
        self.messages.push_back((message, length));
        true
    }

    fn pop(&mut self) -> Option<(Message, usize)> {
        let (message, length) = self.messages.pop_front()?;
        self.bytes -= length;
        Some((message, length))
    }
}

/// The queues to one peer.
#[derive(Debug)]
pub struct Outbox {
    queues: [Queue; 3],
    open: [bool; 3],
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox {
            queues: [
                Queue::new(limits::STREAM_QUEUE_MESSAGES, limits::APPEND_QUEUE_BYTES),
                Queue::new(limits::STREAM_QUEUE_MESSAGES, limits::MESSAGE_QUEUE_BYTES),
                Queue::new(limits::PIPELINE_QUEUE_MESSAGES, limits::PIPELINE_QUEUE_BYTES),
            ],
            open: [false, false, true],
        }
    }
}

impl Outbox {
    /// The way a message of this kind takes now.
    pub fn way(&self, kind: MessageType) -> Way {
        if kind == MessageType::MsgAppend && self.open[Way::Append as usize] {
            Way::Append
        } else if self.open[Way::Message as usize] {
            Way::Message
        } else {
            Way::Pipeline
        }
    }

    /// Queues a message and says by which way it goes; `None` when there is no room, and it is dropped.
    pub fn push(&mut self, message: Message) -> Option<Way> {
        let way = self.way(message.msg_type());
        self.queues[way as usize].push(message).then_some(way)
    }

    /// The next message of a way, with its length in bytes.
    pub fn pop(&mut self, way: Way) -> Option<(Message, usize)> {
        self.queues[way as usize].pop()
    }

    /// Whether nothing waits for a way.
    pub fn is_empty(&self, way: Way) -> bool {
        self.queues[way as usize].messages.is_empty()
    }

    /// A stream opened.
    pub fn open(&mut self, way: Way) {
        self.open[way as usize] = true;
    }

    /// A stream is gone, and with it what waited for it. How many messages those were.
    pub fn close(&mut self, way: Way) -> usize {
        self.open[way as usize] = way == Way::Pipeline;
        let queue = &mut self.queues[way as usize];
        queue.bytes = 0;
        std::mem::take(&mut queue.messages).len()
    }
}

/// Cuts an append between entries into appends of about `APPEND_BYTES`, which say the same one after the other.
/// raft-rs joins everything it has for a follower into one.
pub fn cut_append(mut message: Message) -> Vec<Message> {
    let is_append = message.msg_type() == MessageType::MsgAppend;
    if !is_append || message.entries.iter().map(wire::entry_length).sum::<usize>() <= limits::APPEND_BYTES {
        return vec![message];
    }
    let (mut parts, mut bytes) = (Vec::new(), 0);
    let entries = std::mem::take(&mut message.entries);
    let mut part = message;
    for entry in entries {
        let length = wire::entry_length(&entry);
        if bytes + length > limits::APPEND_BYTES && !part.entries.is_empty() {
            let last = &part.entries[part.entries.len() - 1];
            let next = Message {
                index: last.index,
                log_term: last.term,
                entries: Vec::new(),
                ..part.clone_head()
            };
            parts.push(std::mem::replace(&mut part, next));
            bytes = 0;
        }
        bytes += length;
        part.entries.push(entry);
    }
    parts.push(part);
    parts
}

/// A message without its entries.
trait CloneHead {
    fn clone_head(&self) -> Message;
}

impl CloneHead for Message {
    fn clone_head(&self) -> Message {
        Message {
            msg_type: self.msg_type,
            to: self.to,
            from: self.from,
            term: self.term,
            commit: self.commit,
            context: self.context.clone(),
            ..Message::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use raft::eraftpb::Entry;

    fn message(kind: MessageType, bytes: usize) -> Message {
        let mut message = Message {
            to: 2,
            from: 1,
            term: 3,
            log_term: 3,
            index: 7,
            commit: 5,
            ..Message::default()
        };
        message.set_msg_type(kind);
        if bytes > 0 {
            message.entries.push(entry(8, bytes));
        }
        message
    }

    fn entry(index: u64, bytes: usize) -> Entry {
        Entry {
            term: 3,
            index,
            data: vec![0; bytes].into(),
            ..Entry::default()
        }
    }

    #[test]
    fn ways_depend_on_open_streams() {
        use MessageType::{MsgAppend, MsgHeartbeat};
        let mut outbox = Outbox::default();
        let ways = |outbox: &Outbox| (outbox.way(MsgAppend), outbox.way(MsgHeartbeat));
        assert_eq!(ways(&outbox), (Way::Pipeline, Way::Pipeline));
        outbox.open(Way::Append);
        assert_eq!(ways(&outbox), (Way::Append, Way::Pipeline));
        outbox.open(Way::Message);
        assert_eq!(ways(&outbox), (Way::Append, Way::Message));
        assert_eq!(outbox.push(message(MsgAppend, 1)), Some(Way::Append));
        assert_eq!(outbox.push(message(MsgHeartbeat, 0)), Some(Way::Message));
        assert_eq!(outbox.close(Way::Append), 1);
        assert_eq!(ways(&outbox), (Way::Message, Way::Message));
        assert!(outbox.is_empty(Way::Append) && !outbox.is_empty(Way::Message));
        outbox.close(Way::Message);
        outbox.close(Way::Pipeline);
        assert_eq!(ways(&outbox), (Way::Pipeline, Way::Pipeline));
    }

    #[test]
    fn queues_are_bounded_by_messages_and_bytes() {
        let mut outbox = Outbox::default();
        for _ in 0..limits::PIPELINE_QUEUE_MESSAGES {
            outbox.push(message(MessageType::MsgHeartbeat, 0)).unwrap();
        }
        assert!(outbox.push(message(MessageType::MsgHeartbeat, 0)).is_none());
        assert!(outbox.pop(Way::Pipeline).is_some());
        assert!(outbox.push(message(MessageType::MsgHeartbeat, 0)).is_some());
        outbox.open(Way::Append);
        // One that is longer than all of the room goes alone.
        let long = || message(MessageType::MsgAppend, limits::APPEND_QUEUE_BYTES);
        outbox.push(long()).unwrap();
        assert!(outbox.push(message(MessageType::MsgAppend, 1)).is_none());
        let (_, length) = outbox.pop(Way::Append).unwrap();
        assert!(length > limits::APPEND_QUEUE_BYTES);
        outbox.push(message(MessageType::MsgAppend, 1)).unwrap();
        assert!(outbox.push(long()).is_none());
    }

    #[test]
    fn long_appends_are_cut_between_entries() {
        let mut long = message(MessageType::MsgAppend, 0);
        let lengths = [10, 600_000, 600_000, 10, 3_000_000, 10];
        long.entries = lengths
            .iter()
            .zip(8..)
            .map(|(bytes, index)| entry(index, *bytes))
            .collect();
        let all = long.entries.clone();
        let parts = cut_append(long.clone());
        let counts: Vec<_> = parts.iter().map(|part| part.entries.len()).collect();
        assert_eq!(counts, [2, 2, 1, 1]);
        let mut end = (7, 3);
        for part in &parts {
            assert_eq!((part.index, part.log_term), end);
            assert_eq!((part.to, part.from, part.term, part.commit), (2, 1, 3, 5));
            end = part.entries.last().map(|last| (last.index, last.term)).unwrap();
        }
        let joined: Vec<_> = parts.into_iter().flat_map(|part| part.entries).collect();
        assert!(joined == all);
        let short = message(MessageType::MsgAppend, 10);
        assert_eq!(cut_append(short.clone()), [short]);
        let proposal = message(MessageType::MsgPropose, 3_000_000);
        assert_eq!(cut_append(proposal).len(), 1);
    }
}
