//! Flow control windows, RFC 9113 §5.2 and §6.9.

/// The largest window and the largest increment.
pub(crate) const MAX_WINDOW: u32 = 0x7fff_ffff;
/// The window of a peer, or of ourselves, before any SETTINGS.
pub(crate) const DEFAULT_WINDOW: u32 = 65_535;

/// A window grew beyond 2^31 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow;

/// How many bytes of DATA the peer lets us send. Negative after it lowered its initial window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWindow(i32);

impl SendWindow {
    pub fn new(initial: u32) -> Self {
        debug_assert!(initial <= MAX_WINDOW);
        Self(initial as i32)
    }

    #[inline]
    pub fn available(self) -> usize {
        self.0.max(0) as usize
    }

    #[inline]
    pub fn consume(&mut self, length: usize) {
        debug_assert!(length <= self.available());
        self.0 -= length as i32;
    }

    /// WINDOW_UPDATE.
    pub fn grow(&mut self, increment: u32) -> Result<(), Overflow> {
        self.shift(i64::from(increment))
    }

    /// A change of SETTINGS_INITIAL_WINDOW_SIZE.
    pub fn shift(&mut self, by: i64) -> Result<(), Overflow> {
        let window = i64::from(self.0) + by;
        self.0 = i32::try_from(window).map_err(|_| Overflow)?;
        Ok(())
    }
}

/// How many bytes of DATA the peer may still send us, and how many it may not know yet that it may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveWindow {
    available: u32,
    /// Bytes handed on but not yet announced as window.
    released: u32,
    size: u32,
}

impl ReceiveWindow {
    pub fn new(size: u32) -> Self {
        debug_assert!(size <= MAX_WINDOW);
        Self {
            available: size,
            released: 0,
            size,
        }
    }

    /// Counts a DATA frame. `false` if the peer sent more than it may.
    #[inline]
    pub fn receive(&mut self, length: usize) -> bool {
        match self.available.checked_sub(length as u32) {
            Some(rest) => {
                self.available = rest;
                true
            }
            None => false,
        }
    }

    /// Gives back `length` received bytes. Returns the increment to announce once half the window has come together.
    #[inline]
    pub fn release(&mut self, length: usize) -> Option<u32> {
        let held = self.size - self.available - self.released;
        debug_assert!(length <= held as usize, "released {length} of {held} bytes");
        self.released += (length as u32).min(held);
        if self.released < self.size / 2 {
            return None;
        }
        self.available += self.released;
        Some(std::mem::take(&mut self.released)).filter(|increment| *increment > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_window_may_be_negative_but_not_overflow() {
        let mut window = SendWindow::new(DEFAULT_WINDOW);
        window.consume(65_535);
        window.shift(-65_535).unwrap();
        assert_eq!(window.available(), 0);
        window.grow(65_536).unwrap();
        assert_eq!(window.available(), 1);
        assert_eq!(window.grow(MAX_WINDOW), Err(Overflow));
        assert_eq!(window.available(), 1);
    }

    #[test]
    fn a_receive_window_refuses_excess_and_announces_by_halves() {
        let mut window = ReceiveWindow::new(100);
        assert!(window.receive(100));
        assert!(!window.receive(1));
        assert_eq!(window.release(49), None);
        assert_eq!(window.release(1), Some(50));
        assert!(window.receive(50));
        assert!(!window.receive(1));
        assert_eq!(window.release(100), Some(100));
    }
}
