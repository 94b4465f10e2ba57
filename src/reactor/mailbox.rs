//! A mailbox: the bounded way from one core to another, in lanes, with reservations.
//!
//! One mailbox joins one sending core to one receiving core. Nothing blocks: a full lane gives the message back, and
//! the sender's own bell rings when there is room again. Within a lane order is kept; the receiver empties lane 0
//! first, so raft traffic never queues behind clients' requests. A `Place` is room set aside for an answer before the
//! question is taken, so that answering can't fail.
//!
//! `push` only makes a message visible; `ring` wakes the receiver. A turn that answers many pushes all and rings once.

use super::doorbell::Doorbell;
use super::spsc;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Why a message was not taken; it is handed back.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<T> {
    /// No place in the lane now. The sender's bell rings when there is.
    Full(T),
    /// The receiver is gone for good.
    Closed(T),
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Refused::Full(_) => "mailbox full: the receiving core is behind",
            Refused::Closed(_) => "mailbox closed: the receiving core has ended",
        })
    }
}

/// Room for one message in one lane. Use it with `push_reserved` or give it back with `release`.
#[derive(Debug)]
#[must_use = "a place that is neither used nor released is lost to its lane"]
pub struct Place {
    lane: usize,
}

/// State that both ends share besides the lanes' queues.
struct Ends {
    closed: AtomicBool,
    /// The sender found a lane full and wants its bell rung.
    wants_room: AtomicBool,
}

/// The sending end. It stays on one core.
pub struct Sender<T, const LANES: usize> {
    lanes: [SendLane<T>; LANES],
    ends: Arc<Ends>,
    receiver_bell: Doorbell,
    unannounced: bool,
}

struct SendLane<T> {
    queue: spsc::Producer<T>,
    reserved: usize,
}

/// The receiving end. It stays on one core.
pub struct Receiver<T, const LANES: usize> {
    lanes: [spsc::Consumer<T>; LANES],
    ends: Arc<Ends>,
    sender_bell: Doorbell,
    popped_since_check: usize,
    check_every: usize,
}

/// A mailbox with one lane per capacity (powers of two), most urgent first. `receiver_bell` wakes the receiving core on
/// new messages, `sender_bell` the sending core when a full lane has room again.
pub fn mailbox<T: Send, const LANES: usize>(
    capacities: [usize; LANES],
    receiver_bell: &Doorbell,
    sender_bell: &Doorbell,
) -> (Sender<T, LANES>, Receiver<T, LANES>) {
    let ends = Arc::new(Ends {
        closed: AtomicBool::new(false),
        wants_room: AtomicBool::new(false),
    });
    let smallest = capacities.iter().copied().min().unwrap_or(1);
    let mut consumers = Vec::with_capacity(LANES);
    let lanes = capacities.map(|capacity| {
        let (producer, consumer) = spsc::queue(capacity);
        consumers.push(consumer);
        SendLane {
            queue: producer,
            reserved: 0,
        }
    });
    let mut consumers = consumers.into_iter();
    let sender = Sender {
        lanes,
        ends: ends.clone(),
        receiver_bell: receiver_bell.clone(),
        unannounced: false,
    };
    let receiver = Receiver {
        lanes: capacities.map(|_| {
            consumers
                .next()
                .unwrap_or_else(|| unreachable!("one consumer per capacity"))
        }),
        ends,
        sender_bell: sender_bell.clone(),
        popped_since_check: 0,
        check_every: (smallest / 4).max(1),
    };
    (sender, receiver)
}

impl<T, const LANES: usize> Sender<T, LANES> {
    /// `push` and `ring`.
    pub fn send(&mut self, lane: usize, message: T) -> Result<(), Refused<T>> {
        self.push(lane, message)?;
        self.ring();
        Ok(())
    }

    /// Makes `message` visible to the receiver without waking it: `ring` before the turn ends.
    pub fn push(&mut self, lane: usize, message: T) -> Result<(), Refused<T>> {
        if self.is_closed() {
            return Err(Refused::Closed(message));
        }
        if !self.has_room(lane) {
            return Err(Refused::Full(message));
        }
        self.enqueue(lane, message);
        Ok(())
    }

    /// Wakes the receiver if anything was pushed since the last call.
    pub fn ring(&mut self) {
        if self.unannounced {
            self.unannounced = false;
            self.receiver_bell.ring();
        }
    }

    /// Sets a place in `lane` aside, or `None` when there is none now (this end's bell rings when there is).
    pub fn reserve(&mut self, lane: usize) -> Option<Place> {
        if !self.has_room(lane) {
            return None;
        }
        self.lanes[lane].reserved += 1;
        Some(Place { lane })
    }

    /// As `push`, into a place set aside: it can't be full. A message to a receiver that is gone is dropped.
    pub fn push_reserved(&mut self, place: Place, message: T) {
        let lane = place.lane;
        self.release(place);
        if !self.is_closed() {
            self.enqueue(lane, message);
        }
    }

    /// Gives a place back unused.
    pub fn release(&mut self, place: Place) {
        let reserved = &mut self.lanes[place.lane].reserved;
        assert!(*reserved > 0, "a place of another mailbox");
        *reserved -= 1;
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.ends.closed.load(Ordering::Relaxed)
    }

    fn enqueue(&mut self, lane: usize, message: T) {
        let pushed = self.lanes[lane].queue.push(message);
        assert!(pushed.is_ok(), "lane {lane} was full though room had been seen");
        self.unannounced = true;
    }

