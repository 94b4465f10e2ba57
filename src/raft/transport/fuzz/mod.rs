//! Entry points of the fuzzers (`fuzz/src/entries.rs`): any bytes, and no panic.

pub(super) mod drawn;
pub(super) mod member;

use self::drawn::Drawn;
use self::member::Member;
use super::codec::{AppendDecoder, AppendEncoder, Item, MessageDecoder, encode_message};
use super::{gate, wire};
use bytes::Bytes;
use raft::eraftpb::Message;

/// A stream, in pieces of a length of its own. The first byte says which kind of stream and how long the pieces are.
/// What was read is read again from what is written of it.
pub fn streams(input: &[u8]) {
    let Some((&first, stream)) = input.split_first() else {
        return;
    };
    let length = 1 + usize::from(first >> 1);
    let messages = if first & 1 == 0 {
        message_stream(stream, length)
    } else {
        append_stream(stream, length)
    };
    if first & 1 == 0 {
        let mut written = Vec::new();
        for message in &messages {
            encode_message(message, &mut written).expect("what was read can leave");
        }
        assert_eq!(message_stream(&written, 64), messages);
    } else {
        let (mut encoder, mut written) = (AppendEncoder::default(), Vec::new());
        let counts = |message: &&Message| message.index < u64::MAX / 2;
        let messages: Vec<_> = messages.iter().take_while(counts).cloned().collect();
        for message in &messages {
            encoder.encode(message, &mut written).expect("what was read can leave");
        }
        let again = append_stream(&written, 64);
        assert_eq!(again.len(), messages.len());
        for (again, message) in again.iter().zip(&messages) {
            assert_eq!((again.index, &again.entries), (message.index, &message.entries));
        }
    }
    let bytes = Bytes::copy_from_slice(stream);
    if let Ok(change) = wire::ConfChange::decode(bytes) {
        let mut encoded = Vec::new();
        change.encode(&mut encoded);
        assert_eq!(wire::ConfChange::decode(encoded.into()), Ok(change));
    }
}

fn message_stream(stream: &[u8], length: usize) -> Vec<Message> {
    let (mut decoder, mut messages) = (MessageDecoder::default(), Vec::new());
    for piece in stream.chunks(length) {
        decoder.receive(Bytes::copy_from_slice(piece));
        loop {
            match decoder.next_item() {
                Ok(Some(Item::Message(message))) => messages.push(*message),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return messages,
            }
        }
    }
    messages
}

fn append_stream(stream: &[u8], length: usize) -> Vec<Message> {
    let (mut decoder, mut messages) = (AppendDecoder::new(1, 2), Vec::new());
    for piece in stream.chunks(length) {
        decoder.receive(Bytes::copy_from_slice(piece));
        loop {
            match decoder.next_item() {
                Ok(Some(Item::Message(message))) => messages.push(*message),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return messages,
            }
        }
    }
    messages
}

/// A member of three voters and a learner, in a life of its own and under messages of all sorts that came through the
/// gate. raft must not panic.
pub fn gate(input: &[u8]) {
    let mut drawn = Drawn(input);
    let mut member = match drawn.byte() % 4 {
        // One that joins, and knows of nobody.
        0 => Member::new(1, &[], &[]),
        1 => Member::new(1, &[1, 2], &[]),
        2 => Member::new(1, &[2, 3], &[1]),
        _ => Member::new(1, &[1, 2, 3], &[4]),
    };
    while !drawn.0.is_empty() && !member.stopped {
        match drawn.byte() {
            0..=15 => member.tick(),
            16..=23 => (0..12).for_each(|_| member.tick()),
            24..=39 => member.persist(),
            40..=47 => member.persist_all(),
            48..=63 => member.apply(),
            64..=71 => {
                let entry = drawn.entry(0, 0);
                // What a member proposes itself is sound.
                if gate::is_sound(&entry) {
                    member.propose(entry);
                }
            }
            72..=79 => member.elect(),
            _ => {
                let message = drawn.message(&member);
                // A refusal is fine.
                let _ = member.receive(message);
            }
        }
        member.turn();
        if member.sent.len() > 64 {
            member.sent.clear();
        }
        assert!(member.raw.raft.raft_log.committed <= member.raw.raft.raft_log.last_index());
    }
}
