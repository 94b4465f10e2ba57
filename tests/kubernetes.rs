//! What kube-apiserver's storage layer asks of etcd, replayed call by call: its transactions, its compactor, its lists,
//! watches and progress requests, its leases and its checks of version and errors.

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use ringd::proto::etcdserverpb::{self as pb, request_op::Request, response_op::Response};
use support::{
    block_on, etcd,
    grpc::{Channel, Status, Stream},
    server::Server,
};
use tokio::time::timeout;

/// The metadata of a watch that must not go on without a leader.
const REQUIRE_LEADER: &[(&str, &str)] = &[("hasleader", "true"), ("client-api-version", "3.7.0")];
/// How long a watch may take to deliver.
const PATIENCE: Duration = Duration::from_secs(60);
/// The oldest version whose progress answers kube-apiserver trusts.
const PROGRESS_SINCE: [u64; 3] = [3, 5, 13];
const PREFIX: &str = "/registry/pods/";

/// The storage layer of one apiserver.
struct Storage {
    _server: Server,
    channel: Channel,
}

impl Storage {
    async fn start(arguments: &[&str]) -> Self {
        let server = Server::subject(arguments);
        let channel = Channel::connect(&server.address()).await.expect("a connection");
        Self {
            _server: server,
            channel,
        }
    }

    async fn txn(&self, compare: pb::Compare, success: Request, failure: Option<Request>) -> pb::TxnResponse {
        let request = pb::TxnRequest {
            compare: vec![compare],
            success: vec![etcd::operation(success)],
            failure: failure.map(etcd::operation).into_iter().collect(),
        };
        self.channel.call(etcd::TXN, &request).await.expect("a txn")
    }

    /// Puts if the key was last changed at `revision`, 0 for a key that does not exist; else reads it.
    async fn optimistic_put(&self, key: &str, value: &str, revision: i64, lease: i64) -> pb::TxnResponse {
        let put = pb::PutRequest {
            lease,
            ..etcd::put(key, value)
        };
        let read = Some(Request::RequestRange(etcd::get(key)));
        self.txn(etcd::mod_revision_is(key, revision), Request::RequestPut(put), read)
            .await
    }

    async fn create(&self, key: &str, value: &str) -> i64 {
        let answer = self.optimistic_put(key, value, 0, 0).await;
        assert!(answer.succeeded, "{key} exists already");
        revision(&answer.header)
    }

    async fn compact(&self, revision: i64) {
        let request = pb::CompactionRequest {
            revision,
            physical: true,
        };
        let compacted: Result<pb::CompactionResponse, _> = self.channel.call(etcd::COMPACT, &request).await;
        compacted.expect("compacts");
    }

    async fn optimistic_delete(&self, key: &str, revision: i64) -> pb::TxnResponse {
        let delete = Request::RequestDeleteRange(etcd::delete(key));
        let read = Some(Request::RequestRange(etcd::get(key)));
        self.txn(etcd::mod_revision_is(key, revision), delete, read).await
    }

    async fn list(&self, request: &pb::RangeRequest) -> Result<pb::RangeResponse, Status> {
        self.channel.call(etcd::RANGE, request).await
    }

    async fn watch(&self, start_revision: i64) -> Watch {
        let mut stream = self
            .channel
            .stream(etcd::WATCH, REQUIRE_LEADER)
            .await
            .expect("a stream");
        let request = pb::WatchCreateRequest {
            key: PREFIX.into(),
            range_end: etcd::prefix_end(PREFIX.as_bytes()).into(),
            start_revision,
            prev_kv: true,
            progress_notify: true,
            ..Default::default()
        };
        stream.send(&etcd::create_watch(request)).expect("a create request");
        let mut watch = Watch { stream };
        let created = watch.next().await;
        assert!(created.created && !created.canceled, "{created:?}");
        watch
    }
}

struct Watch {
    stream: Stream,
}

impl Watch {
    async fn next(&mut self) -> pb::WatchResponse {
        let response = timeout(PATIENCE, self.stream.next()).await.expect("a response in time");
        response.expect("the watch goes on").expect("the watch goes on")
    }

    /// Reads events until there are `count`.
    async fn events(&mut self, count: usize) -> Vec<ringd::proto::mvccpb::Event> {
        let mut events = Vec::new();
        while events.len() < count {
            events.extend(self.next().await.events);
        }
        events
    }
}

fn revision(header: &Option<pb::ResponseHeader>) -> i64 {
    header.as_ref().expect("a header").revision
}

/// The one response of a txn's branch as the range that it is.
fn read_of(answer: &pb::TxnResponse) -> &pb::RangeResponse {
    match answer.responses.as_slice() {
        [
            pb::ResponseOp {
                response: Some(Response::ResponseRange(range)),
            },
        ] => range,
        other => panic!("not one range: {other:?}"),
    }
}

