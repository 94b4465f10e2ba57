//! Streams against themselves, in whatever pieces. Against etcd's code: `tests/peer_codec.rs`.

use super::*;
use crate::limits::transport::{MESSAGE_BYTES_MAX, MESSAGE_ENTRIES_MAX};
use crate::raft::transport::arbitrary::{self, pieces};
use crate::raft::transport::wire;
use proptest::collection::vec;
use proptest::prelude::*;
use raft::eraftpb::{Entry, MessageType};

fn append(term: u64, log_term: u64, index: u64, entries: Vec<Entry>) -> Message {
    let mut message = Message {
        to: 1,
        from: 2,
        term,
        log_term,
        index,
        entries,
        commit: index,
        ..Message::default()
    };
    message.set_msg_type(MessageType::MsgAppend);
    message
}

fn entry(term: u64, index: u64) -> Entry {
    Entry {
        term,
        index,
        data: "data".into(),
        ..Entry::default()
    }
}

fn read_appends(stream: &[u8], lengths: &[usize]) -> Result<Vec<Item>, CodecError> {
    let mut decoder = AppendDecoder::new(1, 2);
    let mut items = Vec::new();
    for piece in pieces(stream, lengths) {
        decoder.receive(piece);
        while let Some(item) = decoder.next_item()? {
            items.push(item);
        }
    }
    assert!(decoder.is_at_boundary(), "the stream ended within an item");
    Ok(items)
}

fn read_messages(stream: &[u8], lengths: &[usize]) -> Result<Vec<Item>, CodecError> {
    let mut decoder = MessageDecoder::default();
    let mut items = Vec::new();
    for piece in pieces(stream, lengths) {
        decoder.receive(piece);
        while let Some(item) = decoder.next_item()? {
            items.push(item);
        }
    }
    assert!(decoder.is_at_boundary(), "the stream ended within a message");
    Ok(items)
}

#[test]
fn appends_that_go_on_say_less() {
    let messages = [
        append(3, 2, 7, vec![entry(3, 8)]),
        append(3, 3, 8, vec![entry(3, 9), entry(3, 10)]),
        append(3, 3, 10, vec![]),
        append(4, 3, 10, vec![entry(4, 11)]),
        append(4, 4, 5, vec![]),
        append(4, 4, 5, vec![]),
    ];
    let (mut encoder, mut stream, mut starts) = (AppendEncoder::default(), Vec::new(), Vec::new());
    for message in &messages {
        starts.push(stream.len());
        encoder.encode(message, &mut stream).unwrap();
        encoder.heartbeat(&mut stream);
    }
    let kinds: Vec<u8> = starts.iter().map(|start| stream[*start]).collect();
    assert_eq!(kinds, [2, 1, 1, 2, 2, 1]);
    let items = read_appends(&stream, &[1]).unwrap();
    let expected = messages
        .into_iter()
        .flat_map(|message| [Item::Message(Box::new(message)), Item::Heartbeat]);
    assert_eq!(items, expected.collect::<Vec<_>>());
}

#[test]
fn heartbeats_are_a_byte_or_a_message_of_nobody() {
    assert_eq!(read_appends(&[0, 0], &[1]).unwrap(), [Item::Heartbeat, Item::Heartbeat]);
    let mut stream = Vec::new();
    encode_heartbeat(&mut stream);
    assert_eq!(stream, [0, 0, 0, 0, 0, 0, 0, 2, 8, 8]);
    assert_eq!(read_messages(&stream, &[3]).unwrap(), [Item::Heartbeat]);
}

#[test]
fn types_of_a_later_etcd_are_passed_over() {
    let stream = [0, 0, 0, 0, 0, 0, 0, 2, 8, 40, 0, 0, 0, 0, 0, 0, 0, 2, 8, 8];
    assert_eq!(
        read_messages(&stream, &[20]).unwrap(),
        [Item::Unknown(40), Item::Heartbeat]
    );
}

