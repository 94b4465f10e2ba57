//! Request parsing.
//!
//! `call`: what one unary call costs in the HTTP/2 and gRPC machines alone: bytes in, events, answer, bytes out. Three
//! clients: one that repeats its header block (as load generators do), one that indexes a new `grpc-timeout` each time
//! (as grpc-go does), and one that sends its whole list as Huffman strings each time (the worst).
//!
//! `request`: from the message's bytes to a request that was found valid.

use super::clock::ThreadTime;
use bytes::Bytes;
use criterion::{Criterion, Throughput};
use prost::Message;
use ringd::grpc::{self, Event, message_prefix};
use ringd::http::frame::{self, FrameHeader, flag, kind};
use ringd::http::{self, hpack::huffman};
use ringd::proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use ringd::proto::etcdserverpb::request_op::Request;
use ringd::proto::etcdserverpb::{Compare, PutRequest, RangeRequest, RequestOp, TxnRequest};
use ringd::state::{depth, validate};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const BATCHES: u32 = 16;
const CALLS_PER_BATCH: u32 = 32;
const MESSAGE: usize = 62;
/// etcd's default.
const MAX_TXN_OPS: usize = 128;

const FIELDS: [(&str, &str); 6] = [
    (":path", "/etcdserverpb.KV/Put"),
    (":authority", "127.0.0.1:2379"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-go/1.83.0"),
    ("te", "trailers"),
    ("hasleader", "true"),
];

pub fn bench(criterion: &mut Criterion<ThreadTime>) {
    type Block = fn(u32) -> Vec<u8>;
    let mut group = criterion.benchmark_group("call");
    group.throughput(Throughput::Elements(u64::from(BATCHES * CALLS_PER_BATCH)));
    for (name, block) in [
        ("repeated-headers", repeated as Block),
        ("new-timeout", with_timeout as Block),
        ("huffman-headers", literal as Block),
    ] {
        let batches: Vec<Bytes> = (0..BATCHES).map(|batch| wire(batch, block)).collect();
        group.bench_function(name, |bencher| bencher.iter(|| connection(&batches)));
    }
    group.finish();
    requests(criterion);
}

fn requests(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("request");
    let put: Bytes = put().encode_to_vec().into();
    group.bench_function("put", |bencher| {
        bencher.iter(|| {
            let request: PutRequest = depth::decode(put.clone()).expect("a put");
            validate::check_put(&request).expect("a valid put");
            request
        });
    });
    let range: Bytes = range().encode_to_vec().into();
    group.bench_function("range", |bencher| {
        bencher.iter(|| {
            let request: RangeRequest = depth::decode(range.clone()).expect("a range");
            validate::check_range(&request).expect("a valid range");
            request
        });
    });
    let txn: Bytes = kubernetes_update().encode_to_vec().into();
    group.bench_function("txn", |bencher| {
        bencher.iter(|| {
            let request = depth::decode_txn(txn.clone(), MAX_TXN_OPS).expect("a transaction");
            validate::check_txn(&request, MAX_TXN_OPS).expect("a valid transaction");
            request
        });
    });
    group.finish();
}

fn put() -> PutRequest {
    PutRequest {
        key: super::key(7).into(),
        value: vec![b'v'; 256].into(),
        ..Default::default()
    }
}

fn range() -> RangeRequest {
    RangeRequest {
        key: super::key(7).into(),
        ..Default::default()
    }
}

/// As an apiserver updates: put if unchanged, else read.
pub fn kubernetes_update() -> TxnRequest {
    let operation = |request| RequestOp { request: Some(request) };
    TxnRequest {
        compare: vec![Compare {
            result: CompareResult::Equal as i32,
            target: CompareTarget::Mod as i32,
            key: super::key(7).into(),
            target_union: Some(TargetUnion::ModRevision(123_456)),
            ..Default::default()
        }],
        success: vec![operation(Request::RequestPut(put()))],
        failure: vec![operation(Request::RequestRange(range()))],
    }
}

/// One connection's life.
fn connection(batches: &[Bytes]) {
    let now = Duration::from_secs(1);
    let http = http::Connection::new(Arc::new(http::Config::default()), now);
    let config = grpc::Config {
        max_message: 2 << 20,
        plain_http: false,
    };
    let mut connection = grpc::Connection::new(http, Arc::new(config));
    let mut spare = Vec::with_capacity(65_536);
    let reply = [7; MESSAGE];
    let mut answered = 0;
    for batch in batches {
        connection.receive(batch.clone(), now);
        while let Some(event) = connection.next_event() {
            match event {
                Event::Started { .. } => {
                    black_box(connection.request().path());
                }
                Event::Message { call, message, .. } => {
                    black_box(&message);
                    let sent = connection.reply(call, reply.len(), |out| out.extend_from_slice(&reply));
                    assert_eq!(sent, Ok(()));
                    answered += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        spare = connection.take_output(spare, now);
        black_box(&spare);
        spare.clear();
    }
    assert_eq!(answered, BATCHES * CALLS_PER_BATCH);
}

/// What a client sends in one go: at first its preface, later what it gives back to the window; then calls.
fn wire(batch: u32, block: fn(u32) -> Vec<u8>) -> Bytes {
    let mut out = Vec::new();
    let mut put_frame = |kind, flags, stream, payload: &[&[u8]]| {
        let header = FrameHeader {
            length: payload.iter().map(|part| part.len()).sum(),
            kind,
            flags,
            stream,
        };
        header.write(&mut out);
        payload.iter().for_each(|part| out.extend_from_slice(part));
    };
    if batch > 0 {
        let bytes = (CALLS_PER_BATCH * (MESSAGE as u32 + 5)).to_be_bytes();
        put_frame(kind::WINDOW_UPDATE, 0, 0, &[&bytes]);
    } else {
        put_frame(kind::SETTINGS, 0, 0, &[]);
    }
    for call in 0..CALLS_PER_BATCH {
        let number = batch * CALLS_PER_BATCH + call;
        let stream = 2 * number + 1;
        put_frame(kind::HEADERS, flag::END_HEADERS, stream, &[&block(number)]);
        let message: [&[u8]; 2] = [&message_prefix(MESSAGE), &[9; MESSAGE]];
        put_frame(kind::DATA, flag::END_STREAM, stream, &message);
    }
    if batch == 0 {
        out.splice(0..0, frame::PREFACE.iter().copied());
    }
    Bytes::from(out)
}

/// A literal field, inserted into the table or not, its strings Huffman-coded.
fn field(out: &mut Vec<u8>, first: u8, name: &str, value: &str) {
    out.push(first);
    for text in [name, value] {
        let mut encoded = Vec::new();
        huffman::encode(text.as_bytes(), &mut encoded);
        assert!(encoded.len() < 127);
        out.push(0x80 | encoded.len() as u8);
        out.extend(encoded);
    }
}

pub fn repeated(number: u32) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    for (position, (name, value)) in FIELDS.iter().enumerate() {
        if number == 0 {
            field(&mut block, 0x40, name, value);
        } else {
            block.push(0x80 | (61 + FIELDS.len() - position) as u8);
        }
    }
    block
}

/// The table holds the six fields, then one timeout more per call, and so on until the six fall out and enter again.
pub fn with_timeout(number: u32) -> Vec<u8> {
    const PERIOD: u32 = 40;
    let mut block = vec![0x83, 0x86];
    let behind = number % PERIOD;
    for (position, (name, value)) in FIELDS.iter().enumerate() {
        if behind == 0 {
            field(&mut block, 0x40, name, value);
        } else {
            block.push(0x80 | (61 + FIELDS.len() - position + behind as usize) as u8);
        }
    }
    let timeout = format!("{}u", 4_999_000 + number % 1_000);
    if behind == 0 {
        field(&mut block, 0x40, "grpc-timeout", &timeout);
    } else {
        // The name of the newest entry, the last call's timeout.
        let mut encoded = Vec::new();
        huffman::encode(timeout.as_bytes(), &mut encoded);
        block.extend_from_slice(&[0x7e, 0x80 | encoded.len() as u8]);
        block.extend(encoded);
    }
    block
}

pub fn literal(_: u32) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    for (name, value) in FIELDS {
        field(&mut block, 0x00, name, value);
    }
    block
}