#[test]
fn create_update_and_delete_are_optimistic() {
    block_on(async {
        let storage = Storage::start(&[]).await;
        let key = "/registry/pods/default/one";
        let created = storage.create(key, "first").await;

        let again = storage.optimistic_put(key, "second", 0, 0).await;
        assert!(!again.succeeded);
        let found = &read_of(&again).kvs[0];
        assert_eq!(
            (found.value.as_ref(), found.mod_revision),
            (b"first".as_slice(), created)
        );

        let updated = storage.optimistic_put(key, "second", created, 0).await;
        assert!(updated.succeeded);
        let updated = revision(&updated.header);
        assert_eq!(updated, created + 1);

        let stale = storage.optimistic_delete(key, created).await;
        assert!(!stale.succeeded);
        assert_eq!(read_of(&stale).kvs[0].mod_revision, updated);
        assert_eq!(
            revision(&stale.header),
            updated,
            "a txn that changed nothing has no revision of its own"
        );

        let deleted = storage.optimistic_delete(key, updated).await;
        assert!(deleted.succeeded);
        assert!(matches!(
            &deleted.responses[0].response,
            Some(Response::ResponseDeleteRange(delete)) if delete.deleted == 1
        ));
        let gone = storage.optimistic_delete(key, updated).await;
        assert!(!gone.succeeded && read_of(&gone).kvs.is_empty());
    });
}

#[test]
fn the_compactor_elects_by_version_and_compacts() {
    block_on(async {
        let storage = Storage::start(&[]).await;
        let key = "compact_rev_key";
        for number in 0..4 {
            storage.create(&format!("{PREFIX}{number}"), "value").await;
        }
        let version_is = |version| pb::Compare {
            result: pb::compare::CompareResult::Equal as i32,
            target: pb::compare::CompareTarget::Version as i32,
            key: key.into(),
            target_union: Some(pb::compare::TargetUnion::Version(version)),
            ..Default::default()
        };
        let put = |value: &str| Request::RequestPut(etcd::put(key, value));
        let read = || Some(Request::RequestRange(etcd::get(key)));
        let won = storage.txn(version_is(0), put("0"), read()).await;
        assert!(won.succeeded);
        let lost = storage.txn(version_is(0), put("0"), read()).await;
        assert!(!lost.succeeded);
        assert_eq!(read_of(&lost).kvs[0].version, 1);
        assert!(storage.txn(version_is(1), put("4"), read()).await.succeeded);

        let compaction = pb::CompactionRequest {
            revision: 4,
            physical: false,
        };
        let compacted: pb::CompactionResponse = storage
            .channel
            .call(etcd::COMPACT, &compaction)
            .await
            .expect("compacts");
        assert_eq!(revision(&compacted.header), 7);
        let error = storage
            .channel
            .call::<pb::CompactionResponse>(etcd::COMPACT, &compaction)
            .await
            .unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            (11, "etcdserver: mvcc: required revision has been compacted")
        );
    });
}

#[test]
fn errors_have_the_exact_codes_and_texts() {
    block_on(async {
        let storage = Storage::start(&[]).await;
        for number in 0..4 {
            storage.create(&format!("{PREFIX}{number}"), "value").await;
        }
        storage.compact(4).await;
        for (asked, text) in [
            (3, "etcdserver: mvcc: required revision has been compacted"),
            (100, "etcdserver: mvcc: required revision is a future revision"),
        ] {
            let request = pb::RangeRequest {
                revision: asked,
                limit: 500,
                ..etcd::get_prefix(PREFIX)
            };
            let error = storage.list(&request).await.unwrap_err();
            assert_eq!((error.code, error.message.as_str()), (11, text));
            let reply = storage
                .channel
                .unary(etcd::RANGE_STREAM, request.encode_to_vec().into(), &[])
                .await;
            assert_eq!((reply.status.code, reply.status.message.as_str()), (11, text));
        }
    });
}

