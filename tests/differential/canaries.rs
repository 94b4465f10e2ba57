//! The comparison itself under test: a changed answer, a missing event and a wrong order have to be noticed.

use bytes::Bytes;

use super::pair::{Pair, Tampering};
use crate::support::{block_on, etcd, grpc::Reply, server::Program};

/// How many requests a canary run sends; the change is made to a request before the last.
const COUNT: u64 = 400;
const SEED: u64 = 5;

fn must_be_noticed(name: &str, change: Tampering) {
    block_on(async {
        let mut pair = Pair::start(Program::Reference).await;
        pair.tamper(change);
        let difference = pair.run_random(SEED, COUNT).await.err();
        let text = difference
            .unwrap_or_else(|| panic!("{name}: nobody noticed"))
            .to_string();
        assert!(
            text.contains(&format!("RINGD_DIFFERENTIAL={SEED}:{COUNT}")),
            "no way to repeat it in: {text}"
        );
        println!("{name}: {text}");
    });
}

/// True for a put that succeeded; such an answer is a header, and the previous value if that was asked for.
fn is_message(reply: &Reply) -> bool {
    reply.status.code == 0 && reply.messages.first().is_some_and(|message| message.len() > 2)
}

#[test]
fn a_changed_byte_is_noticed() {
    must_be_noticed("a changed byte", |_, reply| {
        let changes = is_message(reply);
        if changes {
            let mut bytes = reply.messages[0].to_vec();
            // Of the cluster's id, which begins after the header's tag and length and its own tag.
            bytes[3] ^= 1;
            reply.messages[0] = Bytes::from(bytes);
        }
        changes
    });
}

#[test]
fn an_encoding_that_is_not_canonical_is_noticed() {
    must_be_noticed("an unknown field", |_, reply| {
        let changes = is_message(reply);
        if changes {
            let mut bytes = reply.messages[0].to_vec();
            bytes.extend([0xf8, 0x7f, 1]);
            reply.messages[0] = Bytes::from(bytes);
        }
        changes
    });
}

#[test]
fn another_error_text_is_noticed() {
    must_be_noticed("another error text", |_, reply| {
        let changes = reply.status.code > 0;
        if changes {
            reply.status.message.push('.');
        }
        changes
    });
}

#[test]
fn another_hash_is_noticed() {
    must_be_noticed("another hash", |method, reply| {
        let changes = method == etcd::HASH_KV && is_message(reply);
        if changes {
            let mut bytes = reply.messages[0].to_vec();
            let place = bytes.iter().position(|byte| *byte == 0x10).expect("the hash's tag");
            bytes[place + 1] ^= 1;
            reply.messages[0] = Bytes::from(bytes);
        }
        changes
    });
}

#[test]
fn a_lost_event_is_noticed() {
    block_on(async {
        let mut pair = Pair::start(Program::Reference).await;
        pair.lose_an_event();
        let difference = pair
            .run_random(SEED, COUNT)
            .await
            .expect_err("a lost event is noticed")
            .to_string();
        assert!(difference.contains("received different things"), "{difference}");
    });
}
