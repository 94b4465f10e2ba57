//! The messages of the load, encoded once, with the places that change from call to call.
//!
//! A message is built by prost with marks in it: keys from 0 on, a last key, a stamp, numbers of nine bytes. Where the
//! marks lie, each call writes its own.

use super::reply::Reply;
use prost::Message;
use ringd::proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use ringd::proto::etcdserverpb::request_op::Request;
use ringd::proto::etcdserverpb::watch_request::RequestUnion;
use ringd::proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest,
    PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest,
};

/// What every key starts with; a decimal number of `KEY_DIGITS` digits follows.
pub const KEY_PREFIX: &[u8] = b"/bench/key/";
pub const KEY_DIGITS: usize = 9;
/// Numbers that have so many digits.
pub const KEYS_MAX: u64 = 1_000_000_000;
/// The first key behind all of ours.
pub const KEYS_END: &[u8] = b"/bench/key0";
/// The key that marks where an interval's end goes.
const END_MARK: u64 = KEYS_MAX - 1;
/// Keys that one call may name one behind the other, and numbers it may have.
pub const KEYS_PER_CALL: usize = 128;
pub const NUMBERS_PER_CALL: usize = 4;
/// The start of a value, which makes successive values differ.
const STAMP: &[u8; 8] = b"\x01stamp\x02\x03";
/// A number whose varint has nine bytes, as every number of up to 63 bits can be written; those below it are marks too.
const NUMBER: i64 = 0x5a5a_5a5a_5a5a_5a5a;
const NUMBER_LENGTH: usize = 9;
/// Seconds; longer than any run.
pub const LEASE_TTL: i64 = 36_000;

/// What changes from call to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patch {
    /// So many keys behind the call's.
    Key(u64),
    End,
    Stamp,
    /// Which of the call's numbers.
    Number(usize),
}

/// What a reply has to say, status 0 aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// At least so many bytes.
    Bytes(u32),
    /// A Txn whose comparisons held.
    Succeeded,
    /// A Txn, whether they held or not; it changes nothing if not.
    Decided,
    /// A lease that lives, or a watch that was created.
    Alive,
}

/// A kind of call.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The method's path.
    pub path: &'static str,
    message: Vec<u8>,
    patches: Vec<(usize, Patch)>,
    /// Whether calls are messages of one long stream, each with one message as its answer.
    pub streaming: bool,
    pub accept: Accept,
    /// By how much a call raises the store's revision.
    pub revisions: u64,
    /// How many keys it changes.
    pub changes: u64,
}

/// What one call puts in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Which recipe.
    pub recipe: usize,
    pub key: u64,
    /// The first key behind the interval, of recipes that ask for one.
    pub end: u64,
    /// A revision or a lease, by recipe.
    pub number: i64,
    /// More of them.
    pub others: [i64; NUMBERS_PER_CALL - 1],
}

impl Call {
    fn number(&self, which: usize) -> i64 {
        match which {
            0 => self.number,
            other => self.others[other - 1],
        }
    }
}

impl Recipe {
    fn new(path: &'static str, message: &impl Message) -> Self {
        let message = message.encode_to_vec();
        let places = |mark: Vec<u8>| {
            let places = message.windows(mark.len()).enumerate();
            places.filter_map(move |(place, part)| (part == mark).then_some(place))
        };
        let keys = places(KEY_PREFIX.to_vec()).filter_map(|place| {
            let digits = place + KEY_PREFIX.len();
            let digits_end = digits + KEY_DIGITS;
            match std::str::from_utf8(message.get(digits..digits_end)?)
                .ok()?
                .parse()
                .ok()?
            {
                END_MARK => Some((digits, Patch::End)),
                key => Some((digits, Patch::Key(key))),
            }
        });
        let stamps = places(STAMP.to_vec()).map(|place| (place, Patch::Stamp));
        let numbers = (0..NUMBERS_PER_CALL)
            .flat_map(|which| places(number_mark(which)).map(move |place| (place, Patch::Number(which))));
        let patches = keys.chain(stamps).chain(numbers).collect();
        Self {
            path,
            message,
            patches,
            streaming: false,
            accept: Accept::Bytes(1),
            revisions: 0,
            changes: 0,
        }
    }

    fn writes(self) -> Self {
        self.writes_keys(1)
    }

    /// In one revision.
    fn writes_keys(self, changes: u64) -> Self {
        Self {
            revisions: u64::from(changes > 0),
            changes,
            ..self
        }
    }

    fn accept(self, accept: Accept) -> Self {
        Self { accept, ..self }
    }

    /// A put of the call's key.
    pub fn put(value_bytes: usize) -> Self {
        Self::new("/etcdserverpb.KV/Put", &put(0, value_bytes, 0)).writes()
    }

