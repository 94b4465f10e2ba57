//! What a call's header list says: path, metadata, and the checks that grpc-go's server makes.

use std::borrow::Cow;
use std::time::Duration;

use super::message::no_decompressor;
use super::status::{Code, Status, quote};
use super::timeout::parse_timeout;
use crate::http::HeaderList;

/// The header list of a call.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    headers: &'a HeaderList,
}

impl<'a> Request<'a> {
    pub(super) fn new(headers: &'a HeaderList) -> Self {
        Self { headers }
    }

    /// The path, `/package.Service/Method`.
    pub fn path(&self) -> &'a [u8] {
        self.headers.path()
    }

    /// Service and method of the path. The error is what grpc-go answers to a path that names none.
    pub fn method(&self) -> Result<(&'a str, &'a str), Status> {
        split_path(self.path())
    }

    /// What grpc-go answers when the call announces an encoding; it does so once the method is known.
    pub fn refused_encoding(&self) -> Option<Status> {
        let encoding = self.headers.get("grpc-encoding")?;
        let is_refused = !encoding.is_empty() && encoding != b"identity";
        is_refused.then(|| no_decompressor(encoding))
    }

    /// The value of `:authority`, or of `host` in its place.
    pub fn authority(&self) -> Option<&'a [u8]> {
        self.headers.authority().or_else(|| self.headers.get("host"))
    }

    /// The call's metadata.
    pub fn metadata(&self) -> Metadata<'a> {
        Metadata { headers: self.headers }
    }
}

/// Cuts a path into service and method.
pub(super) fn split_path(path: &[u8]) -> Result<(&str, &str), Status> {
    let names = path.strip_prefix(b"/").and_then(|rest| {
        let slash = memchr::memrchr(b'/', rest)?;
        Some((
            std::str::from_utf8(&rest[..slash]).ok()?,
            std::str::from_utf8(&rest[slash + 1..]).ok()?,
        ))
    });
    names.ok_or_else(|| Status::new(Code::Unimplemented, format!("malformed method name: {}", quote(path))))
}

/// The fields of a call that belong to its caller and callee rather than to gRPC.
#[derive(Clone, Copy, Debug)]
pub struct Metadata<'a> {
    headers: &'a HeaderList,
}

impl<'a> Metadata<'a> {
    /// The first value of `key` (lower case). A key that ends in `-bin` gives the decoded bytes.
    pub fn get(&self, key: &str) -> Option<Cow<'a, [u8]>> {
        self.iter()
            .find(|(found, _)| *found == key.as_bytes())
            .map(|(_, value)| value)
    }

    /// All pairs in the order of arrival, a key as often as it was sent.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], Cow<'a, [u8]>)> + use<'a> {
        let fields = self.headers.iter().filter(|(name, _)| !is_reserved(name));
        fields.map(|(name, value)| {
            // Checked when the call began, so the text itself never stands in for bytes.
            let decoded = name.ends_with(b"-bin").then(|| decode_binary(value).ok()).flatten();
            (name, decoded.map_or(Cow::Borrowed(value), Cow::Owned))
        })
    }
}

/// Fields that are gRPC's own. `user-agent` is the caller's, as in grpc-go.
fn is_reserved(name: &[u8]) -> bool {
    matches!(
        name,
        b"grpc-message-type" | b"grpc-encoding" | b"grpc-message" | b"grpc-status" | b"grpc-timeout" | b"te"
    )
}

/// What the header list of a request amounts to.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Not gRPC at all: no content type of it.
    NotGrpc { content_type: Vec<u8> },
    /// A call that is refused with this HTTP status.
    Refused {
        http_status: u16,
        status: Status,
        subtype: Subtype,
    },
    /// A call.
    Call {
        subtype: Subtype,
        timeout: Option<Duration>,
        encoding: Vec<u8>,
    },
}

/// What follows `application/grpc` in the content type; the response repeats it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subtype {
    None,
    Proto,
    Other(Box<[u8]>),
}

