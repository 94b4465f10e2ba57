//! What is fuzzed, by name. Shared by the fuzzers and by the test that replays the corpus (`tests/fuzz_corpus.rs`).
//!
//! Every entry takes any bytes. It must not panic, and not hold memory out of proportion to the input and the bounds.

use bytes::Bytes;
use prost::Message;
use ringd::proto::schema::Described;
use ringd::proto::{etcdserverpb as pb, health};
use ringd::raft::transport;
use ringd::state::backend;
use ringd::state::depth;
use ringd::state::{StateError, validate};
use ringd::{bbolt, grpc, http, pages, wal};
use std::fmt::Debug;

/// Compares and operations of one transaction, as etcd has it by default.
const MAX_TXN_OPS: usize = 128;

/// A fuzzer.
pub struct Entry {
    /// Names its corpus, `fuzz/corpus/<name>`.
    pub name: &'static str,
    /// Takes one input.
    pub run: fn(&[u8]),
    /// The largest input tried, in bytes.
    pub length_max: usize,
}

const fn entry(name: &'static str, length_max: usize, run: fn(&[u8])) -> Entry {
    Entry { name, run, length_max }
}

/// All fuzzers.
pub const ENTRIES: &[Entry] = &[
    entry("http2", 8_192, http::fuzz::connection),
    entry("http1", 4_096, http::fuzz::http1),
    entry("http1_client", 4_096, http::fuzz::responses),
    entry("hpack", 4_096, |input| {
        http::fuzz::hpack(input);
        http::fuzz::huffman_string(input);
    }),
    entry("grpc", 4_096, grpc::fuzz::connection),
    entry("grpc_values", 1_024, |input| {
        grpc::fuzz::values(input);
        grpc::fuzz::messages(input);
    }),
    entry("requests", 4_096, requests),
    entry("wal", 16_384, wal::fuzz),
    entry("page_file", 80_000, page_file),
    entry("page_node", 8_192, pages::fuzz::node),
    entry("page_meta", 8_192, pages::fuzz::meta_page),
    entry("peer_streams", 4_096, transport::fuzz::streams),
    entry("bbolt_file", 65_536, |input| {
        bbolt::fuzz::file(input);
        bbolt::fuzz::sealed_file(input);
    }),
    entry("backend_row", 1_024, backend::fuzz::row),
    entry("backend_import", 65_536, |input| {
        backend::fuzz::import(input);
    }),
    entry("peer_gate", 4_096, transport::fuzz::gate),
];

/// The beginning of a page file; the rest of its first piece of 2 MiB is zeros.
fn page_file(input: &[u8]) {
    let mut file = input.to_vec();
    file.resize(file.len().next_multiple_of(8_192).max(2_129_920), 0);
    pages::fuzz::file(&file);
}

/// A client's request: the first byte chooses the type, the rest is the message.
fn requests(input: &[u8]) {
    let Some((&kind, message)) = input.split_first() else {
        return;
    };
    let bytes = Bytes::copy_from_slice(message);
    let flat = [
        again::<pb::DeleteRangeRequest>,
        again::<pb::CompactionRequest>,
        again::<pb::LeaseGrantRequest>,
        again::<pb::LeaseRevokeRequest>,
        again::<pb::LeaseKeepAliveRequest>,
        again::<pb::LeaseTimeToLiveRequest>,
        again::<pb::LeaseLeasesRequest>,
        again::<pb::MemberAddRequest>,
        again::<pb::MemberRemoveRequest>,
        again::<pb::MemberUpdateRequest>,
        again::<pb::MemberListRequest>,
        again::<pb::MemberPromoteRequest>,
        again::<pb::AlarmRequest>,
        again::<pb::StatusRequest>,
        again::<pb::DefragmentRequest>,
        again::<pb::HashRequest>,
        again::<pb::HashKvRequest>,
        again::<pb::SnapshotRequest>,
        again::<pb::MoveLeaderRequest>,
        again::<pb::DowngradeRequest>,
        again::<health::HealthCheckRequest>,
    ];
    match kind {
        0 => checked::<pb::RangeRequest>(bytes, validate::check_range),
        1 => checked::<pb::RangeRequest>(bytes, validate::check_range_stream),
        2 => checked::<pb::PutRequest>(bytes, validate::check_put),
        3 => checked::<pb::DeleteRangeRequest>(bytes, validate::check_delete),
        4 => transaction(bytes),
        5 => again::<pb::WatchRequest>(bytes),
        6 => {
            if let Ok(request) = depth::decode_entry(bytes) {
                assert_eq!(depth::decode_entry(request.encode_to_vec().into()), Ok(request));
            }
        }
        _ => flat[usize::from(kind) % flat.len()](bytes),
    }
}

/// What was decoded must come back from its own encoding.
fn again<M: Described + Message + Default + PartialEq + Debug>(bytes: Bytes) {
    if let Ok(request) = depth::decode::<M>(bytes) {
        assert_eq!(depth::decode(request.encode_to_vec().into()), Ok(request));
    }
}

fn checked<M: Described + Message + Default + PartialEq + Debug>(
    bytes: Bytes,
    check: fn(&M) -> Result<(), StateError>,
) {
    if let Ok(request) = depth::decode::<M>(bytes) {
        let _ = check(&request);
        assert_eq!(depth::decode(request.encode_to_vec().into()), Ok(request));
    }
}

fn transaction(bytes: Bytes) {
    let Ok(request) = depth::decode_txn(bytes, MAX_TXN_OPS) else {
        return;
    };
    if validate::check_txn(&request, MAX_TXN_OPS).is_ok() {
        assert!(validate::is_read_only(&request) || !validate::is_serializable(&request));
        let encoded = Bytes::from(request.encode_to_vec());
        assert_eq!(depth::decode_txn(encoded, MAX_TXN_OPS), Ok(request));
    }
}

/// Panics on the one input that only guidance by coverage finds soon: a fuzzer that does not find it is set up wrongly.
pub const CANARY: Entry = entry("canary", 64, |input| {
    let wanted = b"canary";
    let right = wanted.iter().zip(input).take_while(|(wanted, byte)| wanted == byte);
    assert!(right.count() < wanted.len(), "the canary is found");
});