    fn has_room(&mut self, lane: usize) -> bool {
        let SendLane { queue, reserved } = &mut self.lanes[lane];
        let wanted = *reserved + 1;
        if queue.free(wanted) >= wanted {
            return true;
        }
        // The receiver frees room first and reads the flag afterwards; here it is the other way round, with a fence on
        // both sides, so that either room is seen here or the flag is seen there.
        self.ends.wants_room.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        queue.free(wanted) >= wanted
    }
}

impl<T, const LANES: usize> Receiver<T, LANES> {
    /// The next message: the oldest of the first lane that has one.
    pub fn pop(&mut self) -> Option<T> {
        let message = self.lanes.iter_mut().find_map(spsc::Consumer::pop);
        self.after_pop(message.is_some());
        message
    }

    /// The oldest message of one lane.
    pub fn pop_lane(&mut self, lane: usize) -> Option<T> {
        let message = self.lanes[lane].pop();
        self.after_pop(message.is_some());
        message
    }

    /// Whether no lane holds a message at this moment.
    pub fn is_empty(&mut self) -> bool {
        self.lanes.iter_mut().all(spsc::Consumer::is_empty)
    }

    /// Whether the sender is gone. Messages it left are still to be popped.
    pub fn is_closed(&self) -> bool {
        self.ends.closed.load(Ordering::Acquire)
    }

    /// Tells a waiting sender of room: when the lanes have run dry, and now and then before.
    fn after_pop(&mut self, popped: bool) {
        if popped {
            self.popped_since_check += 1;
            if self.popped_since_check < self.check_every {
                return;
            }
        } else if self.popped_since_check == 0 {
            return;
        }
        self.popped_since_check = 0;
        fence(Ordering::SeqCst);
        let wanted = &self.ends.wants_room;
        if wanted.load(Ordering::Relaxed) && wanted.swap(false, Ordering::AcqRel) {
            self.sender_bell.ring();
        }
    }
}

impl<T, const LANES: usize> Drop for Sender<T, LANES> {
    fn drop(&mut self) {
        self.ends.closed.store(true, Ordering::Release);
        self.receiver_bell.ring();
    }
}

impl<T, const LANES: usize> Drop for Receiver<T, LANES> {
    fn drop(&mut self) {
        self.ends.closed.store(true, Ordering::Release);
        self.sender_bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn pair<const LANES: usize>(capacities: [usize; LANES]) -> (Sender<u64, LANES>, Receiver<u64, LANES>) {
        let bell = Doorbell::new("test").unwrap();
        mailbox(capacities, &bell, &bell)
    }

    #[test]
    fn urgent_lane_comes_first_and_order_is_kept() {
        let (mut sender, mut receiver) = pair([4, 4]);
        for (lane, message) in [(1, 10), (1, 11), (0, 1), (0, 2)] {
            sender.push(lane, message).unwrap();
        }
        let popped: Vec<u64> = std::iter::from_fn(|| receiver.pop()).collect();
        assert_eq!(popped, [1, 2, 10, 11]);
    }

    #[test]
    fn a_full_lane_gives_back_and_leaves_others_open() {
        let (mut sender, mut receiver) = pair([2, 2]);
        sender.push(1, 1).unwrap();
        sender.push(1, 2).unwrap();
        assert_eq!(sender.push(1, 3), Err(Refused::Full(3)));
        sender.push(0, 4).unwrap();
        assert_eq!(receiver.pop_lane(1), Some(1));
        sender.push(1, 3).unwrap();
    }

    #[test]
    fn a_reserved_place_stays_free() {
        let (mut sender, mut receiver) = pair([4]);
        let first = sender.reserve(0).unwrap();
        let second = sender.reserve(0).unwrap();
        sender.push(0, 1).unwrap();
        sender.push(0, 2).unwrap();
        assert_eq!(sender.push(0, 3), Err(Refused::Full(3)));
        assert!(sender.reserve(0).is_none());
        sender.push_reserved(first, 4);
        sender.release(second);
        sender.push(0, 5).unwrap();
        let popped: Vec<u64> = std::iter::from_fn(|| receiver.pop()).collect();
        assert_eq!(popped, [1, 2, 4, 5]);
    }

    #[test]
    fn either_end_learns_that_the_other_is_gone() {
        let (mut sender, receiver) = pair([2]);
        drop(receiver);
        assert_eq!(sender.push(0, 1), Err(Refused::Closed(1)));
        let (mut sender, mut receiver) = pair([2]);
        sender.push(0, 7).unwrap();
        drop(sender);
        assert!(receiver.is_closed());
        assert_eq!(receiver.pop(), Some(7));
    }

    /// A sender that outruns its receiver sleeps on its bell until there is room; a lost ring would hang the test.
    #[test]
    fn stress_with_both_ends_sleeping() {
        const COUNT: u64 = 100_000;
        let bells = [Doorbell::new("sender").unwrap(), Doorbell::new("receiver").unwrap()];
        let (mut sender, mut receiver) = mailbox::<u64, 2>([8, 8], &bells[1], &bells[0]);
        let sender_bell = bells[0].clone();
        let sending = thread::spawn(move || {
            for number in 0..COUNT {
                let lane = (number % 2) as usize;
                while let Err(Refused::Full(_)) = sender.send(lane, number) {
                    sender_bell.sleep_unless(None, || sender.has_room(lane));
                }
            }
        });
        let mut next = [0, 1];
        let mut received = 0;
        while received < COUNT {
            match receiver.pop() {
                Some(number) => {
                    let lane = (number % 2) as usize;
                    assert_eq!(number, next[lane]);
                    next[lane] += 2;
                    received += 1;
                }
                None => bells[1].sleep_unless(None, || !receiver.is_empty()),
            }
        }
        sending.join().unwrap();
    }
}
