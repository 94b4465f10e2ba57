//! The network between members: it delays, loses, repeats and reorders messages, and is cut, also in one direction.
//!
//! One thing it does not do, as the transport of peers does not: repeat what forwards a proposal.

use crate::io::medium::Random;
use raft::eraftpb::{Message, MessageType};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// How it behaves.
#[derive(Clone, Debug)]
pub struct Weather {
    /// How long most messages take, in microseconds.
    pub delay_us: Range<u64>,
    /// How many in a thousand are lost.
    pub lost: u64,
    /// How many in a thousand arrive twice.
    pub repeated: u64,
    /// How many in a thousand take up to a hundred times as long.
    pub late: u64,
}

impl Weather {
    /// All arrive soon.
    pub fn fine() -> Weather {
        Weather {
            delay_us: 50..400,
            lost: 0,
            repeated: 0,
            late: 0,
        }
    }

    /// Drawn from a seed.
    pub fn draw(random: &mut Random) -> Weather {
        let delays = [50..400, 100..5_000, 5_000..40_000, 1_000..150_000];
        Weather {
            delay_us: delays[random.below(4) as usize].clone(),
            lost: [0, 0, 10, 100, 300][random.below(5) as usize],
            repeated: [0, 20, 200][random.below(3) as usize],
            late: [0, 10, 50][random.below(3) as usize],
        }
    }
}

/// The network.
pub struct Network {
    weather: Weather,
    /// Directions in which everything is lost, from and to.
    cut: BTreeSet<(u64, u64)>,
    /// By when they arrive, and in random order at one moment.
    on_the_way: BTreeMap<(u64, u64), Message>,
    random: Random,
    /// Messages lost.
    pub lost: u64,
    /// Messages that arrived.
    pub arrived: u64,
}

impl Network {
    /// A network in which all arrive soon.
    pub fn new(seed: u64) -> Network {
        Network {
            weather: Weather::fine(),
            cut: BTreeSet::new(),
            on_the_way: BTreeMap::new(),
            random: Random::new(seed),
            lost: 0,
            arrived: 0,
        }
    }

    /// Changes how it behaves.
    pub fn set_weather(&mut self, weather: Weather) {
        self.weather = weather;
    }

    /// Cuts one direction.
    pub fn cut(&mut self, from: u64, to: u64) {
        self.cut.insert((from, to));
    }

    /// Nothing is cut any more.
    pub fn heal(&mut self) {
        self.cut.clear();
    }

    /// Whether messages of `from` reach `to`, most of them.
    pub fn connects(&self, from: u64, to: u64) -> bool {
        !self.cut.contains(&(from, to))
    }

    fn one_in_thousand(&mut self, times: u64) -> bool {
        self.random.below(1000) < times
    }

    /// Takes a message. False when its sender sees that it is lost.
    pub fn send(&mut self, message: Message, now_us: u64) -> bool {
        let is_cut = !self.connects(message.from, message.to);
        if is_cut || self.one_in_thousand(self.weather.lost) {
            self.lost += 1;
            return !is_cut || self.random.coin();
        }
        if message.get_msg_type() != MessageType::MsgPropose && self.one_in_thousand(self.weather.repeated) {
            self.put(message.clone(), now_us);
        }
        self.put(message, now_us);
        true
    }

    fn put(&mut self, message: Message, now_us: u64) {
        let delay = self.delay_us();
        let order = self.random.bits();
        self.on_the_way.insert((now_us + delay, order), message);
    }

    /// How long something takes that is sent now, in microseconds.
    pub fn delay_us(&mut self) -> u64 {
        let Range { start, end } = self.weather.delay_us;
        let delay = start + self.random.below(end - start);
        if self.one_in_thousand(self.weather.late) {
            delay * (1 + self.random.below(100))
        } else {
            delay
        }
    }

    /// Whether a connection breaks now over which much is sent.
    pub fn breaks(&mut self) -> bool {
        self.one_in_thousand(self.weather.lost)
    }

    /// When the next message arrives.
    pub fn next_due(&self) -> Option<u64> {
        self.on_the_way.keys().next().map(|(due, _)| *due)
    }

    /// The messages that have arrived by now. What was cut meanwhile does not.
    pub fn arrive(&mut self, now_us: u64) -> Vec<Message> {
        let mut arrived = Vec::new();
        while let Some(first) = self.on_the_way.first_entry().filter(|first| first.key().0 <= now_us) {
            let message = first.remove();
            if self.connects(message.from, message.to) {
                self.arrived += 1;
                arrived.push(message);
            } else {
                self.lost += 1;
            }
        }
        arrived
    }
}