    /// A put of the call's key, attached to the lease `number`.
    pub fn put_with_lease(value_bytes: usize) -> Self {
        Self::new("/etcdserverpb.KV/Put", &put(0, value_bytes, NUMBER)).writes()
    }

    /// A get of the call's key.
    pub fn get(serializable: bool, value_bytes: usize) -> Self {
        let request = RangeRequest {
            key: key_of(0).into(),
            serializable,
            ..Default::default()
        };
        Self::new("/etcdserverpb.KV/Range", &request).accept(Accept::Bytes(value_bytes as u32))
    }

    /// How many keys there are, 0 or 1, with the call's name: a reply that is short whatever the values are.
    pub fn count() -> Self {
        let request = RangeRequest {
            count_only: true,
            ..get(0)
        };
        Self::new("/etcdserverpb.KV/Range", &request)
    }

    /// A list of keys from the call's on.
    pub fn list(list: List) -> Self {
        let end = match list.ends {
            true => key_of(END_MARK),
            false => KEYS_END.to_vec(),
        };
        let request = RangeRequest {
            key: key_of(0).into(),
            range_end: end.into(),
            revision: if list.dated { NUMBER } else { 0 },
            serializable: list.serializable,
            limit: list.limit as i64,
            keys_only: list.shows == Shows::Keys,
            count_only: list.shows == Shows::Count,
            ..Default::default()
        };
        let path = if list.stream {
            "/etcdserverpb.KV/RangeStream"
        } else {
            "/etcdserverpb.KV/Range"
        };
        Self::new(path, &request).accept(Accept::Bytes(list.bytes_min.max(1)))
    }

    /// A watch of the keys from the call's to its end, from revision `number` on, as an apiserver asks for it. It stays
    /// when it is created, and its events are not looked at.
    pub fn watch() -> Self {
        let create = WatchCreateRequest {
            key: key_of(0).into(),
            range_end: key_of(END_MARK).into(),
            start_revision: NUMBER,
            progress_notify: true,
            prev_kv: true,
            ..Default::default()
        };
        let request = WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(create)),
        };
        Self {
            streaming: true,
            ..Self::new("/etcdserverpb.Watch/Watch", &request).accept(Accept::Alive)
        }
    }

    /// A Txn without comparisons that puts so many keys from the call's on.
    pub fn txn_put(operations: usize, value_bytes: usize) -> Self {
        let puts = (0..operations as u64).map(|at| Request::RequestPut(put(at, value_bytes, 0)));
        Self::new("/etcdserverpb.KV/Txn", &txn(vec![], puts.collect(), vec![]))
            .accept(Accept::Succeeded)
            .writes_keys(operations as u64)
    }

    /// A Txn without comparisons that reads the call's key, or so many from it on.
    pub fn txn_get(limit: u64) -> Self {
        let get = match limit {
            0 | 1 => get(0),
            limit => RangeRequest {
                range_end: KEYS_END.into(),
                limit: limit as i64,
                ..get(0)
            },
        };
        Self::new(
            "/etcdserverpb.KV/Txn",
            &txn(vec![], vec![Request::RequestRange(get)], vec![]),
        )
        .accept(Accept::Succeeded)
    }

    /// The end of a software transaction, as etcd's `concurrency.STM` commits it: if none of `keys` keys from the
    /// call's on was changed behind the revisions in its numbers, the first `writes` are put; else all are read.
    pub fn stm_commit(keys: usize, writes: usize, value_bytes: usize) -> Self {
        let compares = (0..keys).map(unchanged).collect();
        let puts = (0..writes as u64).map(|at| Request::RequestPut(put(at, value_bytes, 0)));
        let gets = (0..keys as u64).map(|at| Request::RequestRange(get(at)));
        Self::new("/etcdserverpb.KV/Txn", &txn(compares, puts.collect(), gets.collect()))
            .accept(Accept::Decided)
            .writes_keys(writes as u64)
    }

    /// Compacts at the revision `number`.
    pub fn compact() -> Self {
        let request = CompactionRequest {
            revision: NUMBER,
            ..Default::default()
        };
        Self::new("/etcdserverpb.KV/Compact", &request)
    }

    /// As Kubernetes writes: put the call's key if its last change was at revision `number` (0: if there is none), else
    /// read it.
    pub fn put_if_unchanged(value_bytes: usize) -> Self {
        let put = Request::RequestPut(put(0, value_bytes, 0));
        let request = txn(vec![unchanged(0)], vec![put], vec![Request::RequestRange(get(0))]);
        Self::new("/etcdserverpb.KV/Txn", &request)
            .accept(Accept::Succeeded)
            .writes()
    }

    /// As Kubernetes deletes: only if the last change was at revision `number`.
    pub fn delete_if_unchanged() -> Self {
        let delete = Request::RequestDeleteRange(DeleteRangeRequest {
            key: key_of(0).into(),
            ..Default::default()
        });
        let request = txn(vec![unchanged(0)], vec![delete], vec![Request::RequestRange(get(0))]);
        Self::new("/etcdserverpb.KV/Txn", &request)
            .accept(Accept::Succeeded)
            .writes()
    }

    /// Grants the lease `number`, for so many seconds.
    pub fn lease_grant(ttl_s: i64) -> Self {
        let request = LeaseGrantRequest { ttl: ttl_s, id: NUMBER };
        Self::new("/etcdserverpb.Lease/LeaseGrant", &request).accept(Accept::Alive)
    }

    /// Revokes the lease `number`; `keys` says whether one is attached.
    pub fn lease_revoke(keys: bool) -> Self {
        let recipe = Self::new("/etcdserverpb.Lease/LeaseRevoke", &LeaseRevokeRequest { id: NUMBER });
        if keys { recipe.writes() } else { recipe }
    }

    /// Renews the lease `number`, on a stream.
    pub fn lease_keep_alive() -> Self {
        let recipe = Self::new(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            &LeaseKeepAliveRequest { id: NUMBER },
        );
        Self {
            streaming: true,
            ..recipe.accept(Accept::Alive)
        }
    }

    /// Whether a good answer to it means that its keys were changed.
    pub fn has_changed(&self, reply: &Reply) -> bool {
        self.accept != Accept::Decided || reply.second == 1
    }

    /// Bytes of a call's message.
    pub fn length(&self) -> usize {
        self.message.len()
    }

    /// Appends a call's message; `stamp` goes into its value.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>, call: &Call, stamp: u64) {
        let start = out.len();
        out.extend_from_slice(&self.message);
        for &(place, patch) in &self.patches {
            let part = &mut out[start + place..];
            match patch {
                Patch::Key(behind) => write_digits(&mut part[..KEY_DIGITS], call.key + behind),
                Patch::End => write_digits(&mut part[..KEY_DIGITS], call.end),
                Patch::Stamp => part[..STAMP.len()].copy_from_slice(&stamp.to_le_bytes()),
                Patch::Number(which) => write_number(&mut part[..NUMBER_LENGTH], call.number(which)),
            }
        }
    }
}

