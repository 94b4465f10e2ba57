//! The `etcd-client` crate with the program under test: keys, transactions, watches, leases.

#[path = "../../support/server.rs"]
#[allow(dead_code)]
mod server;

use std::time::Duration;

use etcd_client::{
    Client, CompactionOptions, Compare, CompareOp, DeleteOptions, Error, EventType, GetOptions, LeaseGrantOptions,
    LeaseTimeToLiveOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, WatchOptions, WatchStream,
};
use server::Server;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt;

const PATIENCE: Duration = Duration::from_secs(60);

async fn start(arguments: &[&str]) -> (Server, Client) {
    let server = Server::subject(arguments);
    let client = Client::connect([server.address()], None).await.expect("a client");
    (server, client)
}

async fn fill(client: &mut Client, keys: &[(&str, &str)]) {
    for (key, value) in keys {
        client.put(*key, *value, None).await.expect("a put");
    }
}

#[tokio::test]
async fn puts_answer_with_the_previous_value() {
    let (_server, mut client) = start(&[]).await;
    let first = client.put("key", "one", None).await.unwrap();
    assert!(first.prev_key().is_none());
    let mut second = client
        .put("key", "two", Some(PutOptions::new().with_prev_key()))
        .await
        .unwrap();
    let previous = second.take_prev_key().expect("a previous value");
    assert_eq!(
        (previous.key_str().unwrap(), previous.value_str().unwrap()),
        ("key", "one")
    );
    let revision = |header: Option<&etcd_client::ResponseHeader>| header.expect("a header").revision();
    assert_eq!(revision(second.header()), revision(first.header()) + 1);
    client
        .put("key", "", Some(PutOptions::new().with_ignore_value()))
        .await
        .unwrap();
    let found = client.get("key", None).await.unwrap();
    assert_eq!(
        (found.kvs()[0].value_str().unwrap(), found.kvs()[0].version()),
        ("two", 3)
    );
}

#[tokio::test]
async fn gets_with_every_option() {
    let (_server, mut client) = start(&[]).await;
    fill(
        &mut client,
        &[("get1", "c"), ("get2", "b"), ("get3", "a"), ("other", "x")],
    )
    .await;
    let values = |answer: &etcd_client::GetResponse| -> Vec<String> {
        answer
            .kvs()
            .iter()
            .map(|kv| kv.value_str().unwrap().to_string())
            .collect()
    };
    let prefix = || GetOptions::new().with_prefix();
    let all = client.get("get", Some(prefix())).await.unwrap();
    assert_eq!(
        (values(&all), all.count(), all.more()),
        (vec!["c".into(), "b".into(), "a".into()], 3, false)
    );
    let limited = client.get("get", Some(prefix().with_limit(2))).await.unwrap();
    assert_eq!(
        (values(&limited), limited.count(), limited.more()),
        (vec!["c".into(), "b".into()], 3, true)
    );
    let sorted = client
        .get("get", Some(prefix().with_sort(SortTarget::Value, SortOrder::Ascend)))
        .await
        .unwrap();
    assert_eq!(values(&sorted), ["a", "b", "c"]);
    let newest = client
        .get("get", Some(prefix().with_sort(SortTarget::Mod, SortOrder::Descend)))
        .await
        .unwrap();
    assert_eq!(values(&newest), ["a", "b", "c"]);
    let counted = client.get("get", Some(prefix().with_count_only())).await.unwrap();
    assert_eq!((counted.kvs().len(), counted.count()), (0, 3));
    let keys = client.get("get", Some(prefix().with_keys_only())).await.unwrap();
    assert!(keys.kvs().len() == 3 && keys.kvs().iter().all(|kv| kv.value().is_empty()));
    let from = client
        .get("get3", Some(GetOptions::new().with_from_key()))
        .await
        .unwrap();
    assert_eq!(values(&from), ["a", "x"]);
    let range = client
        .get("get1", Some(GetOptions::new().with_range("get3")))
        .await
        .unwrap();
    assert_eq!(values(&range), ["c", "b"]);
    let past = client.get("get", Some(prefix().with_revision(3))).await.unwrap();
    assert_eq!(values(&past), ["c", "b"]);
    let late = client
        .get("get", Some(prefix().with_min_mod_revision(4).with_serializable()))
        .await
        .unwrap();
    assert_eq!(values(&late), ["a"]);
    let missing = client.get("missing", None).await.unwrap();
    assert!(missing.kvs().is_empty() && missing.count() == 0);
}

