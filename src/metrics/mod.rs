//! The metrics registry and the series' names.
