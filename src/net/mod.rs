//! Listeners and the connection driver that moves bytes between a socket and `http`.
