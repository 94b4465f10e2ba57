//! The `ringd` program.

fn main() {}
