//! The two ends of an index: the writer's, which publishes, and the readers', who pin what was published.

use super::cell::PublishCell;
use super::garbage::Garbage;
use super::node::Node;
use super::read::Root;
use super::sync::{Guard, pin};
use super::tree::Tree;
use super::{KeyMeta, Put, ResumeKey};
use crate::limits::INDEX_FREE_PIECES;
use crate::mvcc::interval::RangeEnd;
use crate::mvcc::revision::Revision;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

/// A root and the view that belongs to it.
struct Published<V> {
    root: *mut Node,
    /// Main revision of the newest change below the root. Lists may hold newer ones by now.
    last_main: i64,
    view: V,
}

// SAFETY: the root is only read through this, and only by those who keep it from being freed.
unsafe impl<V: Send> Send for Published<V> {}
// SAFETY: as above.
unsafe impl<V: Sync> Sync for Published<V> {}

/// The readers' end of an index, shared by all threads.
pub struct Index<V> {
    current: PublishCell<Published<V>, Vec<Garbage>>,
    /// The tree, once its writer is gone: freed with the last reader.
    abandoned: OnceLock<Tree>,
}

impl<V: Send + Sync + 'static> Index<V> {
    /// Pins the newest published state: one load. Dropping it lets memory go.
    pub fn pin(&self) -> Pinned<'_, V> {
        let guard = pin();
        let published: *const Published<V> = self.current.load(&guard);
        Pinned {
            published,
            _guard: guard,
            index: PhantomData,
        }
    }

    /// Waits until nothing that was replaced can be held by a guard of any thread, those of other indexes included. For
    /// simulations, which must not depend on other threads; the calling thread must not hold a guard itself.
    pub fn wait_for_guards(&self) {
        while self.current.outstanding() > 0 {
            pin().flush();
            std::thread::yield_now();
        }
    }
}

/// One published state, held: a root and its view, both unchanging. Must not live across a yield; stays on its thread.
pub struct Pinned<'i, V> {
    /// Valid while the guard is.
    published: *const Published<V>,
    _guard: Guard,
    index: PhantomData<&'i Index<V>>,
}

impl<V> Pinned<'_, V> {
    /// The view that was published with this state.
    pub fn view(&self) -> &V {
        &self.published().view
    }

    /// The version of a key that a read at main revision `at_main` sees; `None` when the key did not exist then.
    ///
    /// An `at_main` above the published state, [`super::NEWEST`] for one, means that state. One below the revision that
    /// keys were last pruned at gives no meaningful answer, here and everywhere below: compare with the view's compact
    /// revision first.
    pub fn get(&self, key: &[u8], at_main: i64) -> Option<KeyMeta> {
        self.root().get(key, self.known(at_main))
    }

    /// The version of a key that the change at `revision` replaced or deleted; `None` when the key did not exist
    /// before.
    pub fn get_before(&self, key: &[u8], revision: Revision) -> Option<KeyMeta> {
        let newest = Revision::new(self.published().last_main, u32::MAX);
        self.root().get_before(key, revision.min(newest))
    }

    /// Asks the memory for what [`Pinned::get`] of each of `keys` goes through, all together; at most
    /// [`prefetch::TOGETHER`](crate::pages::prefetch::TOGETHER). Says where their newest records are: a hint, in which
    /// some may be missing and others too many.
    pub fn warm(&self, keys: &[&[u8]], newest: impl FnMut(Revision)) {
        self.root().warm(keys, newest);
    }

    /// Shows the keys from `start` to `end` that a read at `at_main` sees, in order, until `visit` breaks or the
    /// slice's work is done ([`crate::limits::INDEX_SLICE_ENTRIES`] keys, deleted ones included).
    ///
    /// `None` is the end of the interval. Otherwise the result is the start of the next slice, to be read in a new pin;
    /// the key at which `visit` broke counts as done.
    pub fn range(
        &self,
        start: &[u8],
        end: RangeEnd<'_>,
        at_main: i64,
        visit: impl FnMut(&[u8], KeyMeta) -> ControlFlow<()>,
    ) -> Option<ResumeKey> {
        self.root().range(start, end, self.known(at_main), visit)
    }

    /// How many keys from `start` to `end` a read at `at_main` sees, and where to go on counting if this slice did not
    /// reach the end. It always does at the newest revision.
    pub fn count(&self, start: &[u8], end: RangeEnd<'_>, at_main: i64) -> (u64, Option<ResumeKey>) {
        self.root().count(start, end, self.known(at_main))
    }

    /// Whether HashKV at `compact_main` keeps this revision of the key: it is the key's newest at or below, and not a
    /// tombstone. (etcd's `keyIndex.keep`. The set of kept revisions is thus what [`Pinned::range`] shows at
    /// `compact_main`; where the set is empty, etcd hashes all revisions.)
    pub fn is_kept(&self, key: &[u8], revision: Revision, compact_main: i64) -> bool {
        self.root().is_kept(key, revision, self.known(compact_main))
    }

    fn known(&self, at_main: i64) -> i64 {
        at_main.min(self.published().last_main)
    }

    fn published(&self) -> &Published<V> {
        // SAFETY: loaded under the guard, which lives as long as this, which the result borrows.
        unsafe { &*self.published }
    }

    fn root(&self) -> Root<'_> {
        // SAFETY: a published root is retired only after another took its place in the cell, and the guard, which the
        // result borrows, was pinned before it was loaded.
        Root::new(unsafe { &*self.published().root })
    }
}