#[test]
fn lists_come_in_pages_with_the_count_of_what_remains() {
    block_on(async {
        let storage = Storage::start(&[]).await;
        const KEYS: i64 = 23;
        const PAGE: i64 = 10;
        for number in 0..KEYS {
            storage.create(&format!("{PREFIX}{number:02}"), "value").await;
        }
        storage.create("/registry/services/one", "value").await;
        let pinned = revision(&storage.list(&etcd::get(PREFIX)).await.expect("a read").header);
        let mut request = pb::RangeRequest {
            limit: PAGE,
            ..etcd::get_prefix(PREFIX)
        };
        let (mut seen, mut counts) = (Vec::new(), Vec::new());
        loop {
            let page = storage.list(&request).await.expect("a page");
            counts.push((page.kvs.len() as i64, page.count, page.more));
            seen.extend(page.kvs.iter().map(|kv| kv.key.clone()));
            // Written between two pages: a list at a revision does not see it.
            storage.create(&format!("{PREFIX}zz{}", seen.len()), "later").await;
            if !page.more {
                break;
            }
            let mut after = seen.last().expect("a full page").to_vec();
            after.push(0);
            request = pb::RangeRequest {
                key: after.into(),
                revision: pinned,
                ..request
            };
        }
        assert_eq!(counts, [(10, 23, true), (10, 13, true), (3, 3, false)]);
        assert_eq!(seen.len() as i64, KEYS);

        let count = pb::RangeRequest {
            count_only: true,
            ..etcd::get_prefix(PREFIX)
        };
        assert_eq!(storage.list(&count).await.expect("a count").count, KEYS + 3);
        let keys = pb::RangeRequest {
            keys_only: true,
            ..etcd::get_prefix(PREFIX)
        };
        let keys = storage.list(&keys).await.expect("the keys");
        assert!(keys.kvs.len() as i64 == KEYS + 3 && keys.kvs.iter().all(|kv| kv.value.is_empty()));
    });
}

#[test]
fn a_stream_of_chunks_merges_into_the_unary_answer() {
    block_on(async {
        let storage = Storage::start(&[]).await;
        for number in 0..300 {
            storage
                .create(&format!("{PREFIX}{number:03}"), &"v".repeat(number * 20))
                .await;
        }
        let pinned = revision(&storage.list(&etcd::get(PREFIX)).await.expect("a read").header);
        for request in [
            etcd::get_prefix(PREFIX),
            pb::RangeRequest {
                revision: pinned - 100,
                ..etcd::get_prefix(PREFIX)
            },
            pb::RangeRequest {
                limit: 250,
                ..etcd::get_prefix(PREFIX)
            },
            pb::RangeRequest {
                count_only: true,
                ..etcd::get_prefix(PREFIX)
            },
            etcd::get_prefix("/nothing"),
        ] {
            let unary = storage.list(&request).await.expect("a list");
            let reply = storage
                .channel
                .unary(etcd::RANGE_STREAM, request.encode_to_vec().into(), &[])
                .await;
            assert_eq!(reply.status, Status::ok());
            let mut merged = pb::RangeResponse::default();
            for (place, message) in reply.messages.iter().enumerate() {
                let chunk = pb::RangeStreamResponse::decode(message.clone())
                    .expect("a chunk")
                    .range_response;
                let chunk = chunk.expect("a range response");
                assert_eq!(
                    chunk.header.is_some(),
                    place + 1 == reply.messages.len(),
                    "the last chunk has the header"
                );
                merged.merge(chunk.encode_to_vec().as_slice()).expect("chunks merge");
            }
            assert_eq!(merged, unary);
        }
    });
}

#[test]
fn a_watch_delivers_events_with_previous_values() {
    block_on(async {
        let storage = Storage::start(&[]).await;
        let key = &format!("{PREFIX}watched");
        let created = storage.create(key, "first").await;
        let mut watch = storage.watch(created).await;
        let updated = revision(&storage.optimistic_put(key, "second", created, 0).await.header);
        let deleted = revision(&storage.optimistic_delete(key, updated).await.header);
        storage.create("/registry/services/other", "value").await;

        let events = watch.events(3).await;
        let described: Vec<_> = events
            .iter()
            .map(|event| {
                let kv = event.kv.as_ref().expect("a key");
                let previous = event.prev_kv.as_ref().map(|kv| kv.value.clone());
                (
                    event.r#type,
                    kv.mod_revision,
                    kv.create_revision,
                    kv.value.clone(),
                    previous,
                )
            })
            .collect();
        let text = Bytes::from_static;
        assert_eq!(
            described,
            [
                (0, created, created, text(b"first"), None),
                (0, updated, created, text(b"second"), Some(text(b"first"))),
                (1, deleted, 0, text(b""), Some(text(b"second"))),
            ]
        );
    });
}

#[test]
fn a_watch_of_compacted_history_says_so() {
    block_on(async {
        let storage = Storage::start(&[]).await;
        for number in 0..5 {
            storage.create(&format!("{PREFIX}{number}"), "value").await;
        }
        storage.compact(5).await;
        let mut watch = storage.watch(2).await;
        let ended = watch.next().await;
        assert!(ended.canceled);
        assert_eq!((ended.compact_revision, ended.cancel_reason.as_str()), (5, ""));
    });
}