#[tokio::test]
async fn deletes_of_keys_and_ranges() {
    let (_server, mut client) = start(&[]).await;
    fill(
        &mut client,
        &[("del1", "a"), ("del2", "b"), ("del3", "c"), ("keep", "d")],
    )
    .await;
    let one = client
        .delete("del1", Some(DeleteOptions::new().with_prev_key()))
        .await
        .unwrap();
    assert_eq!((one.deleted(), one.prev_kvs()[0].value_str().unwrap()), (1, "a"));
    assert_eq!(client.delete("del1", None).await.unwrap().deleted(), 0);
    assert_eq!(
        client
            .delete("del", Some(DeleteOptions::new().with_prefix()))
            .await
            .unwrap()
            .deleted(),
        2
    );
    assert_eq!(
        client
            .get("", Some(GetOptions::new().with_all_keys()))
            .await
            .unwrap()
            .count(),
        1
    );
}

#[tokio::test]
async fn transactions_take_the_branch_that_holds() {
    let (_server, mut client) = start(&[]).await;
    fill(&mut client, &[("key", "one")]).await;
    let txn = |value: &str| {
        Txn::new()
            .when([
                Compare::value("key", CompareOp::Equal, value),
                Compare::version("key", CompareOp::Greater, 0),
            ])
            .and_then([
                TxnOp::put("key", "two", Some(PutOptions::new().with_prev_key())),
                TxnOp::get("key", None),
            ])
            .or_else([TxnOp::get("key", None)])
    };
    let held = client.txn(txn("one")).await.unwrap();
    assert!(held.succeeded());
    match held.op_responses().as_slice() {
        [TxnOpResponse::Put(put), TxnOpResponse::Get(get)] => {
            assert_eq!(put.prev_key().expect("a previous value").value_str().unwrap(), "one");
            assert_eq!(
                get.kvs()[0].value_str().unwrap(),
                "two",
                "a read sees the writes before it"
            );
        }
        other => panic!("{other:?}"),
    }
    let failed = client.txn(txn("one")).await.unwrap();
    assert!(!failed.succeeded());
    match failed.op_responses().as_slice() {
        [TxnOpResponse::Get(get)] => assert_eq!(get.kvs()[0].value_str().unwrap(), "two"),
        other => panic!("{other:?}"),
    }
    let nested = Txn::new().and_then([TxnOp::txn(txn("two")), TxnOp::delete("key", None)]);
    let nested = client.txn(nested).await.unwrap_err();
    assert!(
        nested
            .to_string()
            .contains("etcdserver: duplicate key given in txn request"),
        "{nested}"
    );
}

#[tokio::test]
async fn compacted_revisions_are_refused() {
    let (_server, mut client) = start(&[]).await;
    fill(&mut client, &[("key", "one"), ("key", "two"), ("key", "three")]).await;
    client
        .compact(3, Some(CompactionOptions::new().with_physical()))
        .await
        .unwrap();
    let error = client
        .get("key", Some(GetOptions::new().with_revision(2)))
        .await
        .unwrap_err();
    match error {
        Error::GRpcStatus(status) => {
            assert_eq!(
                status.message(),
                "etcdserver: mvcc: required revision has been compacted"
            );
        }
        other => panic!("{other:?}"),
    }
    let kept = client
        .get("key", Some(GetOptions::new().with_revision(3)))
        .await
        .unwrap();
    assert_eq!(kept.kvs()[0].value_str().unwrap(), "two");
}

/// The next response that is more than the confirmation of a create request.
async fn next(stream: &mut WatchStream) -> etcd_client::WatchResponse {
    loop {
        let response = timeout(PATIENCE, stream.next()).await.expect("a response in time");
        let response = response.expect("the watch goes on").expect("no error");
        if !response.created() {
            return response;
        }
    }
}

#[tokio::test]
async fn watches_receive_puts_and_deletes() {
    let (_server, mut client) = start(&[]).await;
    let mut stream = client
        .watch("watch", Some(WatchOptions::new().with_prefix().with_prev_key()))
        .await
        .unwrap();
    // The server numbers the watches of a stream from 0.
    let (id, mut writer) = (0, client.kv_client());
    writer.put("watch1", "one", None).await.unwrap();
    writer.put("elsewhere", "x", None).await.unwrap();
    writer.put("watch1", "two", None).await.unwrap();
    writer.delete("watch1", None).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let response = next(&mut stream).await;
        assert_eq!(response.watch_id(), id);
        for event in response.events() {
            let kv = event.kv().expect("a key");
            let previous = event.prev_kv().map(|kv| kv.value_str().unwrap().to_string());
            seen.push((event.event_type(), kv.value_str().unwrap().to_string(), previous));
        }
    }
    let text = |text: &str| text.to_string();
    assert_eq!(
        seen,
        [
            (EventType::Put, text("one"), None),
            (EventType::Put, text("two"), Some(text("one"))),
            (EventType::Delete, text(""), Some(text("two"))),
        ]
    );
    stream.request_progress().await.unwrap();
    let progress = next(&mut stream).await;
    assert!(progress.events().is_empty() && progress.watch_id() == -1);
    stream.cancel(id).await.unwrap();
    let canceled = next(&mut stream).await;
    assert!(canceled.canceled() && canceled.watch_id() == id);
}