/// What a list asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct List {
    pub serializable: bool,
    /// At most so many keys; 0 for all.
    pub limit: u64,
    /// By RangeStream.
    pub stream: bool,
    /// Whether it goes to the call's end, and not to the end of all keys.
    pub ends: bool,
    /// Whether it is of the revision `number`, where 0 is the newest.
    pub dated: bool,
    pub shows: Shows,
    /// Bytes an answer has at least.
    pub bytes_min: u32,
}

/// What of the keys a list shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shows {
    #[default]
    All,
    Keys,
    Count,
}

fn number_mark(which: usize) -> Vec<u8> {
    let mut mark = Vec::new();
    prost::encoding::encode_varint((NUMBER - which as i64) as u64, &mut mark);
    assert_eq!(mark.len(), NUMBER_LENGTH);
    mark
}

fn put(key: u64, value_bytes: usize, lease: i64) -> PutRequest {
    assert!(value_bytes >= STAMP.len(), "a value holds its stamp");
    let mut value = STAMP.to_vec();
    value.resize(value_bytes, b'v');
    PutRequest {
        key: key_of(key).into(),
        value: value.into(),
        lease,
        ..Default::default()
    }
}

fn get(key: u64) -> RangeRequest {
    RangeRequest {
        key: key_of(key).into(),
        ..Default::default()
    }
}

/// That the key so many behind the call's was last changed at that one of its numbers.
fn unchanged(which: usize) -> Compare {
    Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Mod as i32,
        key: key_of(which as u64).into(),
        target_union: Some(TargetUnion::ModRevision(NUMBER - which as i64)),
        ..Default::default()
    }
}

fn txn(compare: Vec<Compare>, then: Vec<Request>, otherwise: Vec<Request>) -> TxnRequest {
    let operations = |requests: Vec<Request>| {
        let operations = requests.into_iter().map(|request| RequestOp { request: Some(request) });
        operations.collect()
    };
    TxnRequest {
        compare,
        success: operations(then),
        failure: operations(otherwise),
    }
}

/// The number of a key as its digits.
pub fn key_of(number: u64) -> Vec<u8> {
    let mut key = KEY_PREFIX.to_vec();
    key.resize(KEY_PREFIX.len() + KEY_DIGITS, b'0');
    write_digits(&mut key[KEY_PREFIX.len()..], number);
    key
}

