//! Whole members on a simulated disk, network and clock, for tests and soak runs only.
