//! The primitives that the index shares memory with, exchangeable for loom's when it is modelled.
//!
//! Everything that two threads touch at once goes through this file: two atomics, a cell for bytes that an atomic
//! guards, and the epoch that says when memory may be freed. `cell`, `list` and their models know nothing else of
//! the outside, which is what lets loom see every access.

#[cfg(not(loom))]
pub use real::*;

#[cfg(loom)]
pub use modelled::*;

#[cfg(not(loom))]
mod real {
    pub use crossbeam_epoch::{Guard, pin};
    use std::cell::UnsafeCell;
    pub use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

    /// A value that is written before an atomic publishes it and only read afterwards.
    pub struct Slot<T>(UnsafeCell<T>);

    impl<T: Copy> Slot<T> {
        pub fn new(value: T) -> Slot<T> {
            Slot(UnsafeCell::new(value))
        }

        /// # Safety
        /// No write to this slot may be concurrent with the call.
        pub unsafe fn read(&self) -> T {
            // SAFETY: nobody writes meanwhile, by the caller's promise.
            unsafe { *self.0.get() }
        }

        /// # Safety
        /// No other access to this slot may be concurrent with the call.
        pub unsafe fn write(&self, value: T) {
            // SAFETY: nobody reads or writes meanwhile, by the caller's promise.
            unsafe { *self.0.get() = value }
        }
    }

    /// Calls `release` when every guard that is alive now, on any thread, has been dropped.
    ///
    /// # Safety
    /// `release` may run on any thread and at any later time: it has to own what it touches, all of it `Send`.
    pub unsafe fn defer<F: FnOnce()>(guard: &Guard, release: F) {
        // SAFETY: handed on to the caller.
        unsafe { guard.defer_unchecked(release) };
        // Garbage comes with views, and views hold blocks and pages: it must not wait for company.
        guard.flush();
    }

    /// Gives memory back to the allocator.
    ///
    /// # Safety
    /// As [`std::alloc::dealloc`]; nobody may read the memory any more.
    pub unsafe fn free(memory: *mut u8, layout: std::alloc::Layout) {
        // SAFETY: handed on to the caller.
        unsafe { std::alloc::dealloc(memory, layout) }
    }
}

/// loom's primitives, and an epoch that keeps exactly the promise the index builds on and not a step more.
#[cfg(loom)]
mod modelled {
    use loom::cell::UnsafeCell;
    use loom::sync::Mutex;
    pub use loom::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

    pub struct Slot<T>(UnsafeCell<T>);

    impl<T: Copy> Slot<T> {
        pub fn new(value: T) -> Slot<T> {
            Slot(UnsafeCell::new(value))
        }

        /// # Safety
        /// As the real one; loom reports a race instead.
        pub unsafe fn read(&self) -> T {
            // SAFETY: loom checks the access.
            self.0.with(|value| unsafe { *value })
        }

        /// # Safety
        /// As the real one; loom reports a race instead.
        pub unsafe fn write(&self, value: T) {
            // SAFETY: loom checks the access.
            self.0.with_mut(|place| unsafe { *place = value })
        }
    }

    /// What a release waits for: the guards that were alive when it was deferred.
    struct Waiting {
        guards: Vec<u64>,
        release: Box<dyn FnOnce()>,
    }

    #[derive(Default)]
    struct Epoch {
        next: u64,
        alive: Vec<u64>,
        waiting: Vec<Waiting>,
    }

    // SAFETY: loom runs a model's threads one at a time on one thread of the system.
    unsafe impl Send for Epoch {}

    loom::lazy_static! {
        static ref EPOCH: Mutex<Epoch> = Mutex::new(Epoch::default());
    }

    pub struct Guard(u64);

    pub fn pin() -> Guard {
        let mut epoch = EPOCH.lock().expect("no panic while held");
        epoch.next += 1;
        let number = epoch.next;
        epoch.alive.push(number);
        Guard(number)
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            let mut epoch = EPOCH.lock().expect("no panic while held");
            epoch.alive.retain(|number| *number != self.0);
            let mut ready = Vec::new();
            for mut waiting in std::mem::take(&mut epoch.waiting) {
                waiting.guards.retain(|number| *number != self.0);
                match waiting.guards.is_empty() {
                    true => ready.push(waiting.release),
                    false => epoch.waiting.push(waiting),
                }
            }
            drop(epoch);
            ready.into_iter().for_each(|release| release());
        }
    }

    /// # Safety
    /// As the real one.
    pub unsafe fn defer<F: FnOnce()>(_guard: &Guard, release: F) {
        let release: Box<dyn FnOnce() + '_> = Box::new(release);
        // SAFETY: the caller promises that the closure owns what it touches.
        let release = unsafe { std::mem::transmute::<Box<dyn FnOnce() + '_>, Box<dyn FnOnce()>>(release) };
        let mut epoch = EPOCH.lock().expect("no panic while held");
        let guards = epoch.alive.clone();
        epoch.waiting.push(Waiting { guards, release });
    }

    /// Keeps the memory: a late reader then meets loom's record of the access, not another object.
    ///
    /// # Safety
    /// None needed.
    pub unsafe fn free(_memory: *mut u8, _layout: std::alloc::Layout) {}
}