#[test]
fn lengths_are_not_believed() {
    let huge = (MESSAGE_BYTES_MAX as u64 + 1).to_be_bytes();
    let too_long = |error| matches!(error, Err(CodecError::TooLong { .. }));
    assert!(too_long(read_messages(&huge, &[8])));
    assert!(too_long(read_messages(&u64::MAX.to_be_bytes(), &[3])));
    assert!(too_long(read_appends(&[&[2][..], &huge].concat(), &[9])));
    let one = 2u64.to_be_bytes();
    assert!(too_long(read_appends(&[&[1][..], &one, &huge].concat(), &[9])));
    let count = (MESSAGE_ENTRIES_MAX as u64 + 1).to_be_bytes();
    let many = read_appends(&[&[1][..], &count].concat(), &[9]);
    assert!(matches!(many, Err(CodecError::TooMany { .. })), "{many:?}");
    // The sum of an append's entries is bounded, not each alone.
    let mut large = Vec::new();
    let data = vec![0; MESSAGE_BYTES_MAX - 100].into();
    let entry = Entry {
        data,
        ..Entry::default()
    };
    wire::encode_entry(&entry, &mut large);
    let length = (large.len() as u64).to_be_bytes();
    let stream = [&[1][..], &one, &length, &large, &length].concat();
    assert!(too_long(read_appends(&stream, &[1 << 20])));
}

#[test]
fn announced_memory_is_not_taken_before_its_bytes_come() {
    let mut decoder = MessageDecoder::default();
    decoder.receive((MESSAGE_BYTES_MAX as u64).to_be_bytes().to_vec().into());
    assert_eq!(decoder.next_item(), Ok(None));
    for _ in 0..10 {
        decoder.receive(vec![0; 1000].into());
        assert_eq!(decoder.next_item(), Ok(None));
    }
    assert!(!decoder.is_at_boundary());
    assert!(decoder.input_capacity() <= 128 << 10, "{}", decoder.input_capacity());
}

#[test]
fn other_things_on_a_msgapp_stream_are_refused() {
    assert_eq!(read_appends(&[3], &[1]), Err(CodecError::ItemType(3)));
    let stream = [2, 0, 0, 0, 0, 0, 0, 0, 2, 8, 8];
    assert_eq!(read_appends(&stream, &[1]), Err(CodecError::NotAppend("MsgHeartbeat")));
}

proptest! {
    #[test]
    fn message_streams_come_back(messages in vec(arbitrary::message(), 0..6), lengths in vec(1..9000usize, 1..6)) {
        let mut stream = Vec::new();
        for message in &messages {
            encode_message(message, &mut stream).unwrap();
        }
        let items = read_messages(&stream, &lengths).unwrap();
        let expected: Vec<_> = messages
            .into_iter()
            .map(|message| match message.msg_type() {
                MessageType::MsgHeartbeat if message.from == 0 && message.to == 0 => Item::Heartbeat,
                _ => Item::Message(Box::new(message)),
            })
            .collect();
        prop_assert_eq!(items, expected);
    }

    /// Appends as leaders send them: mostly going on where the last one ended.
    #[test]
    fn append_streams_come_back(
        steps in vec((0..4u8, 0..5usize, 0..3u64), 1..30),
        lengths in vec(1..300usize, 1..6),
    ) {
        let (mut term, mut log_term, mut index) = (1, 1, 5);
        let (mut encoder, mut stream, mut expected) = (AppendEncoder::default(), Vec::new(), Vec::new());
        for (jump, count, back) in steps {
            match jump {
                0 => term += 1,
                1 => index -= back.min(index),
                _ => {}
            }
            let entries: Vec<_> = (1..=count as u64).map(|step| entry(term, index + step)).collect();
            let message = append(term, log_term, index, entries);
            encoder.encode(&message, &mut stream).unwrap();
            index += count as u64;
            log_term = if count > 0 { term } else { log_term };
            expected.push(Item::Message(Box::new(message)));
        }
        prop_assert_eq!(read_appends(&stream, &lengths).unwrap(), expected);
    }

    #[test]
    fn no_bytes_panic(bytes in vec(prop_oneof![3 => Just(0u8), 2 => 1..9u8, 1 => any::<u8>()], 0..300)) {
        let mut appends = AppendDecoder::new(1, 2);
        appends.receive(bytes.clone().into());
        while let Ok(Some(_)) = appends.next_item() {}
        let mut messages = MessageDecoder::default();
        messages.receive(bytes.into());
        while let Ok(Some(_)) = messages.next_item() {}
    }
}
