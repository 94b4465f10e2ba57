//! Peers that are none, or don't keep to the protocol: the right status, or the end of the connection.
