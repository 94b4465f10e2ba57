//! The head of an HTTP/1.1 request: what it says, and how long its body is.

use super::body::Body;
use crate::limits::HTTP1_HEADERS;

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// As sent: a path with its query, or a whole URI.
    pub target: String,
    /// Fields in the order of arrival, names in lower case.
    pub fields: Vec<(String, Vec<u8>)>,
    /// 0 or 1.
    pub minor_version: u8,
    pub(super) keep_alive: bool,
    pub(super) expects_continue: bool,
}

impl Request {
    /// The path of the target, without its query.
    pub fn path(&self) -> &str {
        let target = self.origin_form();
        target.split_once('?').map_or(target, |(path, _)| path)
    }

    /// The query of the target, without its question mark.
    pub fn query(&self) -> &str {
        self.origin_form().split_once('?').map_or("", |(_, query)| query)
    }

    /// The target without scheme and authority, should it have them.
    fn origin_form(&self) -> &str {
        let Some((_, rest)) = self
            .target
            .split_once("://")
            .filter(|(scheme, _)| !scheme.contains(['/', '?']))
        else {
            return &self.target;
        };
        rest.find(['/', '?']).map_or("/", |start| &rest[start..])
    }

    /// The first field called `name` (lower case).
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.all(name).next()
    }

    fn all<'a, 'n>(&'a self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        self.fields
            .iter()
            .filter(move |(found, _)| found == name)
            .map(|(_, value)| &value[..])
    }

    /// Whether a field that lists tokens has this one.
    fn lists(&self, name: &str, token: &str) -> bool {
        let mut tokens = self.all(name).flat_map(|value| value.split(|byte| *byte == b','));
        tokens.any(|found| found.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    }
}

/// Why a head is refused, and with what status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadError {
    pub status: u16,
    pub reason: &'static str,
}

impl HeadError {
    fn bad(reason: &'static str) -> Self {
        Self { status: 400, reason }
    }
}

/// Reads a whole head, up to and including its empty line.
pub(super) fn parse_head(head: &[u8]) -> Result<(Request, Body), HeadError> {
    let mut fields = [httparse::EMPTY_HEADER; HTTP1_HEADERS];
    let mut parsed = httparse::Request::new(&mut fields);
    match parsed.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(HeadError::bad("malformed request")),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(HeadError {
                status: 431,
                reason: "too many fields",
            });
        }
        Err(httparse::Error::Version) => {
            return Err(HeadError {
                status: 505,
                reason: "unsupported HTTP version",
            });
        }
        Err(_) => return Err(HeadError::bad("malformed request")),
    }
    let (Some(method), Some(target), Some(minor_version)) = (parsed.method, parsed.path, parsed.version) else {
        return Err(HeadError::bad("malformed request line"));
    };
    let fields = parsed
        .headers
        .iter()
        .map(|field| (field.name.to_ascii_lowercase(), field.value.to_vec()));
    let mut request = Request {
        method: method.to_string(),
        target: target.to_string(),
        fields: fields.collect(),
        minor_version,
        keep_alive: false,
        expects_continue: false,
    };
    request.keep_alive = if minor_version == 0 {
        request.lists("connection", "keep-alive")
    } else {
        !request.lists("connection", "close")
    };
    request.expects_continue = minor_version > 0 && request.lists("expect", "100-continue");
    let hosts = request.all("host").count();
    if hosts > 1 || (hosts == 0 && minor_version > 0) {
        return Err(HeadError::bad("there has to be one Host field"));
    }
    let body = body_length(&request)?;
    Ok((request, body))
}

/// RFC 9112 §6.3, refusing every request whose length two readers might understand differently.
fn body_length(request: &Request) -> Result<Body, HeadError> {
    let mut lengths = request.all("content-length");
    let length = lengths.next();
    if lengths.any(|other| Some(other) != length) {
        return Err(HeadError::bad("two Content-Length fields that differ"));
    }
    let mut encodings = request.all("transfer-encoding");
    if let Some(encoding) = encodings.next() {
        if length.is_some() || request.minor_version == 0 {
            return Err(HeadError::bad(
                "Transfer-Encoding together with Content-Length or HTTP/1.0",
            ));
        }
        if encodings.next().is_some() || !encoding.trim_ascii().eq_ignore_ascii_case(b"chunked") {
            return Err(HeadError {
                status: 501,
                reason: "unsupported transfer encoding",
            });
        }
        return Ok(Body::chunked());
    }
    let Some(length) = length else {
        return Ok(Body::sized(0));
    };
    let number = std::str::from_utf8(length)
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = number.and_then(|text| text.parse().ok());
    number
        .map(Body::sized)
        .ok_or(HeadError::bad("malformed Content-Length"))
}