fn write_digits(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// A varint made long with zeros, so that it takes the mark's place.
fn write_number(bytes: &mut [u8], number: i64) {
    debug_assert!(number >= 0);
    let last = bytes.len() - 1;
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = (number >> (7 * index)) as u8 & 0x7f | if index < last { 0x80 } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(recipe: &Recipe, key: u64, number: i64) -> Vec<u8> {
        let mut out = Vec::new();
        let call = Call {
            key,
            number,
            end: key + 500,
            others: [1, 2, 3].map(|more| number.saturating_add(more)),
            ..Call::default()
        };
        recipe.write(&mut out, &call, 7);
        assert_eq!(out.len(), recipe.length());
        out
    }

    #[test]
    fn a_put_has_its_key_its_stamp_and_its_lease() {
        let request = PutRequest::decode(&written(&Recipe::put(256), 123_456, 0)[..]).unwrap();
        assert_eq!(request.key, "/bench/key/000123456");
        assert_eq!(
            (request.value.len(), &request.value[..8]),
            (256, &7u64.to_le_bytes()[..])
        );
        let request = PutRequest::decode(&written(&Recipe::put_with_lease(8), 1, i64::MAX)[..]).unwrap();
        assert_eq!((request.value.len(), request.lease), (8, i64::MAX));
    }

    #[test]
    fn a_conditional_put_has_its_key_everywhere() {
        let request = TxnRequest::decode(&written(&Recipe::put_if_unchanged(64), 999_999_999, 300)[..]).unwrap();
        let key = key_of(999_999_999);
        assert_eq!(request.compare[0].key, key);
        assert_eq!(request.compare[0].target_union, Some(TargetUnion::ModRevision(300)));
        let Some(Request::RequestPut(put)) = &request.success[0].request else {
            panic!("{request:?}");
        };
        let Some(Request::RequestRange(range)) = &request.failure[0].request else {
            panic!("{request:?}");
        };
        assert_eq!((&put.key[..], &range.key[..]), (&key[..], &key[..]));
    }

    #[test]
    fn leases_have_their_number() {
        let grant = LeaseGrantRequest::decode(&written(&Recipe::lease_grant(LEASE_TTL), 0, 5)[..]).unwrap();
        assert_eq!((grant.id, grant.ttl), (5, LEASE_TTL));
        let renewal = LeaseKeepAliveRequest::decode(&written(&Recipe::lease_keep_alive(), 0, 1 << 40)[..]).unwrap();
        assert_eq!(renewal.id, 1 << 40);
    }

    #[test]
    fn a_list_ends_behind_the_last_key() {
        let list = List {
            serializable: true,
            limit: 500,
            ..List::default()
        };
        let request = RangeRequest::decode(&written(&Recipe::list(list), 0, 0)[..]).unwrap();
        assert!(request.range_end[..] > key_of(999_999_999)[..] && request.range_end.len() == KEY_PREFIX.len());
        assert_eq!((request.limit, request.serializable, request.revision), (500, true, 0));
    }

    #[test]
    fn a_page_has_its_end_and_its_revision_and_a_watch_too() {
        let list = List {
            ends: true,
            dated: true,
            shows: Shows::Keys,
            ..List::default()
        };
        for revision in [0, 77] {
            let request = RangeRequest::decode(&written(&Recipe::list(list), 20, revision)[..]).unwrap();
            assert_eq!(
                (&request.key[..], &request.range_end[..]),
                (&key_of(20)[..], &key_of(520)[..])
            );
            assert_eq!((request.revision, request.keys_only), (revision, true));
        }
        let request = WatchRequest::decode(&written(&Recipe::watch(), 20, 78)[..]).unwrap();
        let Some(RequestUnion::CreateRequest(create)) = request.request_union else {
            panic!("{request:?}");
        };
        assert_eq!(
            (&create.key[..], &create.range_end[..]),
            (&key_of(20)[..], &key_of(520)[..])
        );
        assert_eq!((create.start_revision, create.prev_kv), (78, true));
    }

    #[test]
    fn transactions_of_many_keys_name_one_behind_the_other() {
        let recipe = Recipe::txn_put(128, 8);
        let request = TxnRequest::decode(&written(&recipe, 1000, 0)[..]).unwrap();
        for (at, operation) in request.success.iter().enumerate() {
            let Some(Request::RequestPut(put)) = &operation.request else {
                panic!("{operation:?}");
            };
            assert_eq!(put.key, key_of(1000 + at as u64));
        }
        assert_eq!((request.success.len(), recipe.revisions, recipe.changes), (128, 1, 128));
        let request = TxnRequest::decode(&written(&Recipe::stm_commit(4, 2, 8), 7, 300)[..]).unwrap();
        for (at, compare) in request.compare.iter().enumerate() {
            assert_eq!(compare.key, key_of(7 + at as u64));
            assert_eq!(compare.target_union, Some(TargetUnion::ModRevision(300 + at as i64)));
        }
        assert_eq!(
            (request.compare.len(), request.success.len(), request.failure.len()),
            (4, 2, 4)
        );
    }
}
