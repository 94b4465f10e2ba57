//! The `ringctl` program.

fn main() {}