#[test]
fn progress_is_answered_and_never_ahead() {
    block_on(async {
        let storage = Storage::start(&[]).await;
        let mut watch = storage.watch(0).await;
        let mut slowest = Duration::ZERO;
        for number in 0..50 {
            let written = storage.create(&format!("{PREFIX}{number}"), "value").await;
            let asked = Instant::now();
            watch
                .stream
                .send(&etcd::request_progress())
                .expect("a progress request");
            // etcd does not answer while a watch lags; kube-apiserver asks again every 100 ms.
            let mut received = 0;
            loop {
                let response = match timeout(Duration::from_millis(100), watch.stream.next::<pb::WatchResponse>()).await
                {
                    Err(_) => {
                        watch
                            .stream
                            .send(&etcd::request_progress())
                            .expect("a progress request");
                        continue;
                    }
                    Ok(response) => response.expect("the watch goes on").expect("the watch goes on"),
                };
                assert!(asked.elapsed() < PATIENCE, "no progress to {written}");
                if let Some(event) = response.events.last() {
                    received = event.kv.as_ref().expect("a key").mod_revision;
                } else if revision(&response.header) >= written {
                    assert_eq!(response.watch_id, -1);
                    assert_eq!(received, written, "progress came before the event");
                    break;
                }
            }
            slowest = slowest.max(asked.elapsed());
        }
        println!("the slowest of 50 progress answers took {slowest:?}");
    });
}

#[test]
fn progress_is_notified_without_being_asked() {
    block_on(async {
        let storage = Storage::start(&["--watch-progress-notify-interval=200ms"]).await;
        let mut watch = storage.watch(0).await;
        let written = storage.create("/registry/services/unrelated", "value").await;
        loop {
            let response = watch.next().await;
            assert!(response.events.is_empty() && response.watch_id == 0, "{response:?}");
            if revision(&response.header) >= written {
                break;
            }
        }
    });
}

#[test]
fn one_stream_carries_several_watches() {
    block_on(async {
        let storage = Storage::start(&[]).await;
        let mut watch = storage.watch(0).await;
        let second = pb::WatchCreateRequest {
            key: "compact_rev_key".into(),
            ..Default::default()
        };
        watch
            .stream
            .send(&etcd::create_watch(second))
            .expect("a create request");
        let created = watch.next().await;
        assert_eq!((created.created, created.watch_id), (true, 1));
        storage.create("compact_rev_key", "5").await;
        storage.create(&format!("{PREFIX}one"), "value").await;
        let mut ids = vec![watch.next().await.watch_id, watch.next().await.watch_id];
        ids.sort_unstable();
        assert_eq!(ids, [0, 1]);

        watch.stream.send(&etcd::cancel_watch(1)).expect("a cancel request");
        let canceled = watch.next().await;
        assert!(canceled.canceled && canceled.watch_id == 1);
    });
}

#[test]
fn leases_are_granted_with_ids_and_reused() {
    block_on(async {
        let storage = Storage::start(&[]).await;
        let request = pb::LeaseGrantRequest { ttl: 3660, id: 0 };
        let granted: pb::LeaseGrantResponse = storage
            .channel
            .call(etcd::LEASE_GRANT, &request)
            .await
            .expect("a lease");
        assert!(granted.id > 0 && granted.ttl == 3660, "{granted:?}");
        let before = revision(&granted.header);
        for number in 0..10 {
            let key = format!("/registry/events/default/{number}");
            let put = storage.optimistic_put(&key, "event", 0, granted.id).await;
            assert_eq!((put.succeeded, revision(&put.header)), (true, before + 1 + number));
        }
        let found = storage
            .list(&etcd::get("/registry/events/default/3"))
            .await
            .expect("a read");
        assert_eq!(found.kvs[0].lease, granted.id);
        let request = pb::LeaseTimeToLiveRequest {
            id: granted.id,
            keys: true,
        };
        let left: pb::LeaseTimeToLiveResponse = storage
            .channel
            .call(etcd::LEASE_TIME_TO_LIVE, &request)
            .await
            .expect("the time to live");
        assert!(left.keys.len() == 10 && (3600..=3660).contains(&left.ttl), "{left:?}");
    });
}

#[test]
fn the_version_turns_features_on() {
    block_on(async {
        let storage = Storage::start(&[]).await;
        let status: pb::StatusResponse = storage
            .channel
            .call(etcd::STATUS, &pb::StatusRequest {})
            .await
            .expect("the status");
        let numbers: Vec<u64> = status
            .version
            .split('.')
            .map(|part| part.parse().expect("a semantic version"))
            .collect();
        assert_eq!(numbers.len(), 3, "{}", status.version);
        assert!(numbers.as_slice() >= PROGRESS_SINCE.as_slice(), "{}", status.version);
        assert!(
            status.db_size > 0,
            "the metric of the store's size would be empty: {status:?}"
        );

        let health = storage
            .list(&etcd::get("/registry/health"))
            .await
            .expect("the health check's read");
        assert_eq!(health.count, 0);
    });
}
