//! The rules of `etcd-surface` 4.6, one by one.

use super::setup::*;
use super::*;

#[test]
fn created_comes_first_and_carries_the_header() {
    let mut setup = Setup::new();
    let created = setup.create(key("a"));
    let header = created.header.unwrap();
    assert_eq!(
        (header.cluster_id, header.member_id, header.revision, header.raft_term),
        (11, 12, 1, 3)
    );
    assert_eq!((created.watch_id, created.created, created.canceled), (0, true, false));
    setup.world.write(&[put("a", "1"), put("b", "1")]);
    let sent = setup.settle();
    assert_eq!(sent.len(), 1);
    assert_eq!(
        (sent[0].watch_id, self::header(&sent[0]), mains(&sent[0])),
        (0, 2, vec![2])
    );
}

#[test]
fn ids_are_chosen_per_stream_and_refused_twice() {
    let mut setup = Setup::new();
    let with_id = |watch_id| CreateRequest { watch_id, ..key("a") };
    assert_eq!(setup.create(with_id(1)).watch_id, 1);
    assert_eq!(setup.create(key("a")).watch_id, 0);
    assert_eq!(setup.create(key("a")).watch_id, 2, "1 is in use");
    let refused = setup.create(with_id(1));
    assert_eq!((refused.watch_id, refused.created, refused.canceled), (-1, true, true));
    assert_eq!(
        refused.cancel_reason,
        "mvcc: duplicate watch ID provided on the WatchStream"
    );
    setup.cancel(2);
    assert_eq!(setup.create(key("a")).watch_id, 3, "ids are not chosen again");
    assert_eq!(setup.create(with_id(2)).watch_id, 2, "but may be asked for");
}

#[test]
fn refusals_have_etcds_reasons_in_etcds_order() {
    let mut setup = Setup::new();
    let bad = CreateRequest {
        key: b"b",
        range_end: b"a",
        start_revision: -1,
        refusal: Some("denied"),
        ..CreateRequest::default()
    };
    let reasons = [
        (bad, "etcdserver: mvcc: required revision has been compacted"),
        (
            CreateRequest {
                start_revision: 0,
                ..bad
            },
            "denied",
        ),
        (
            CreateRequest {
                start_revision: 0,
                refusal: None,
                ..bad
            },
            "mvcc: watcher range is empty",
        ),
    ];
    for (request, reason) in reasons {
        let refused = setup.create(request);
        assert_eq!((refused.watch_id, refused.created, refused.canceled), (-1, true, true));
        assert_eq!((&refused.cancel_reason[..], header(&refused)), (reason, 1));
    }
    assert_eq!(setup.hub.sizes(), (1, 0, 0));
}

#[test]
fn an_empty_key_is_the_zero_byte() {
    let mut setup = Setup::new();
    setup.create(key(""));
    setup.create(CreateRequest {
        range_end: b"\0",
        ..key("")
    });
    setup.world.write(&[put("\0", ""), put("a", "")]);
    let sent = setup.settle();
    assert_eq!(
        sent.iter().map(|response| response.events.len()).collect::<Vec<_>>(),
        [1, 2]
    );
}

#[test]
fn a_watch_from_the_past_catches_up_in_one_message() {
    let mut setup = Setup::new();
    for value in ["1", "2", "3"] {
        setup.world.write(&[put("a", value), put("b", value)]);
    }
    setup.create(from("a", 3));
    let sent = setup.settle();
    assert_eq!(sent.len(), 1);
    assert_eq!((header(&sent[0]), mains(&sent[0])), (4, vec![3, 4]));
    setup.world.write(&[put("a", "4")]);
    setup.world.write(&[put("a", "5")]);
    let sent = setup.settle();
    assert_eq!(
        sent.iter()
            .map(|response| (header(response), mains(response)))
            .collect::<Vec<_>>(),
        [(5, vec![5]), (6, vec![6])]
    );
}

