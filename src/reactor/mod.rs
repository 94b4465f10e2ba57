//! Cores, roles, pinning, mailboxes, timers, the blocking pool, shutdown; the real implementations of `io`.
