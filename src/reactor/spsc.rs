//! A bounded queue between exactly one producer and one consumer, wait-free on both sides.
//!
//! `head` and `tail` count pops and pushes since the start and wrap freely. The producer owns `tail` and the slots from
//! `tail` to `head + capacity`; the consumer owns `head` and the slots from `head` to `tail`. Each side keeps a copy of
//! the other's counter and reads the shared one only when the copy says that there is nothing to do.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A counter on a cache line (pair) of its own, so that the two sides don't take it from each other.
#[repr(align(128))]
struct Padded(AtomicUsize);

struct Shared<T> {
    head: Padded,
    tail: Padded,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a slot is accessed by one side at a time: by the producer before its `tail` was stored with release order, by
// the consumer after it loaded that `tail` with acquire order and until it stored `head`. Values move between the
// threads.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above; nothing in it is tied to a thread.
unsafe impl<T: Send> Send for Shared<T> {}

/// The pushing side.
pub(super) struct Producer<T> {
    shared: Arc<Shared<T>>,
    tail: usize,
    head_seen: usize,
}

/// The popping side.
pub(super) struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    tail_seen: usize,
}

/// A queue of `capacity` places, which is a power of two.
pub(super) fn queue<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity.is_power_of_two(), "capacity {capacity} is no power of two");
    let slots = (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let shared = Arc::new(Shared {
        head: Padded(AtomicUsize::new(0)),
        tail: Padded(AtomicUsize::new(0)),
        slots,
    });
    let producer = Producer {
        shared: shared.clone(),
        tail: 0,
        head_seen: 0,
    };
    let consumer = Consumer {
        shared,
        head: 0,
        tail_seen: 0,
    };
    (producer, consumer)
}

impl<T> Shared<T> {
    fn slot(&self, counter: usize) -> *mut MaybeUninit<T> {
        self.slots[counter & (self.slots.len() - 1)].get()
    }
}

impl<T> Producer<T> {
    /// Free places, at least: the consumer may free more at any moment.
    pub(super) fn free(&mut self, wanted: usize) -> usize {
        let capacity = self.shared.slots.len();
        let free = capacity - self.tail.wrapping_sub(self.head_seen);
        if free >= wanted {
            return free;
        }
        self.head_seen = self.shared.head.0.load(Ordering::Acquire);
        capacity - self.tail.wrapping_sub(self.head_seen)
    }

    /// Appends `value`, or gives it back when there is no place.
    pub(super) fn push(&mut self, value: T) -> Result<(), T> {
        if self.free(1) == 0 {
            return Err(value);
        }
        // SAFETY: there is a free place, so the consumer has popped the slot's former value (seen with acquire order in
        // `free`) and will not touch the slot before `tail` is stored.
        unsafe { (*self.shared.slot(self.tail)).write(value) };
        self.tail = self.tail.wrapping_add(1);
        self.shared.tail.0.store(self.tail, Ordering::Release);
        Ok(())
    }
}

impl<T> Consumer<T> {
    /// Takes the oldest value.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        // SAFETY: `head` < `tail`, and `tail` was loaded with acquire order: the slot holds a value that the producer
        // has finished writing. Storing `head` afterwards gives the slot back, so the value is read once.
        let value = unsafe { (*self.shared.slot(self.head)).assume_init_read() };
        self.head = self.head.wrapping_add(1);
        self.shared.head.0.store(self.head, Ordering::Release);
        Some(value)
    }

    /// Whether nothing is there at this moment.
    pub(super) fn is_empty(&mut self) -> bool {
        if self.head == self.tail_seen {
            self.tail_seen = self.shared.tail.0.load(Ordering::Acquire);
        }
        self.head == self.tail_seen
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (mut head, tail) = (*self.head.0.get_mut(), *self.tail.0.get_mut());
        while head != tail {
            // SAFETY: both sides are gone, and the slots from `head` to `tail` hold values nobody has taken.
            unsafe { (*self.slot(head)).assume_init_drop() };
            head = head.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn is_a_bounded_fifo() {
        let (mut producer, mut consumer) = queue::<u32>(4);
        for round in 0..10 {
            for value in 0..4 {
                producer.push(round * 4 + value).unwrap();
            }
            assert_eq!(producer.push(99), Err(99));
            for value in 0..4 {
                assert_eq!(consumer.pop(), Some(round * 4 + value));
            }
            assert_eq!(consumer.pop(), None);
        }
    }

    #[test]
    fn drops_what_nobody_took() {
        let value = Arc::new(());
        let (mut producer, mut consumer) = queue(8);
        for _ in 0..6 {
            producer.push(value.clone()).unwrap();
        }
        consumer.pop().unwrap();
        assert_eq!(Arc::strong_count(&value), 6);
        drop(producer);
        drop(consumer);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    /// Values with heap memory behind them, through a tiny queue, in order and each exactly once.
    #[test]
    fn stress_between_two_threads() {
        const COUNT: usize = 200_000;
        let (mut producer, mut consumer) = queue::<Box<usize>>(8);
        let pushing = thread::spawn(move || {
            for number in 0..COUNT {
                let mut value = Box::new(number);
                while let Err(back) = producer.push(value) {
                    value = back;
                    thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < COUNT {
            match consumer.pop() {
                Some(value) => {
                    assert_eq!(*value, expected);
                    expected += 1;
                }
                None => thread::yield_now(),
            }
        }
        assert!(consumer.pop().is_none());
        pushing.join().unwrap();
    }
}