#[test]
fn a_watch_from_the_future_waits() {
    let mut setup = Setup::new();
    setup.create(from("a", 4));
    for value in ["1", "2"] {
        setup.world.write(&[put("a", value)]);
        assert_eq!(setup.settle(), []);
        assert_eq!(setup.progress(), [], "nothing on the stream has started");
    }
    setup.world.write(&[put("a", "3")]);
    assert_eq!(setup.settle().iter().flat_map(mains).collect::<Vec<_>>(), [4]);
    assert_eq!(setup.progress().iter().map(header).collect::<Vec<_>>(), [4]);
}

#[test]
fn a_compacted_start_is_created_and_then_canceled() {
    let mut setup = Setup::new();
    for value in ["1", "2", "3"] {
        setup.world.write(&[put("a", value)]);
    }
    setup.world.compact(3);
    let created = setup.create(from("a", 2));
    assert_eq!((created.created, created.canceled, header(&created)), (true, false, 4));
    let sent = setup.settle();
    assert_eq!(sent.len(), 1);
    assert_eq!(
        (sent[0].watch_id, sent[0].canceled, sent[0].compact_revision),
        (0, true, 3)
    );
    assert_eq!((header(&sent[0]), &sent[0].cancel_reason[..]), (0, ""));
    let again = setup.create(CreateRequest {
        watch_id: 0,
        ..from("a", 3)
    });
    assert_eq!(again.watch_id, 1, "the id stays known");
    assert_eq!(
        setup.settle().iter().flat_map(mains).collect::<Vec<_>>(),
        [3, 4],
        "the compact revision itself is there"
    );
    assert_eq!(setup.progress().len(), 1, "a canceled watch holds up no progress");
    let canceled = setup.cancel(0);
    assert_eq!((canceled[0].canceled, header(&canceled[0])), (true, 4));
    assert_eq!(setup.cancel(0), [], "now it is unknown");
}

