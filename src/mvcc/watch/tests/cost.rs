//! What things cost: by matching watches, by cursors, never by all watches or by what a slow client has not read.

use super::*;

fn now() -> Duration {
    Duration::ZERO
}

/// 20 000 watches on 100 streams, half on keys and half on ranges: a change costs by those that match.
#[test]
fn a_change_costs_by_matching_watches() {
    let mut world = World::new();
    let mut hub = Hub::new(CONFIG, 1);
    let mut sink = Sink::default();
    let view = world.view();
    for stream in 0..100 {
        hub.open(stream, now());
        for number in 0..200u64 {
            let name = format!("/registry/{:04}/", (stream * 200 + number) / 20);
            let end = format!("/registry/{:04}0", (stream * 200 + number) / 20);
            let request = CreateRequest {
                key: name.as_bytes(),
                range_end: if number % 2 == 0 { end.as_bytes() } else { b"" },
                ..CreateRequest::default()
            };
            hub.create(stream, request, &view, now(), &mut sink);
        }
    }
    assert_eq!(hub.sizes(), (100, 20_000, 0));
    world.settle(&mut hub, &mut sink, now());
    let before = hub.counters();
    for number in 0..100 {
        world.write(&[put(&format!("/registry/{:04}/pod", number * 7), "x")]);
    }
    world.settle(&mut hub, &mut sink, now());
    let after = hub.counters();
    assert_eq!(after.records - before.records, 100);
    assert_eq!(after.events - before.events, 100 * 10, "ten ranges hold each key");
    let steps = (after.search_steps - before.search_steps) / 100;
    assert!(
        steps <= 60,
        "{steps} steps of search per change, among 1000 ranges and 10 000 watches of keys"
    );
    let before = hub.counters();
    for _ in 0..100 {
        world.write(&[put("/elsewhere", "x")]);
    }
    world.settle(&mut hub, &mut sink, now());
    let after = hub.counters();
    assert_eq!(after.messages, before.messages);
    assert!(after.search_steps - before.search_steps <= 100 * 60);
}

/// Watches that lag at the same place share one scan, and those that meet go on together.
#[test]
fn laggards_share_scans() {
    let mut world = World::new();
    for number in 0..500 {
        world.write(&[put(&format!("k{}", number % 10), "x")]);
    }
    let mut hub = Hub::new(CONFIG, world.revision);
    let mut sink = Sink::default();
    hub.open(1, now());
    let view = world.view();
    for number in 0..1000 {
        let key = format!("k{}", number % 10);
        let request = CreateRequest {
            key: key.as_bytes(),
            // Ten different places, close to each other.
            start_revision: 2 + number % 10,
            ..CreateRequest::default()
        };
        hub.create(1, request, &view, now(), &mut sink);
    }
    world.settle(&mut hub, &mut sink, now());
    let counters = hub.counters();
    assert_eq!(hub.sizes(), (1, 1000, 0));
    assert_eq!(
        counters.events,
        1000 * 50,
        "each watch gets the fifty changes of its key"
    );
    assert!(
        counters.records <= 600,
        "{} records looked at for 500",
        counters.records
    );
}

/// What is kept for a stream that reads nothing does not grow with what it does not read, and it gets all of it later.
#[test]
fn a_stalled_stream_costs_cursors_only() {
    let mut world = World::new();
    let mut hub = Hub::new(CONFIG, 1);
    let mut sink = Sink::default();
    let view = world.view();
    for stream in 0..10 {
        hub.open(stream, now());
        let room = if stream < 5 { 300 } else { usize::MAX };
        sink.room.insert(stream, room);
        for _ in 0..200 {
            let options = WatchOptions {
                prev_kv: true,
                ..WatchOptions::default()
            };
            let request = CreateRequest {
                range_end: b"\0",
                options,
                ..CreateRequest {
                    key: b"k",
                    ..Default::default()
                }
            };
            hub.create(stream, request, &view, now(), &mut sink);
        }
    }
    let mut kept = Vec::new();
    for round in 0..40 {
        for number in 0..10 {
            world.write(&[put(&format!("k{number}"), &"x".repeat(100))]);
        }
        if round % 10 == 9 {
            world.checkpoint(world.revision - 5);
        }
        world.settle(&mut hub, &mut sink, now());
        for stream in 5..10 {
            let events: usize = sink.take(stream).iter().map(|response| response.events.len()).sum();
            assert_eq!(events, 200 * 10);
        }
        kept.push((
            hub.groups.len(),
            hub.in_step.capacity() + hub.spare.as_ref().map_or(0, |batch| batch.capacity()),
        ));
    }
    let (groups, _) = kept[0];
    assert!(kept.iter().all(|(count, _)| *count == groups), "{kept:?}");
    let bound = 64 * 1024 + 2 * crate::limits::WATCH_BATCH_BYTES;
    assert!(kept.iter().all(|(_, bytes)| *bytes <= bound), "{kept:?}");
    assert!(
        (0..5).all(|stream| sink.queues[&stream].len() <= 301),
        "a full stream gets nothing more"
    );
    let mut events = 0;
    sink.room.clear();
    for stream in 0..5 {
        hub.writable(stream);
    }
    world.settle(&mut hub, &mut sink, now());
    for stream in 0..5 {
        events += sink
            .take(stream)
            .iter()
            .map(|response| response.events.len())
            .sum::<usize>();
    }
    assert_eq!(events, 5 * 200 * 400, "nothing is lost");
    assert_eq!(hub.sizes(), (10, 2000, 0));
}

