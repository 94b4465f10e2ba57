//! Empty: this package is its tests.
