//! The index against a naive model, alone and under threads.

mod check;
mod concurrent;
mod model;
mod properties;
mod rules;
