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

/// Every event up to a progress answer comes before it, and no answer is behind what the stream was told before.
fn check_answers(sent: &[WatchResponse]) {
    let (mut told, mut newest) = (0, 0);
    for one in sent {
        match (one.watch_id, &mains(one)[..]) {
            (-1, _) => {
                assert!(header(one) >= told, "{} after {told}: {sent:?}", header(one));
                (told, newest) = (header(one), header(one));
            }
            (_, []) => told = told.max(header(one)),
            (_, events) => {
                assert!(events[0] > newest, "{events:?} after progress {newest}: {sent:?}");
                told = told.max(events[events.len() - 1]);
            }
        }
    }
}

/// The watch from the future begins at 4, which the one that lags is sent before those in step are.
#[test]
fn manual_progress_is_not_ahead_of_a_watch_that_begins() {
    let mut setup = Setup::new();
    setup.hub = small_hub(1);
    setup.hub.open(1, T0);
    setup.hub.open(2, T0);
    let every_key = CreateRequest {
        range_end: b"\0",
        ..key("a")
    };
    let view = setup.world.view();
    setup.hub.create(2, every_key, &view, T0, &mut setup.sink);
    setup.create(from("e", 4));
    setup.world.write(&[put("a", "1")]);
    setup.create(from("a", 1));
    setup.hub.request_progress(1);
    let many: Vec<_> = (0..19).map(|number| put(&format!("m{number:02}"), "many")).collect();
    setup.world.write(&many);
    setup.world.step(&mut setup.hub, &mut setup.sink, T0);
    setup.world.write(&[delete("a"), put("d", "1"), put("e", "1")]);
    let mut sent = setup.settle();
    assert!(sent.iter().all(|one| one.watch_id != -1 || header(one) >= 4));
    sent.extend(setup.progress());
    check_answers(&sent);
    assert_eq!(sent.last().map(|one| (one.watch_id, header(one))), Some((-1, 4)));
}

/// The watch in step was notified; the broadcast answer reaches it, too.
#[test]
fn manual_progress_does_not_go_behind_a_notification() {
    let mut setup = Setup::new();
    let options = WatchOptions {
        progress_notify: true,
        ..WatchOptions::default()
    };
    setup.create(CreateRequest { options, ..key("a") });
    for value in 0..20 {
        setup.world.write(&[put("b", &value.to_string())]);
    }
    let tick = setup.hub.next_tick().unwrap();
    let mut sent = setup.settle_at(tick);
    setup.world.checkpoint(20);
    assert_eq!(
        sent.iter().map(|one| (one.watch_id, header(one))).collect::<Vec<_>>(),
        [(0, 21)]
    );
    setup.create(from("b", 2));
    sent.extend(setup.progress());
    check_answers(&sent);
}

/// A watch that was made when the store was further than what those in step have been sent is not told that.
#[test]
fn a_notification_does_not_go_behind_the_creation() {
    let mut setup = Setup::new();
    setup.hub = small_hub(1);
    setup.hub.open(1, T0);
    setup.create(from("m", 0));
    for value in 0..30 {
        setup.world.write(&[put("m", &value.to_string())]);
    }
    let options = WatchOptions {
        progress_notify: true,
        ..WatchOptions::default()
    };
    let created = setup.create(CreateRequest { options, ..key("a") });
    let tick = setup.hub.next_tick().unwrap();
    assert!(setup.world.step(&mut setup.hub, &mut setup.sink, tick), "there is more");
    let sent = setup.sink.take(1);
    assert!(sent.iter().all(|one| one.watch_id == 0), "{sent:?}");
    setup.settle();
    let sent = setup.settle_at(tick * 2);
    let notified = sent.iter().map(|one| (one.watch_id, header(one)));
    assert_eq!(notified.collect::<Vec<_>>(), [(1, header(&created))]);
}
