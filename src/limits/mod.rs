//! Every bound of the server in one place.
//!
//! A queue, buffer, batch or count anywhere in ringd takes its bound from here, so that the worst case of memory
//! and latency can be read off one page. Relations between bounds are checked when the crate is compiled.