impl Subtype {
    /// The subtype of a content type of gRPC.
    fn of(content_type: &[u8]) -> Option<Self> {
        match content_type.strip_prefix(b"application/grpc")? {
            [] | [b'+' | b';'] => Some(Self::None),
            b"+proto" => Some(Self::Proto),
            [b'+' | b';', rest @ ..] => Some(Self::Other(rest.into())),
            _ => None,
        }
    }

    pub fn content_type(&self) -> Cow<'static, [u8]> {
        match self {
            Self::None => Cow::Borrowed(b"application/grpc"),
            Self::Proto => Cow::Borrowed(b"application/grpc+proto"),
            Self::Other(rest) => Cow::Owned([b"application/grpc+", &rest[..]].concat()),
        }
    }
}

/// Judges a request in the order in which grpc-go does.
pub(super) fn judge(headers: &HeaderList) -> Verdict {
    let mut found = Found::default();
    for (name, value) in headers.iter() {
        found.field(name, value);
    }
    let subtype = found.subtype.unwrap_or(Subtype::None);
    let refused = |http_status, code, text: String, subtype| Verdict::Refused {
        http_status,
        status: Status::new(code, text),
        subtype,
    };
    if found.hosts > 1 {
        let authorities = usize::from(headers.authority().is_some());
        let text = format!(
            "num values of :authority: {authorities}, num values of host: {}, both must only have 1 value as per \
             HTTP/2 spec",
            found.hosts
        );
        return refused(400, Code::Internal, text, subtype);
    }
    if !found.is_grpc {
        return Verdict::NotGrpc {
            content_type: found.content_type,
        };
    }
    if let Some(text) = found.error {
        return refused(400, Code::Internal, text, subtype);
    }
    if headers.method() != b"POST" {
        let method = quote(headers.method());
        let text = format!("Received a HEADERS frame with :method {method} which should be POST");
        return refused(405, Code::Internal, text, subtype);
    }
    if found.timeout == Some(Duration::ZERO) {
        return Verdict::Refused {
            http_status: 200,
            status: Status::deadline_exceeded(),
            subtype,
        };
    }
    Verdict::Call {
        subtype,
        timeout: found.timeout,
        encoding: found.encoding,
    }
}

/// The answer to a request that is not gRPC.
pub(super) fn not_grpc(content_type: &[u8]) -> Status {
    Status::new(
        Code::InvalidArgument,
        format!("invalid gRPC request content-type {}", quote(content_type)),
    )
}

#[derive(Default)]
struct Found {
    is_grpc: bool,
    subtype: Option<Subtype>,
    content_type: Vec<u8>,
    timeout: Option<Duration>,
    encoding: Vec<u8>,
    hosts: usize,
    error: Option<String>,
}

impl Found {
    #[inline]
    fn field(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b"content-type" => match Subtype::of(value) {
                Some(subtype) => {
                    self.is_grpc = true;
                    self.subtype = Some(subtype);
                }
                None => self.content_type = value.to_vec(),
            },
            b"grpc-timeout" => match parse_timeout(value) {
                Ok(timeout) => self.timeout = Some(timeout),
                Err(reason) => self.error = Some(format!("malformed grpc-timeout: {reason}")),
            },
            b"grpc-encoding" => self.encoding = value.to_vec(),
            b"host" => self.hosts += 1,
            _ if name.ends_with(b"-bin") => {
                if let Err(place) = decode_binary(value) {
                    let (value, name) = (quote(value), quote(name));
                    self.error = Some(format!(
                        "malformed binary metadata {value} in header {name}: illegal base64 data at input byte {place}"
                    ));
                }
            }
            _ => {}
        }
    }
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The form of binary metadata on the wire: base64 without padding.
pub fn encode_binary(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0; 4];
        group[1..=chunk.len()].copy_from_slice(chunk);
        let group = u32::from_be_bytes(group);
        for digit in 0..=chunk.len() {
            out.push(BASE64[(group >> (18 - 6 * digit)) as usize & 63] as char);
        }
    }
    out
}

