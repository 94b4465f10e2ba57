//! The rules of progress: told in intervals, and asked for.

use super::setup::*;
use super::*;

#[test]
fn progress_is_told_to_quiet_watches_in_even_intervals() {
    let mut setup = Setup::new();
    let options = WatchOptions {
        progress_notify: true,
        ..WatchOptions::default()
    };
    setup.create(key("a"));
    assert_eq!(setup.hub.next_tick(), None);
    setup.create(CreateRequest { options, ..key("a") });
    setup.create(CreateRequest {
        options,
        ..from("a", 100)
    });
    let first = setup.hub.next_tick().unwrap();
    assert!(first >= CONFIG.progress_interval && first < CONFIG.progress_interval.mul_f64(1.1));
    setup.world.write(&[put("b", "1")]);
    assert_eq!(setup.settle_at(first - Duration::from_millis(1)), []);
    let sent = setup.settle_at(first);
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].watch_id, header(&sent[0]), sent[0].events.len()), (1, 2, 0));
    let second = setup.hub.next_tick().unwrap();
    assert_eq!(second, first * 2);
    setup.world.write(&[put("a", "1")]);
    let sent = setup.settle_at(second);
    assert_eq!(
        sent.iter().map(|one| one.events.len()).collect::<Vec<_>>(),
        [1, 1],
        "events instead of progress"
    );
    assert_eq!(setup.settle_at(first * 3).iter().map(header).collect::<Vec<_>>(), [3]);
    setup.sink.room.insert(1, 0);
    setup.world.write(&[put("b", "1")]);
    assert_eq!(setup.settle_at(first * 4), [], "a full stream misses a tick");
    setup.cancel(1);
    setup.cancel(2);
    setup.settle_at(first * 5);
    assert_eq!(setup.hub.next_tick(), None);
}

#[test]
fn manual_progress_is_the_lowest_of_the_stream_and_never_goes_back() {
    let mut setup = Setup::new();
    assert_eq!(setup.progress(), [], "no watch, no answer");
    setup.create(key("a"));
    setup.world.write(&[put("a", "1")]);
    let sent = setup.progress();
    assert_eq!(
        sent.iter()
            .map(|one| (one.watch_id, one.events.len()))
            .collect::<Vec<_>>(),
        [(0, 1), (-1, 0)]
    );
    setup.hub.request_progress(1);
    setup.hub.request_progress(1);
    assert_eq!(
        setup.settle().iter().map(header).collect::<Vec<_>>(),
        [2, 2],
        "one answer each"
    );
    // The stream does not take the event at 3: what is known to be sent ends before it.
    setup.sink.room.insert(1, 1);
    setup.create(key("b"));
    setup.world.write(&[put("a", "2")]);
    setup.world.write(&[put("b", "1")]);
    let created = setup.sink.take(1);
    assert!(created.is_empty());
    setup.world.settle(&mut setup.hub, &mut setup.sink, T0);
    setup.hub.request_progress(1);
    assert_eq!(
        setup
            .settle()
            .iter()
            .map(|one| (one.watch_id, header(one)))
            .collect::<Vec<_>>(),
        [(0, 3)]
    );
    let sent = setup.settle();
    assert_eq!(
        sent.iter().map(|one| (one.watch_id, header(one))).collect::<Vec<_>>(),
        [(-1, 3)]
    );
    setup.sink.room.remove(&1);
    setup.hub.writable(1);
    assert_eq!(setup.settle().iter().map(header).collect::<Vec<_>>(), [4]);
    assert_eq!(setup.progress().iter().map(header).collect::<Vec<_>>(), [4]);
    setup.create(from("a", 2));
    let sent = setup.progress();
    assert_eq!(sent.last().map(|one| (one.watch_id, header(one))), Some((-1, 4)));
    assert_eq!(sent.len(), 2);
}

#[test]
fn a_new_watch_in_the_past_holds_progress_back() {
    let mut setup = Setup::new();
    setup.create(key("a"));
    for value in 0..20 {
        setup.world.write(&[put("b", &value.to_string())]);
    }
    assert_eq!(setup.progress().iter().map(header).collect::<Vec<_>>(), [21]);
    setup.world.checkpoint(20);
    setup.create(from("b", 2));
    setup.hub.request_progress(1);
    // The first call only finds out which pages it needs.
    let view = setup.world.view();
    let mut reader = Reader {
        cache: &mut setup.world.cache,
        history: &setup.world.history,
        compact_revision: -1,
        damaged: &[],
    };
    let outcome = setup.hub.advance(&view, &mut reader, &mut setup.sink, T0);
    assert!(!outcome.missing.is_empty());
    assert_eq!(setup.sink.take(1), [], "1 would be below 21, which was answered before");
    let sent = setup.settle();
    assert_eq!(
        sent.iter().map(|one| (one.watch_id, header(one))).collect::<Vec<_>>(),
        [(1, 21), (-1, 21)]
    );
}

/// An answer below an event of another watch of the stream would take kube-apiserver's cache back.
#[test]
fn manual_progress_does_not_go_behind_an_event() {
    let mut setup = Setup::new();
    for value in 0..30 {
        setup.world.write(&[put("b", &value.to_string())]);
    }
    setup.hub = small_hub(setup.world.revision);
    setup.hub.open(1, T0);
    setup.create(key("a"));
    setup.create(from("b", 2));
    setup.world.write(&[put("a", "1")]);
    setup.hub.request_progress(1);
    setup.world.step(&mut setup.hub, &mut setup.sink, T0);
    let sent = setup.sink.take(1);
    assert!(sent.iter().any(|one| one.watch_id == 0 && mains(one) == [32]));
    assert!(setup.hub.sizes().2 == 1 && sent.iter().all(|one| one.watch_id != -1));
    assert_eq!(
        setup
            .settle()
            .iter()
            .filter(|one| one.watch_id == -1)
            .map(header)
            .collect::<Vec<_>>(),
        [32]
    );
}
