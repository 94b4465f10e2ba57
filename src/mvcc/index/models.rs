//! The parts that threads share, under every interleaving and every outcome the memory model allows (`scripts/loom`).
//!
//! Compiled by `tests/models` only, which gives loom the few files it needs and not the whole server. loom runs the
//! real `cell`, `list` and `entry` on its own atomics and cells. What was freed is overwritten first (see
//! `List::free`), so a reader that is late races with that and the model fails.

use super::NEWEST;
use super::cell::PublishCell;
use super::entry::Entry;
use super::list::List;
use super::sync::{Slot, pin};
use crate::mvcc::revision::Revision;
use loom::sync::Arc;

/// What is published: an entry, and the main revision up to which a reader may look.
struct State {
    entry: Entry,
    last_main: i64,
    /// Overwritten when the state is dropped.
    view: Slot<i64>,
}

// SAFETY: the entry is only read through this, and freed when nobody can.
unsafe impl Send for State {}
// SAFETY: as above.
unsafe impl Sync for State {}

impl State {
    fn new(entry: Entry, last_main: i64) -> State {
        State {
            entry,
            last_main,
            view: Slot::new(last_main),
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: loom checks that nobody reads.
        unsafe { self.view.write(-1) };
    }
}

type Cell = PublishCell<State, Vec<RetiredList>>;

/// A retired list, as the tree's garbage holds it.
struct RetiredList(List);

// SAFETY: nobody else looks at it when it is dropped.
unsafe impl Send for RetiredList {}

impl Drop for RetiredList {
    fn drop(&mut self) {
        // SAFETY: retired once.
        unsafe { self.0.free() };
    }
}

/// A new entry with one revision, `main`, and room for as many as `capacity`.
fn entry(main: i64, capacity: usize) -> Entry {
    let list = List::new(capacity, None, false);
    // SAFETY: the list is new.
    assert!(unsafe { list.push(Revision::new(main, 0), false, 0) });
    Entry::new(b"k", list)
}

/// What the tree does for a put of a live key: append, or let a longer list take the place.
fn append(entry: Entry, main: i64, lease: i64) -> Vec<RetiredList> {
    // SAFETY: only the writer calls this, and frees nothing but by publishing.
    unsafe {
        let list = entry.list();
        if list.push(Revision::new(main, 0), false, lease) {
            return Vec::new();
        }
        let grown = list.grown(lease != 0);
        assert!(grown.push(Revision::new(main, 0), false, lease));
        entry.set_list(grown);
        vec![RetiredList(list)]
    }
}

/// Pins once and checks that all is of one state; returns which.
fn read(cell: &Cell) -> i64 {
    let guard = pin();
    let state = cell.load(&guard);
    // SAFETY: pinned. loom checks the accesses.
    let (view, revisions) = unsafe { (state.view.read(), state.entry.revisions()) };
    assert_eq!(view, state.last_main, "the view is the state's own");
    let meta = revisions
        .meta_at(state.last_main)
        .expect("the key exists in every state");
    assert_eq!(
        meta.revision.main, state.last_main,
        "the newest revision of the state is there"
    );
    assert_eq!(meta.version, state.last_main - 1);
    assert_eq!(meta.create_revision, 2);
    let oldest = revisions.meta_at(2).expect("nothing was pruned");
    assert_eq!((oldest.revision.main, oldest.version), (2, 1));
    drop(guard);
    view
}

#[test]
fn a_reader_sees_whole_states_in_order() {
    loom::model(|| {
        let entry = entry(2, 2);
        let cell = Arc::new(PublishCell::new(State::new(entry, 2)));
        let readers: Vec<_> = (0..1)
            .map(|_| {
                let cell = Arc::clone(&cell);
                loom::thread::spawn(move || {
                    let first = read(&cell);
                    let second = read(&cell);
                    assert!(first <= second, "a state never goes back");
                })
            })
            .collect();
        // The first append finds room, the second makes a longer list with room for leases.
        for (main, lease) in [(3, 0), (4, 9)] {
            let garbage = append(entry, main, lease);
            cell.replace(State::new(entry, main), garbage);
        }
        readers
            .into_iter()
            .for_each(|reader| reader.join().expect("the reader ends"));
        assert_eq!(read(&cell), 4);
        // All guards are gone, so everything has come home, whichever thread found out.
        let released: Vec<i64> = cell.released().map(|(state, _)| state.last_main).collect();
        assert!(released == [3, 2] || released == [2, 3]);
    });
}

#[test]
fn unpublished_revisions_do_no_harm() {
    loom::model(|| {
        let entry = entry(2, 3);
        let cell = Arc::new(PublishCell::new(State::new(entry, 2)));
        let reader = {
            let cell = Arc::clone(&cell);
            loom::thread::spawn(move || read(&cell))
        };
        // Three appends in one batch: two find room, the third does not.
        let mut garbage = Vec::new();
        (3..6).for_each(|main| garbage.extend(append(entry, main, 0)));
        cell.replace(State::new(entry, 5), garbage);
        cell.released().for_each(drop);
        assert!([2, 5].contains(&reader.join().expect("the reader ends")));
    });
}

#[test]
fn two_readers_and_a_replaced_entry() {
    loom::model(|| {
        let old = entry(2, 1);
        let cell = Arc::new(PublishCell::new(State::new(old, 2)));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let cell = Arc::clone(&cell);
                loom::thread::spawn(move || read(&cell))
            })
            .collect();
        // SAFETY: the writer's own.
        let list = unsafe { old.list() };
        // SAFETY: alive until it is retired below.
        let new = Entry::new(b"k", unsafe { list.suffix(0) });
        let mut garbage = append(new, 3, 0);
        garbage.push(RetiredList(list));
        cell.replace(State::new(new, 3), garbage);
        cell.released().for_each(drop);
        for reader in readers {
            assert!([2, 3].contains(&reader.join().expect("the reader ends")));
        }
        // SAFETY: the writer's own.
        assert_eq!(
            unsafe { new.revisions() }.meta_at(NEWEST).map(|meta| meta.version),
            Some(2)
        );
    });
}

/// The models can fail: freeing at once what a reader may hold is found.
#[test]
#[should_panic]
fn freeing_too_early_is_found() {
    loom::model(|| {
        let entry = entry(2, 1);
        let cell = Arc::new(PublishCell::new(State::new(entry, 2)));
        let reader = {
            let cell = Arc::clone(&cell);
            loom::thread::spawn(move || read(&cell))
        };
        drop(append(entry, 3, 0));
        reader.join().expect("the reader ends");
    });
}