/// Reads binary metadata as grpc-go does: a length of whole groups of four is base64 with padding, any other without.
/// The error is the place of the byte at which Go's decoder gives up.
pub fn decode_binary(text: &[u8]) -> Result<Vec<u8>, usize> {
    let padding = text.len().is_multiple_of(4).then_some(b'=');
    let mut out = Vec::with_capacity(text.len().div_ceil(4) * 3);
    let mut rest = text.iter().enumerate().peekable();
    while rest.peek().is_some() {
        let (mut group, mut digits) = (0u32, 0);
        while digits < 4 {
            match rest.next() {
                Some((_, byte)) if let Some(value) = base64_value(*byte) => {
                    group |= value << (18 - 6 * digits);
                    digits += 1;
                }
                Some((place, byte)) if padding == Some(*byte) && digits >= 2 => {
                    if digits == 2 && rest.next_if(|(_, byte)| **byte == b'=').is_none() {
                        return Err(if rest.peek().is_some() { place } else { text.len() });
                    }
                    match rest.next() {
                        Some((trailing, _)) => return Err(trailing),
                        None => break,
                    }
                }
                Some((place, _)) => return Err(place),
                None if digits == 1 || padding.is_some() => return Err(text.len() - digits),
                None => break,
            }
        }
        out.extend_from_slice(&group.to_be_bytes()[1..digits.max(1)]);
    }
    Ok(out)
}

fn base64_value(byte: u8) -> Option<u32> {
    let value = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_are_cut_as_grpc_go_cuts_them() {
        assert_eq!(split_path(b"/etcdserverpb.KV/Put"), Ok(("etcdserverpb.KV", "Put")));
        assert_eq!(split_path(b"/a/b/C"), Ok(("a/b", "C")));
        assert_eq!(split_path(b"//"), Ok(("", "")));
        for path in ["", "x", "/x", "x/y"] {
            let status = split_path(path.as_bytes()).unwrap_err();
            assert_eq!(status.code, Code::Unimplemented);
            assert_eq!(status.message, format!("malformed method name: \"{path}\""));
        }
    }

    #[test]
    fn content_types_are_those_of_grpc_go() {
        for (text, subtype, answer) in [
            ("application/grpc", Subtype::None, "application/grpc"),
            ("application/grpc+", Subtype::None, "application/grpc"),
            ("application/grpc+proto", Subtype::Proto, "application/grpc+proto"),
            (
                "application/grpc;proto",
                Subtype::Other(b"proto"[..].into()),
                "application/grpc+proto",
            ),
            (
                "application/grpc+json",
                Subtype::Other(b"json"[..].into()),
                "application/grpc+json",
            ),
        ] {
            let found = Subtype::of(text.as_bytes()).unwrap();
            assert_eq!(found, subtype);
            assert_eq!(&found.content_type()[..], answer.as_bytes());
        }
        for text in ["application/json", "application/grpcx", "application/grpc-web", ""] {
            assert_eq!(Subtype::of(text.as_bytes()), None);
        }
    }

    #[test]
    fn base64_with_and_without_padding() {
        for (text, bytes) in [
            ("", ""),
            ("Zg", "f"),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg", "foob"),
        ] {
            assert_eq!(decode_binary(text.as_bytes()).unwrap(), bytes.as_bytes());
            assert_eq!(encode_binary(bytes.as_bytes()), text.trim_end_matches('='));
        }
        for (text, place) in [
            ("A", 0),
            ("A===", 1),
            ("====", 0),
            ("Zg=", 2),
            ("Zm9v!", 4),
            ("Z g=", 1),
            ("Zg==,Zg==", 2),
            ("Zg=x", 2),
            ("Zg==Zm9v", 4),
            ("Zm9vZg=\0", 6),
            ("Zm9vZ", 4),
        ] {
            assert_eq!(decode_binary(text.as_bytes()), Err(place), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_binary_metadata_reads_back(bytes: Vec<u8>) {
            prop_assert_eq!(decode_binary(encode_binary(&bytes).as_bytes()).unwrap(), bytes);
        }
    }
}
