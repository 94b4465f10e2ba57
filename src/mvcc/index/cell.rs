//! The publish cell: one value that one writer replaces and any number of readers read without waiting.
//!
//! A reader pins the epoch, loads once and has a value that stays whole until it unpins. The writer puts a new value in
//! the cell and hands over, in the same step, everything that was reachable through the old value and is not through
//! the new one. When the last guard that could have seen them is gone, both come home to the writer, who drops them at
//! its own pace: readers never spend their time, or the allocator's locks, on the writer's garbage. This is the only
//! way by which memory of the index that readers may have seen is ever freed.

use super::sync::{AtomicPtr, Guard, Ordering, defer, pin};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::Arc;

/// A cell for values of type `T`; `G` is what a replacement makes unreachable.
pub struct PublishCell<T, G> {
    current: AtomicPtr<T>,
    home: Arc<Home<T, G>>,
    owns: PhantomData<T>,
}

// SAFETY: readers on other threads get `&T`, so T must be Sync; the last value may be dropped on whichever thread
// drops the cell, so T must be Send. Garbage is only ever moved, so it must be Send.
unsafe impl<T: Send + Sync, G: Send> Send for PublishCell<T, G> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync, G: Send> Sync for PublishCell<T, G> {}

impl<T: Send + Sync + 'static, G: Send + 'static> PublishCell<T, G> {
    /// A cell that holds `value`.
    pub fn new(value: T) -> PublishCell<T, G> {
        PublishCell {
            current: AtomicPtr::new(Box::into_raw(Box::new(value))),
            home: Arc::new(Home(AtomicPtr::new(null_mut()))),
            owns: PhantomData,
        }
    }

    /// The current value, valid as long as the guard is held.
    pub fn load<'g>(&self, _guard: &'g Guard) -> &'g T {
        // SAFETY: the pointer came from a Box and is retired only after it left the cell; this guard was pinned before
        // the load, so the value outlives the guard. Acquire pairs with the release of `replace`.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// Puts `value` into the cell; the old value and `garbage` come home once no reader can hold them. Everything in
    /// `garbage` has to be unreachable from `value`.
    pub fn replace(&self, value: T, garbage: G) {
        let old = self.current.swap(Box::into_raw(Box::new(value)), Ordering::AcqRel);
        let guard = pin();
        let retired = Box::into_raw(Box::new(Retired {
            value: old,
            garbage,
            next: null_mut(),
        }));
        let home = Arc::clone(&self.home);
        // SAFETY: the closure owns both parts and they are Send. Whoever can still read them pinned before the swap
        // above, hence before this call, and is waited for.
        unsafe { defer(&guard, move || home.push(retired)) };
    }

    /// How many replaced values have not come home yet: readers may hold them, or nobody has found out.
    pub fn outstanding(&self) -> usize {
        let outstanding = Arc::strong_count(&self.home) - 1;
        std::sync::atomic::fence(Ordering::Acquire);
        outstanding
    }

    /// Takes what has come home, oldest last. For the writer to call and to drop.
    pub fn released(&self) -> Released<T, G> {
        Released(self.home.0.swap(null_mut(), Ordering::Acquire))
    }
}

impl<T, G> Drop for PublishCell<T, G> {
    fn drop(&mut self) {
        let last = self.current.load(Ordering::Relaxed);
        // SAFETY: the cell is dropped, so no reader borrows it, and the value in it was never retired.
        drop(unsafe { Box::from_raw(last) });
    }
}

/// A value that left its cell and what left with it, in a chain of such.
struct Retired<T, G> {
    /// Made by `Box::into_raw`. No box until it is home, as readers may still look at it.
    value: *mut T,
    garbage: G,
    next: *mut Retired<T, G>,
}

/// Where retired values come to: pushed by any thread, taken as a whole.
struct Home<T, G>(AtomicPtr<Retired<T, G>>);

impl<T, G> Home<T, G> {
    fn push(&self, retired: *mut Retired<T, G>) {
        let mut first = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: not yet in the chain, so it is ours alone.
            unsafe { (*retired).next = first };
            match self
                .0
                .compare_exchange_weak(first, retired, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(other) => first = other,
            }
        }
    }
}

impl<T, G> Drop for Home<T, G> {
    fn drop(&mut self) {
        Released(self.0.swap(null_mut(), Ordering::Acquire)).for_each(drop);
    }
}

/// Values that no reader can hold any more, each with its garbage.
pub struct Released<T, G>(*mut Retired<T, G>);

impl<T, G> Iterator for Released<T, G> {
    type Item = (Box<T>, G);

    fn next(&mut self) -> Option<(Box<T>, G)> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the chain was taken as a whole and is ours alone; each link and each value was made by
        // `Box::into_raw`, left its cell once, and has no reader any more.
        let (retired, value) = unsafe {
            let retired = Box::from_raw(self.0);
            let value = Box::from_raw(retired.value);
            (retired, value)
        };
        self.0 = retired.next;
        Some((value, retired.garbage))
    }
}

impl<T, G> Drop for Released<T, G> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}
