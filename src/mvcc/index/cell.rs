//! The publish cell: one value that one writer replaces and any number of readers read without waiting.
//!
//! A reader pins the epoch, loads once and has a value that stays whole until it unpins. The writer puts a new value in
//! the cell and hands over, in the same step, everything that was reachable through the old value and is not through
//! the new one. Both are dropped together when the last guard that could have seen them is gone. This is the only way
//! by which memory of the index that readers may have seen is ever freed.

use super::sync::{AtomicPtr, Guard, Ordering, defer, pin};
use std::marker::PhantomData;

/// See the module's description.
pub struct PublishCell<T> {
    current: AtomicPtr<T>,
    owns: PhantomData<T>,
}

// SAFETY: readers on other threads get `&T`, so T must be Sync; the last value may be dropped on whichever thread
// drops the cell or collects garbage, so T must be Send.
unsafe impl<T: Send + Sync> Send for PublishCell<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for PublishCell<T> {}

impl<T: Send + Sync + 'static> PublishCell<T> {
    /// A cell that holds `value`.
    pub fn new(value: T) -> PublishCell<T> {
        PublishCell {
            current: AtomicPtr::new(Box::into_raw(Box::new(value))),
            owns: PhantomData,
        }
    }

    /// The current value, valid as long as the guard is held.
    pub fn load<'g>(&self, _guard: &'g Guard) -> &'g T {
        // SAFETY: the pointer came from a Box and is retired only after it left the cell; this guard was pinned before
        // the load, so the value outlives the guard. Acquire pairs with the release of `replace`.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// Puts `value` into the cell; the old value and `garbage` are dropped once no reader can hold them.
    ///
    /// Writer only: calls must not be concurrent with each other. Everything in `garbage` has to be unreachable from
    /// `value`.
    pub fn replace<G: Send + 'static>(&self, value: T, garbage: G) {
        let old = self.current.swap(Box::into_raw(Box::new(value)), Ordering::AcqRel);
        let guard = pin();
        let retired = Box::new((Retired(old), garbage));
        // SAFETY: the closure owns both parts and they are Send. Whoever can still read them pinned before the swap
        // above, hence before this call, and is waited for.
        unsafe { defer(&guard, move || drop(retired)) };
    }
}

impl<T> Drop for PublishCell<T> {
    fn drop(&mut self) {
        let last = self.current.load(Ordering::Relaxed);
        // SAFETY: the cell is dropped, so no reader borrows it, and the value in it was never retired.
        drop(unsafe { Box::from_raw(last) });
    }
}

/// A value that left its cell.
struct Retired<T>(*mut T);

impl<T> Drop for Retired<T> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` in the cell, swapped out once, and nobody reads it any more.
        drop(unsafe { Box::from_raw(self.0) });
    }
}
