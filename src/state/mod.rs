//! The replicated state machine: a pure function of (state, entry).