/// One call does a bounded part of the work, however much there is, and gets on with all of it.
#[test]
fn a_call_is_bounded() {
    let mut world = World::new();
    for _ in 0..20 {
        let keys: Vec<_> = (0..30).map(|number| put(&format!("k{number:02}"), "x")).collect();
        world.write(&keys);
    }
    world.checkpoint(10);
    let mut hub = small_hub(world.revision);
    let mut sink = Sink::default();
    hub.open(1, now());
    let view = world.view();
    let request = CreateRequest {
        key: b"k",
        range_end: b"l",
        start_revision: 2,
        ..CreateRequest::default()
    };
    (0..3).for_each(|_| hub.create(1, request, &view, now(), &mut sink));
    let mut last = hub.counters();
    let mut calls = 0;
    while world.step(&mut hub, &mut sink, now()) {
        let counters = hub.counters();
        assert!(counters.records - last.records <= 11 && counters.messages - last.messages <= 11);
        last = counters;
        calls += 1;
    }
    assert!(calls > 100, "{calls}");
    let sent = sink.take(1);
    assert_eq!(
        sent.iter().map(|response| response.events.len()).sum::<usize>(),
        3 * 600
    );
    assert!(
        sent.iter().all(|response| response.events.len() % 30 == 0),
        "revisions are whole"
    );
}

/// A batch in one message holds at most etcd's thousand revisions.
#[test]
fn a_message_holds_a_thousand_revisions() {
    let mut world = World::new();
    for _ in 0..2500 {
        world.write(&[put("k", "x")]);
    }
    let mut hub = Hub::new(CONFIG, world.revision);
    let mut sink = Sink::default();
    hub.open(1, now());
    let request = CreateRequest {
        key: b"k",
        start_revision: 1,
        ..CreateRequest::default()
    };
    hub.create(1, request, &world.view(), now(), &mut sink);
    world.settle(&mut hub, &mut sink, now());
    let sent = sink.take(1);
    assert_eq!(
        sent.iter().map(|response| response.events.len()).collect::<Vec<_>>(),
        [0, 1000, 1000, 500]
    );
    assert!(
        sent.iter()
            .all(|response| response.header.as_ref().unwrap().revision == 2501)
    );
}

/// What happened while a core had no watches is not looked at when it gets one.
#[test]
fn a_first_watch_does_not_look_back() {
    let mut world = World::new();
    let mut hub = Hub::new(CONFIG, 1);
    let mut sink = Sink::default();
    hub.open(1, now());
    for first_main in [2, 201] {
        for _ in 0..100 {
            world.write(&[put("k", "x")]);
        }
        world.checkpoint(first_main);
        let request = CreateRequest {
            key: b"k",
            ..CreateRequest::default()
        };
        hub.create(1, request, &world.view(), now(), &mut sink);
        hub.request_progress(1);
        world.settle(&mut hub, &mut sink, now());
        assert_eq!(hub.counters().records, 0);
        let progress = sink.take(1).pop().unwrap();
        assert_eq!(
            (progress.watch_id, progress.header.unwrap().revision),
            (-1, world.revision)
        );
        hub.cancel(1, if first_main == 2 { 0 } else { 1 }, &world.view(), &mut sink);
    }
}
