//! The keep-alives of one stream: answered in the order in which they came, as etcd does, which handles one after the
//! other. Some answers come from this member's log core and some from the leader, asked for at once and later than
//! others.

use std::collections::VecDeque;

/// What is known of the keep-alives of a stream that were not answered yet.
#[derive(Debug, Default)]
pub(super) struct KeepAlives {
    /// How many were answered.
    answered: u64,
    /// Of each other one, in their order: the lease and, once it is known, what is left of it in seconds.
    waiting: VecDeque<(i64, Option<i64>)>,
}

impl KeepAlives {
    /// One came, for this lease: its number.
    pub fn push(&mut self, id: i64) -> u64 {
        self.waiting.push_back((id, None));
        self.answered + self.waiting.len() as u64 - 1
    }

    /// How many wait for their answer.
    pub fn count(&self) -> usize {
        self.waiting.len()
    }

    /// The lease of a numbered one that was not answered yet.
    pub fn lease(&self, number: u64) -> Option<i64> {
        let place = usize::try_from(number.checked_sub(self.answered)?).ok()?;
        self.waiting.get(place).map(|(id, _)| *id)
    }

    /// What is left of the lease of a numbered one is known.
    pub fn know(&mut self, number: u64, ttl_s: i64) {
        if self.lease(number).is_some() {
            self.waiting[(number - self.answered) as usize].1 = Some(ttl_s);
        }
    }

    /// The next that can be answered: its lease and what is left of that.
    pub fn pop(&mut self) -> Option<(i64, i64)> {
        let (id, Some(ttl_s)) = *self.waiting.front()? else {
            return None;
        };
        self.waiting.pop_front();
        self.answered += 1;
        Some((id, ttl_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_keep_the_order_of_the_questions() {
        let mut keep_alives = KeepAlives::default();
        let numbers = [7, 8, 7].map(|id| keep_alives.push(id));
        keep_alives.know(numbers[1], 20);
        assert_eq!(keep_alives.pop(), None);
        keep_alives.know(numbers[0], 10);
        assert_eq!(
            [keep_alives.pop(), keep_alives.pop(), keep_alives.pop()],
            [Some((7, 10)), Some((8, 20)), None]
        );
        let fourth = keep_alives.push(9);
        keep_alives.know(fourth, 40);
        // One that was answered already changes nothing.
        keep_alives.know(numbers[0], 50);
        keep_alives.know(numbers[2], 0);
        assert_eq!(
            [keep_alives.pop(), keep_alives.pop(), keep_alives.pop()],
            [Some((7, 0)), Some((9, 40)), None]
        );
        assert_eq!(keep_alives.count(), 0);
    }
}