/// The writer's end of an index. There is one; it may move between threads but is used by one at a time.
///
/// Its reads see what it has written, published or not.
pub struct IndexWriter<V: Send + Sync + 'static> {
    tree: Tree,
    index: Arc<Index<V>>,
    /// What no reader can reach any more, to be freed bit by bit.
    released: Vec<Garbage>,
}

impl<V: Send + Sync + 'static> IndexWriter<V> {
    /// Shares `tree`, published with `view`.
    pub fn new(mut tree: Tree, view: V) -> IndexWriter<V> {
        // The tree was never shared, so nothing waits to be freed.
        drop(tree.seal());
        let current = PublishCell::new(Published {
            root: tree.root,
            last_main: tree.last_revision().main,
            view,
        });
        let index = Arc::new(Index {
            current,
            abandoned: OnceLock::new(),
        });
        IndexWriter {
            tree,
            index,
            released: Vec::new(),
        }
    }

    /// The readers' end.
    pub fn index(&self) -> &Arc<Index<V>> {
        &self.index
    }

    /// Makes all changes so far and `view` visible at once. Readers that pinned before keep what they have.
    pub fn publish(&mut self, view: V) {
        let garbage = self.tree.seal();
        let retired = garbage.len();
        let published = Published {
            root: self.tree.root,
            last_main: self.tree.last_revision().main,
            view,
        };
        self.index.current.replace(published, garbage);
        self.free(INDEX_FREE_PIECES.max(2 * retired));
    }

    /// Drops views and frees memory that readers have let go of; [`IndexWriter::publish`] does it too. To be called now
    /// and then when nothing is published, since readers' guards and views hold more than memory. Whether more is
    /// waiting to be freed; what readers still hold does not count.
    pub fn collect(&mut self) -> bool {
        let guard = pin();
        guard.flush();
        drop(guard);
        self.free(INDEX_FREE_PIECES);
        !self.released.is_empty()
    }

    fn free(&mut self, pieces: usize) {
        for (published, garbage) in self.index.current.released() {
            drop(published);
            self.released.extend(garbage);
        }
        for _ in 0..pieces {
            let Some(piece) = self.released.pop() else {
                break;
            };
            piece.free(&mut self.released);
        }
    }

    /// Replaces the whole content, as the installation of a snapshot does. Visible with the next
    /// [`IndexWriter::publish`]; the old tree is freed bit by bit.
    pub fn replace(&mut self, tree: Tree) {
        self.tree.replace(tree);
    }

    /// See [`Tree::put`].
    pub fn put(&mut self, key: &[u8], revision: Revision, lease: i64) -> Put {
        self.tree.put(key, revision, lease)
    }

    /// See [`Tree::delete`].
    pub fn delete(&mut self, key: &[u8], revision: Revision) -> Option<KeyMeta> {
        self.tree.delete(key, revision)
    }

    /// See [`Tree::prune`].
    pub fn prune(&mut self, key: &[u8], compact_main: i64, removed: &mut Vec<(Revision, bool)>) {
        self.tree.prune(key, compact_main, removed);
    }

    /// The writer's own state, for reading: unpublished changes included.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }
}

impl<V: Send + Sync + 'static> Drop for IndexWriter<V> {
    fn drop(&mut self) {
        // Readers may hold the index longer than the writer lives. What was not published stays unseen.
        let tree = std::mem::take(&mut self.tree);
        let set = self.index.abandoned.set(tree);
        debug_assert!(set.is_ok(), "an index has one writer");
    }
}
