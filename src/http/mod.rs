//! Sans-IO HTTP/2 and HTTP/1.1.
