//! The messages of the load, encoded once, with the places that change from call to call.
//!
//! A message is built by prost with marks in it: key 0, a stamp, a number of nine bytes. Where the marks lie, each call
//! writes its own.

use prost::Message;
use ringd::proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use ringd::proto::etcdserverpb::request_op::Request;
use ringd::proto::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest,
    RangeRequest, RequestOp, TxnRequest,
};

/// What every key starts with; a decimal number of `KEY_DIGITS` digits follows.
pub const KEY_PREFIX: &[u8] = b"/bench/key/";
pub const KEY_DIGITS: usize = 9;
/// Numbers that have so many digits.
pub const KEYS_MAX: u64 = 1_000_000_000;
/// The first key behind all of ours.
const KEYS_END: &[u8] = b"/bench/key0";
/// The start of a value, which makes successive values differ.
const STAMP: &[u8; 8] = b"\x01stamp\x02\x03";
/// A number whose varint has nine bytes, as every number of up to 63 bits can be written.
const NUMBER: i64 = 0x5a5a_5a5a_5a5a_5a5a;
const NUMBER_LENGTH: usize = 9;
/// Seconds; longer than any run.
const LEASE_TTL: i64 = 36_000;

/// What changes from call to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patch {
    Key,
    Stamp,
    Number,
}

/// What a reply has to say, status 0 aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// At least so many bytes.
    Bytes(u32),
    /// A Txn whose comparisons held.
    Succeeded,
    /// A lease that lives.
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
}

/// What one call puts in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Which recipe.
    pub recipe: usize,
    pub key: u64,
    /// A revision or a lease, by recipe.
    pub number: i64,
}

impl Recipe {
    fn new(path: &'static str, message: &impl Message) -> Self {
        let message = message.encode_to_vec();
        let mut number = Vec::new();
        prost::encoding::encode_varint(NUMBER as u64, &mut number);
        assert_eq!(number.len(), NUMBER_LENGTH);
        let marks = [
            (key_of(0), Patch::Key),
            (STAMP.to_vec(), Patch::Stamp),
            (number, Patch::Number),
        ];
        let mut patches = Vec::new();
        for (mark, patch) in marks {
            let places = message
                .windows(mark.len())
                .enumerate()
                .filter(|(_, part)| *part == mark);
            let skip = if patch == Patch::Key { KEY_PREFIX.len() } else { 0 };
            patches.extend(places.map(|(place, _)| (place + skip, patch)));
        }
        Self {
            path,
            message,
            patches,
            streaming: false,
            accept: Accept::Bytes(1),
            revisions: 0,
        }
    }

    fn writes(self) -> Self {
        Self { revisions: 1, ..self }
    }

    fn accept(self, accept: Accept) -> Self {
        Self { accept, ..self }
    }

    /// A put of the call's key.
    pub fn put(value_bytes: usize) -> Self {
        Self::new("/etcdserverpb.KV/Put", &put(value_bytes, 0)).writes()
    }

    /// A put of the call's key, attached to the lease `number`.
    pub fn put_with_lease(value_bytes: usize) -> Self {
        Self::new("/etcdserverpb.KV/Put", &put(value_bytes, NUMBER)).writes()
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
            ..get()
        };
        Self::new("/etcdserverpb.KV/Range", &request)
    }

    /// The list of all keys from the call's on, at most `limit` of them (0: no limit).
    pub fn list(serializable: bool, limit: i64, stream: bool) -> Self {
        let request = RangeRequest {
            key: key_of(0).into(),
            range_end: KEYS_END.into(),
            serializable,
            limit,
            ..Default::default()
        };
        let path = if stream {
            "/etcdserverpb.KV/RangeStream"
        } else {
            "/etcdserverpb.KV/Range"
        };
        Self::new(path, &request)
    }

    /// A Txn without comparisons that puts, or reads, the call's key.
    pub fn txn(write: bool, value_bytes: usize) -> Self {
        let operation = if write {
            Request::RequestPut(put(value_bytes, 0))
        } else {
            Request::RequestRange(get())
        };
        let recipe = Self::new("/etcdserverpb.KV/Txn", &txn(None, operation, None)).accept(Accept::Succeeded);
        if write { recipe.writes() } else { recipe }
    }

    /// As Kubernetes writes: put the call's key if its last change was at revision `number` (0: if there is none), else
    /// read it.
    pub fn put_if_unchanged(value_bytes: usize) -> Self {
        let put = Request::RequestPut(put(value_bytes, 0));
        let request = txn(Some(unchanged()), put, Some(get()));
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
        let request = txn(Some(unchanged()), delete, Some(get()));
        Self::new("/etcdserverpb.KV/Txn", &request)
            .accept(Accept::Succeeded)
            .writes()
    }

    /// Grants the lease `number`.
    pub fn lease_grant() -> Self {
        let request = LeaseGrantRequest {
            ttl: LEASE_TTL,
            id: NUMBER,
        };
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
                Patch::Key => write_digits(&mut part[..KEY_DIGITS], call.key),
                Patch::Stamp => part[..STAMP.len()].copy_from_slice(&stamp.to_le_bytes()),
                Patch::Number => write_number(&mut part[..NUMBER_LENGTH], call.number),
            }
        }
    }
}

fn put(value_bytes: usize, lease: i64) -> PutRequest {
    assert!(value_bytes >= STAMP.len(), "a value holds its stamp");
    let mut value = STAMP.to_vec();
    value.resize(value_bytes, b'v');
    PutRequest {
        key: key_of(0).into(),
        value: value.into(),
        lease,
        ..Default::default()
    }
}

fn get() -> RangeRequest {
    RangeRequest {
        key: key_of(0).into(),
        ..Default::default()
    }
}

fn unchanged() -> Compare {
    Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Mod as i32,
        key: key_of(0).into(),
        target_union: Some(TargetUnion::ModRevision(NUMBER)),
        ..Default::default()
    }
}

fn txn(compare: Option<Compare>, then: Request, otherwise: Option<RangeRequest>) -> TxnRequest {
    let operation = |request| RequestOp { request: Some(request) };
    TxnRequest {
        compare: compare.into_iter().collect(),
        success: vec![operation(then)],
        failure: otherwise
            .map(|range| operation(Request::RequestRange(range)))
            .into_iter()
            .collect(),
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
        let call = Call { recipe: 0, key, number };
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
        let grant = LeaseGrantRequest::decode(&written(&Recipe::lease_grant(), 0, 5)[..]).unwrap();
        assert_eq!((grant.id, grant.ttl), (5, LEASE_TTL));
        let renewal = LeaseKeepAliveRequest::decode(&written(&Recipe::lease_keep_alive(), 0, 1 << 40)[..]).unwrap();
        assert_eq!(renewal.id, 1 << 40);
    }

    #[test]
    fn a_list_ends_behind_the_last_key() {
        let request = RangeRequest::decode(&written(&Recipe::list(true, 500, false), 0, 0)[..]).unwrap();
        assert!(request.range_end[..] > key_of(999_999_999)[..] && request.range_end.len() == KEY_PREFIX.len());
        assert_eq!((request.limit, request.serializable), (500, true));
    }
}