#[test]
fn deletions_carry_key_and_revision_and_filters_hold() {
    let mut setup = Setup::new();
    let options = |no_put, no_delete| WatchOptions {
        no_put,
        no_delete,
        ..WatchOptions::default()
    };
    setup.create(CreateRequest {
        options: options(true, false),
        ..key("a")
    });
    setup.create(CreateRequest {
        options: options(false, true),
        ..key("a")
    });
    setup.create(CreateRequest {
        options: options(true, true),
        ..key("a")
    });
    setup.world.write(&[put("a", "1")]);
    setup.world.write(&[delete("a")]);
    let sent = setup.settle();
    assert_eq!(
        sent.iter().map(|response| response.watch_id).collect::<Vec<_>>(),
        [1, 0]
    );
    let event = &sent[1].events[0];
    let kv = event.kv.as_ref().unwrap();
    assert_eq!((event.r#type, &kv.key[..], kv.mod_revision), (1, &b"a"[..], 3));
    assert_eq!((kv.create_revision, kv.version, kv.value.len()), (0, 0, 0));
}

#[test]
fn prev_kv_comes_from_window_and_pages_and_ends_with_compaction() {
    for first_main in [2, 4, 6] {
        let mut setup = Setup::new();
        setup.world.write(&[put("a", "1")]);
        setup.world.write(&[put("b", "1")]);
        setup.world.write(&[put("a", "2")]);
        setup.world.write(&[delete("a")]);
        setup.world.checkpoint(first_main);
        let options = WatchOptions {
            prev_kv: true,
            ..WatchOptions::default()
        };
        setup.create(CreateRequest {
            options,
            ..from("a", 2)
        });
        let previous = |sent: &[WatchResponse]| -> Vec<Option<Vec<u8>>> {
            let events = sent.iter().flat_map(|response| response.events.clone());
            events.map(|event| event.prev_kv.map(|kv| kv.value.to_vec())).collect()
        };
        let sent = setup.settle();
        assert_eq!(
            previous(&sent),
            [None, Some(b"1".to_vec()), Some(b"2".to_vec())],
            "from {first_main}"
        );
        // The revision before the event at 4 is 3: it counts as long as the compact revision is not above it.
        setup.world.compact(3);
        setup.create(CreateRequest {
            options,
            ..from("a", 4)
        });
        assert_eq!(previous(&setup.settle()), [Some(b"1".to_vec()), Some(b"2".to_vec())]);
        setup.world.compact(4);
        setup.world.checkpoint(first_main);
        setup.create(CreateRequest {
            options,
            ..from("a", 4)
        });
        assert_eq!(previous(&setup.settle()), [None, Some(b"2".to_vec())]);
    }
}

#[test]
fn a_revision_is_split_only_for_watches_that_ask() {
    let mut setup = Setup::new();
    let fragment = WatchOptions {
        fragment: true,
        ..WatchOptions::default()
    };
    setup.create(CreateRequest {
        range_end: b"\0",
        ..key("a")
    });
    setup.create(CreateRequest {
        range_end: b"\0",
        options: fragment,
        ..key("a")
    });
    let value = "x".repeat(100);
    setup
        .world
        .write(&["a", "b", "c", "d", "e"].map(|key| put(key, &value)));
    let sent = setup.settle();
    let shape: Vec<_> = sent
        .iter()
        .map(|one| (one.watch_id, one.events.len(), one.fragment))
        .collect();
    assert_eq!(shape, [(0, 5, false), (1, 2, true), (1, 2, true), (1, 1, false)]);
    for piece in &sent[1..] {
        assert!(piece.encoded_len() < CONFIG.fragment_bytes);
        assert_eq!(header(piece), 2);
    }
    setup.world.write(&[put("a", &"x".repeat(1000))]);
    let sent = setup.settle();
    assert_eq!(
        sent.iter().map(|one| one.fragment).collect::<Vec<_>>(),
        [false, false],
        "one event is not split"
    );
}

#[test]
fn closing_a_stream_forgets_everything() {
    let mut setup = Setup::new();
    let options = WatchOptions {
        progress_notify: true,
        ..WatchOptions::default()
    };
    setup.create(CreateRequest { options, ..key("a") });
    setup.create(CreateRequest {
        range_end: b"b",
        ..from("a", 1)
    });
    setup.hub.request_progress(1);
    setup.hub.close(1);
    setup.hub.close(1);
    setup.world.write(&[put("a", "1")]);
    assert_eq!(setup.settle(), []);
    assert_eq!((setup.hub.sizes(), setup.hub.next_tick()), ((0, 0, 0), None));
    assert_eq!((setup.hub.groups.len(), setup.hub.waiting.len()), (1, 0));
    let view = setup.world.view();
    setup.hub.create(1, key("a"), &view, T0, &mut setup.sink);
    setup.hub.writable(1);
    setup.hub.request_progress(1);
    assert_eq!(setup.settle(), []);
}

#[test]
fn a_jump_of_the_store_moves_watches_to_the_pages() {
    let mut setup = Setup::new();
    setup.create(key("a"));
    setup.create(from("a", 100));
    for value in ["1", "2", "3"] {
        setup.world.write(&[put("a", value)]);
    }
    // As after the installation of a snapshot: the window starts behind everything.
    setup.world.checkpoint(5);
    let sent = setup.settle();
    assert_eq!(
        sent.iter().map(|one| (one.watch_id, mains(one))).collect::<Vec<_>>(),
        [(0, vec![2, 3, 4])]
    );
    setup.world.write(&[put("a", "4")]);
    assert_eq!(setup.settle().iter().flat_map(mains).collect::<Vec<_>>(), [5]);
}

#[test]
fn a_lost_record_cancels_the_watches_that_need_it() {
    let mut setup = Setup::new();
    for value in ["1", "2", "3"] {
        setup.world.write(&[put("a", value)]);
    }
    setup.world.checkpoint(5);
    let options = WatchOptions {
        prev_kv: true,
        ..WatchOptions::default()
    };
    setup.create(from("a", 3));
    setup.create(CreateRequest {
        options,
        ..from("a", 3)
    });
    // The index names a record that neither the window nor the pages have.
    let index = [NewRecord {
        id: RecordId::new(2, 7),
        key: b"a"[..].into(),
        ..NewRecord::default()
    }];
    let view = setup.world.view();
    let mut failures = Vec::new();
    for _ in 0..9 {
        let mut reader = Reader {
            cache: &mut setup.world.cache,
            history: &index,
            compact_revision: -1,
            damaged: &[],
        };
        let outcome = setup.hub.advance(&view, &mut reader, &mut setup.sink, T0);
        failures.extend(outcome.failures);
        setup.world.load(&outcome.missing);
    }
    let sent = setup.sink.take(1);
    let reason = "the record of revision 2.7 is lost although it was not compacted";
    assert_eq!(
        failures.iter().map(|failure| failure.to_string()).collect::<Vec<_>>(),
        [reason, reason]
    );
    assert_eq!(
        (sent[0].watch_id, sent[0].canceled, &sent[0].cancel_reason[..]),
        (1, true, reason)
    );
    assert_eq!((sent[1].watch_id, mains(&sent[1])), (0, vec![3, 4]));
    assert_eq!(sent.len(), 2);
}

/// A page that can't be loaded ends the watches that need it, once, and no others; it is not asked for again and again.
#[test]
fn a_damaged_page_ends_the_watches_that_need_it() {
    let mut setup = Setup::new();
    for value in ["1", "2", "3"] {
        setup.world.write(&[put("a", value)]);
    }
    setup.world.checkpoint(5);
    setup.create(from("a", 2));
    setup.create(key("a"));
    setup.world.write(&[put("a", "4")]);
    let view = setup.world.view();
    let (mut damaged, mut failures) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        let mut reader = Reader {
            cache: &mut setup.world.cache,
            history: &setup.world.history,
            compact_revision: -1,
            damaged: &damaged,
        };
        let outcome = setup.hub.advance(&view, &mut reader, &mut setup.sink, T0);
        failures.extend(outcome.failures);
        damaged = outcome.missing;
    }
    assert!(
        matches!(failures[..], [HistoryFailure::Read(ReadFailure::Corrupt(_))]),
        "{failures:?}"
    );
    let sent = setup.sink.take(1);
    assert_eq!((sent[0].watch_id, mains(&sent[0])), (1, vec![5]));
    assert_eq!((sent[1].watch_id, sent[1].canceled), (0, true));
    assert!(sent[1].cancel_reason.contains("scratched"), "{sent:?}");
    assert_eq!((sent.len(), damaged.len()), (2, 0));
}

/// A watch that is made while a batch is half sent, in the place of one that was canceled, gets nothing of it.
#[test]
fn a_new_watch_does_not_inherit_from_a_canceled_one() {
    let mut setup = Setup::new();
    setup.hub = small_hub(1);
    setup.hub.open(1, T0);
    for _ in 0..20 {
        setup.create(key("a"));
    }
    setup.world.write(&[put("a", "1")]);
    while setup.sink.queues[&1].is_empty() {
        assert!(setup.world.step(&mut setup.hub, &mut setup.sink, T0));
    }
    let sent = setup.sink.take(1);
    assert!(sent.len() < 20 && sent.iter().all(|one| one.watch_id < 19));
    setup.cancel(19);
    assert_eq!(setup.create(key("b")).watch_id, 20);
    assert!(setup.settle().iter().all(|one| one.watch_id < 19));
    setup.world.write(&[put("b", "1")]);
    assert_eq!(setup.settle().iter().map(|one| one.watch_id).collect::<Vec<_>>(), [20]);
}

/// A compaction that the reader learns of later than the view ends what is read meanwhile.
#[test]
fn what_was_read_before_a_compaction_does_not_count() {
    let mut setup = Setup::new();
    for value in ["1", "2", "3"] {
        setup.world.write(&[put("a", value)]);
    }
    setup.world.checkpoint(5);
    setup.create(from("a", 2));
    let view = setup.world.view();
    setup.world.step(&mut setup.hub, &mut setup.sink, T0);
    // The pages of the view still hold everything.
    let mut reader = Reader {
        cache: &mut setup.world.cache,
        history: &setup.world.history,
        compact_revision: 4,
        damaged: &[],
    };
    let outcome = setup.hub.advance(&view, &mut reader, &mut setup.sink, T0);
    assert!(outcome.missing.is_empty());
    let sent = setup.sink.take(1);
    assert_eq!(
        sent.iter()
            .map(|one| (one.canceled, one.compact_revision))
            .collect::<Vec<_>>(),
        [(true, 4)]
    );
}
