//! Status codes, and how a status travels in trailers.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// A gRPC status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    Ok = 0,
    Canceled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// The number as it stands in `grpc-status`.
    pub fn digits(self) -> &'static str {
        const DIGITS: [&str; 17] = [
            "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16",
        ];
        DIGITS[self as usize]
    }
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: Code,
    pub message: Cow<'static, str>,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

impl std::error::Error for Status {}

impl Status {
    pub const OK: Self = Self {
        code: Code::Ok,
        message: Cow::Borrowed(""),
    };

    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// No such service, in grpc-go's words.
    pub fn unknown_service(service: &str) -> Self {
        Self::new(Code::Unimplemented, format!("unknown service {service}"))
    }

    /// No such method of a known service, in grpc-go's words.
    pub fn unknown_method(method: &str, service: &str) -> Self {
        Self::new(
            Code::Unimplemented,
            format!("unknown method {method} for service {service}"),
        )
    }

    /// A message of a streaming call that protobuf cannot read, in grpc-go's words but for the reason.
    pub fn unreadable_message(reason: impl fmt::Display) -> Self {
        let text = format!("grpc: failed to unmarshal the received message: {reason}");
        Self::new(Code::Internal, text)
    }

    /// A message of a unary call that protobuf cannot read, in grpc-go's words but for the reason.
    pub fn unreadable_request(reason: impl fmt::Display) -> Self {
        Self::new(Code::Internal, format!("grpc: error unmarshalling request: {reason}"))
    }

    /// A unary call that ended without its message, in grpc-go's words.
    pub fn no_unary_message() -> Self {
        Self::new(Code::Unknown, "EOF")
    }

    /// A unary call that ended within its message, in grpc-go's words.
    pub fn cut_off_unary() -> Self {
        Self::new(Code::Unknown, "unexpected EOF")
    }

    /// A streaming call that ended within a message, in grpc-go's words.
    pub fn cut_off_stream() -> Self {
        Self::new(Code::Internal, "unexpected EOF")
    }

    /// A server-streaming call that ended without its message, in grpc-go's words.
    pub fn no_stream_message() -> Self {
        let text = "cardinality violation: received no request message from non-client-streaming RPC";
        Self::new(Code::Internal, text)
    }

    /// A server-streaming call with a second message, in grpc-go's words.
    pub fn second_stream_message() -> Self {
        let text = "cardinality violation: received multiple request messages for non-client-streaming RPC";
        Self::new(Code::Internal, text)
    }

    /// The call's deadline passed, in grpc-go's words.
    pub fn deadline_exceeded() -> Self {
        Self::new(Code::DeadlineExceeded, "context deadline exceeded")
    }
}

/// The form of a status message in `grpc-message`: printable ASCII as it is, all else and `%` percent-encoded.
pub fn encode_message(message: &str) -> Cow<'_, str> {
    let plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'%';
    if message.bytes().all(plain) {
        return Cow::Borrowed(message);
    }
    let mut encoded = String::with_capacity(message.len() * 2);
    for byte in message.bytes() {
        if plain(byte) {
            encoded.push(byte as char);
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    Cow::Owned(encoded)
}

/// The inverse of [`encode_message`]; what is no valid escape stays as it is, what is no UTF-8 is replaced.
pub fn decode_message(encoded: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some((first, tail)) = rest.split_first() {
        let digit = |at: usize| tail.get(at).and_then(|byte| (*byte as char).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Text in double quotes with escapes, as Go's `%q` prints it.
pub fn quote(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' | '\\' => out.extend(['\\', character]),
                '\x07' => out.push_str("\\a"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x0b' => out.push_str("\\v"),
                '\0'..=' ' | '\x7f' if character != ' ' => {
                    let _ = write!(out, "\\x{:02x}", character as u32);
                }
                '\u{80}'..='\u{a0}' | '\u{ad}' => {
                    let _ = write!(out, "\\u{:04x}", character as u32);
                }
                _ => out.push(character),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_are_percent_encoded_where_they_must() {
        assert!(matches!(encode_message("etcdserver: no leader"), Cow::Borrowed(_)));
        assert_eq!(encode_message("100%\n\u{7f}ü"), "100%25%0A%7F%C3%BC");
        assert_eq!(decode_message(b"100%25%0A%7F%C3%BC"), "100%\n\u{7f}ü");
        assert_eq!(decode_message(b"%zz%4"), "%zz%4");
        assert_eq!(decode_message(b"%FF"), "\u{fffd}");
    }

    #[test]
    fn quoting_is_that_of_go() {
        assert_eq!(quote(b"/a b"), r#""/a b""#);
        assert_eq!(
            quote(b"a\"\\\n\x01\x7f\xff\xc3\xbc\xc2\x80"),
            r#""a\"\\\n\x01\x7f\xffü\u0080""#
        );
    }

    #[test]
    fn texts_are_those_of_grpc_go() {
        assert_eq!(Status::unknown_service("a.B").message, "unknown service a.B");
        assert_eq!(
            Status::unknown_method("C", "a.B").message,
            "unknown method C for service a.B"
        );
    }

    proptest! {
        #[test]
        fn any_message_reads_back(message: String) {
            let encoded = encode_message(&message).into_owned();
            prop_assert!(encoded.bytes().all(|byte| matches!(byte, b' '..=b'~')));
            prop_assert_eq!(decode_message(encoded.as_bytes()), message);
        }
    }
}