#[tokio::test]
async fn watches_start_in_the_past_and_end_by_compaction() {
    let (_server, mut client) = start(&[]).await;
    fill(
        &mut client,
        &[("key", "one"), ("key", "two"), ("key", "three"), ("key", "four")],
    )
    .await;
    let mut stream = client
        .watch("key", Some(WatchOptions::new().with_start_revision(3)))
        .await
        .unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let response = next(&mut stream).await;
        seen.extend(response.events().iter().map(|event| event.kv().unwrap().mod_revision()));
    }
    assert_eq!(seen, [3, 4, 5]);
    client.compact(4, None).await.unwrap();
    let mut late = client
        .watch("key", Some(WatchOptions::new().with_start_revision(2)))
        .await
        .unwrap();
    let ended = next(&mut late).await;
    assert!(ended.canceled() && ended.compact_revision() == 4);
}

#[tokio::test]
async fn leases_are_granted_kept_alive_and_revoked() {
    let (_server, mut client) = start(&[]).await;
    let lease = client
        .lease_grant(100, Some(LeaseGrantOptions::new().with_id(77)))
        .await
        .unwrap();
    assert_eq!((lease.id(), lease.ttl()), (77, 100));
    client
        .put("leased", "value", Some(PutOptions::new().with_lease(77)))
        .await
        .unwrap();
    let left = client
        .lease_time_to_live(77, Some(LeaseTimeToLiveOptions::new().with_keys()))
        .await
        .unwrap();
    assert_eq!(
        (left.granted_ttl(), left.keys()),
        (100, [b"leased".to_vec()].as_slice())
    );
    let leases: Vec<i64> = client
        .leases()
        .await
        .unwrap()
        .leases()
        .iter()
        .map(|lease| lease.id())
        .collect();
    assert_eq!(leases, [77]);
    let (mut keeper, mut answers) = client.lease_keep_alive(77).await.unwrap();
    keeper.keep_alive().await.unwrap();
    let alive = answers.message().await.unwrap().expect("an answer");
    assert_eq!((alive.id(), alive.ttl()), (77, 100));
    client.lease_revoke(77).await.unwrap();
    assert_eq!(client.get("leased", None).await.unwrap().count(), 0);
    keeper.keep_alive().await.unwrap();
    assert_eq!(answers.message().await.unwrap().expect("an answer").ttl(), 0);
    let gone = client.lease_revoke(77).await.unwrap_err();
    assert!(
        gone.to_string().contains("etcdserver: requested lease not found"),
        "{gone}"
    );
}

#[tokio::test]
async fn a_lease_that_is_not_kept_alive_takes_its_keys() {
    let (_server, mut client) = start(&[]).await;
    let mut stream = client.watch("leased", None).await.unwrap();
    let began = Instant::now();
    let lease = client.lease_grant(5, None).await.unwrap();
    client
        .put("leased", "value", Some(PutOptions::new().with_lease(lease.id())))
        .await
        .unwrap();
    let mut kinds = Vec::new();
    while kinds.len() < 2 {
        let response = next(&mut stream).await;
        kinds.extend(response.events().iter().map(|event| event.event_type()));
    }
    assert_eq!(kinds, [EventType::Put, EventType::Delete]);
    let lasted = began.elapsed();
    assert!(lasted >= Duration::from_secs(5), "it ended after {lasted:?}");
    let left = client.lease_time_to_live(lease.id(), None).await.unwrap();
    assert_eq!(left.ttl(), -1);
}

#[tokio::test]
async fn a_restart_is_survived_by_the_same_client() {
    let (mut server, mut client) = start(&[]).await;
    fill(&mut client, &[("key", "before")]).await;
    assert!(server.stop().success(), "SIGTERM is an orderly end");
    server.restart();
    let deadline = Instant::now() + PATIENCE;
    let found = loop {
        match client.get("key", None).await {
            Ok(found) => break found,
            Err(error) if Instant::now() > deadline => panic!("{error}"),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    };
    assert_eq!(found.kvs()[0].value_str().unwrap(), "before");
}
