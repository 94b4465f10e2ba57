//! The page store: a checksummed copy-on-write B+tree in one file.
