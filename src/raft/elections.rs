//! When a member stands for election.
//!
//! raft has each member draw between one and two election time-outs, so that those who lose their leader seldom stand
//! at once. Members that know who led need not draw: they stand in turn, in the order of their ids from the leader's
//! on. The first one does so as soon as the others may answer it, the later ones only if that comes to nothing. Whoever
//! knows of no leader (at a start, or after an election that nobody won) draws as raft does. Promises: no earlier than
//! raft would; who may win and who may vote is raft's affair alone.

use super::node::Node;

/// Ticks from one turn to the next. Members' ticks fall at different moments, so that up to one of them is lost; what
/// is left is time for the first to be heard of.
const TURN_TICKS: usize = 2;

impl Node {
    /// Sets the election time-out. To be called after whatever may have made raft draw one, or have changed the leader.
    pub(super) fn draw_election_timeout(&mut self) {
        let ticks = match (self.turn_ticks(), self.timeouts) {
            (Some(ticks), _) => ticks,
            (None, Some(seed)) => self.drawn_from(seed),
            (None, None) => return,
        };
        self.raw.raft.set_randomized_election_timeout(ticks);
    }

    /// Ticks after the leader's last sign of life at which this member stands; `None` if it is to draw.
    fn turn_ticks(&self) -> Option<usize> {
        let (own, leader) = (self.id(), self.leader());
        let voters = &self.conf_state().voters;
        if leader == 0 || leader == own || !voters.contains(&own) {
            return None;
        }
        // Ids in a circle.
        let way = |id: u64| id.wrapping_sub(leader);
        let turn = voters.iter().filter(|id| (1..way(own)).contains(&way(**id))).count();
        // One tick more than that for which voters stand by a leader they heard of: they heard of it at the same time,
        // but tick later.
        let ticks = self.election_ticks + 1 + TURN_TICKS * turn;
        // raft takes none longer than those it draws.
        (ticks < 2 * self.election_ticks).then_some(ticks)
    }

    fn drawn_from(&self, seed: u64) -> usize {
        let mixed = (seed ^ self.term().wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        self.election_ticks + (mixed >> 32) as usize % self.election_ticks
    }

    /// Sets the election time-out until raft draws the next, or a leader is known.
    pub fn set_election_timeout(&mut self, ticks: usize) {
        self.raw.raft.set_randomized_election_timeout(ticks);
    }

    /// Draws election time-outs from `seed` from now on, another in every term. raft-rs draws them from a generator of
    /// the thread, with which no simulation would repeat.
    pub fn seed_election_timeouts(&mut self, seed: u64) {
        self.timeouts = Some(seed);
        self.draw_election_timeout();
    }
}
