//! Pings, as grpc-go's server does them: a client that pings too often is sent away, and a client that has been silent
//! for long is pinged and, without an answer, given up.

use std::time::Duration;

use super::config::Keepalive;

/// Strikes a client may collect.
const MAX_STRIKES: u32 = 2;
/// Pings of a client without streams have to be this far apart, unless they are permitted.
const IDLE_PING_TIME: Duration = Duration::from_secs(2 * 60 * 60);

/// The state of both directions.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// When the client's last ping came.
    last_ping: Option<Duration>,
    strikes: u32,
    /// Whether headers or data were sent since the last ping, which forgives all strikes.
    sent_since_ping: bool,
    /// When the last bytes came from the client.
    last_read: Duration,
    /// When the server's own unanswered ping was sent.
    pinged: Option<Duration>,
}

/// What the timer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    None,
    Ping,
    Close,
}

impl State {
    #[inline]
    pub fn on_read(&mut self, now: Duration) {
        self.last_read = now;
        self.pinged = None;
    }

    #[inline]
    pub fn on_sent(&mut self) {
        self.sent_since_ping = true;
    }

    /// A ping of the client. `false` if it is one too many.
    pub fn on_ping(&mut self, now: Duration, has_streams: bool, config: &Keepalive) -> bool {
        let previous = self.last_ping.replace(now);
        if std::mem::take(&mut self.sent_since_ping) {
            self.strikes = 0;
            return true;
        }
        let distance = if has_streams || config.permit_without_stream {
            config.minimum_time
        } else {
            IDLE_PING_TIME
        };
        if previous.is_some_and(|previous| previous + distance > now) {
            self.strikes += 1;
        }
        self.strikes <= MAX_STRIKES
    }

    /// Called at [`deadline`](Self::deadline) or at any other time.
    pub fn on_timer(&mut self, now: Duration, config: &Keepalive) -> Action {
        if now < self.deadline(config) {
            return Action::None;
        }
        if self.pinged.is_some() {
            return Action::Close;
        }
        self.pinged = Some(now);
        Action::Ping
    }

    /// When [`on_timer`](Self::on_timer) has something to do next.
    pub fn deadline(&self, config: &Keepalive) -> Duration {
        match self.pinged {
            Some(pinged) => pinged.saturating_add(config.timeout),
            None => self.last_read.saturating_add(config.interval),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: Keepalive = Keepalive {
        minimum_time: Duration::from_secs(5),
        permit_without_stream: false,
        interval: Duration::from_secs(7200),
        timeout: Duration::from_secs(20),
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_third_strike_is_one_too_many() {
        let mut state = State::default();
        assert!(state.on_ping(at(0), true, &CONFIG), "the first is free");
        assert!(state.on_ping(at(1), true, &CONFIG));
        assert!(state.on_ping(at(2), true, &CONFIG));
        assert!(!state.on_ping(at(3), true, &CONFIG));
    }

    #[test]
    fn pings_at_the_minimum_time_and_pings_between_responses_are_fine() {
        let mut state = State::default();
        assert!((0..100).all(|i| state.on_ping(at(5 * i), true, &CONFIG)));
        let mut state = State::default();
        assert!((0..100).all(|i| {
            state.on_sent();
            state.on_ping(at(i), true, &CONFIG)
        }));
        let mut state = State::default();
        assert!((0..2).all(|i| state.on_ping(at(i), true, &CONFIG)));
        state.on_sent();
        assert!(
            (2..5).all(|i| state.on_ping(at(i), true, &CONFIG)),
            "strikes are forgiven"
        );
        assert!(!state.on_ping(at(5), true, &CONFIG));
    }

    #[test]
    fn without_streams_two_hours_have_to_pass() {
        let mut state = State::default();
        assert!((0..3).all(|i| state.on_ping(at(60 * i), false, &CONFIG)));
        assert!(!state.on_ping(at(180), false, &CONFIG));
        let permit = Keepalive {
            permit_without_stream: true,
            ..CONFIG
        };
        let mut state = State::default();
        assert!((0..10).all(|i| state.on_ping(at(60 * i), false, &permit)));
    }

    #[test]
    fn a_silent_client_is_pinged_then_given_up() {
        let mut state = State::default();
        state.on_read(at(10));
        assert_eq!(state.on_timer(at(7209), &CONFIG), Action::None);
        assert_eq!(state.on_timer(at(7210), &CONFIG), Action::Ping);
        assert_eq!(state.on_timer(at(7229), &CONFIG), Action::None);
        state.on_read(at(7229));
        assert_eq!(state.on_timer(at(7230), &CONFIG), Action::None);
        assert_eq!(state.on_timer(at(14_429), &CONFIG), Action::Ping);
        assert_eq!(state.on_timer(at(14_449), &CONFIG), Action::Close);
    }
}
