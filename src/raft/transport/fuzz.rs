//! Entry points of the fuzzers (`fuzz/src/entries.rs`): any bytes, and no panic.

use super::codec::{AppendDecoder, AppendEncoder, Item, MessageDecoder, encode_message};
use super::wire;
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
