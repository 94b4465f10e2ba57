//! The header list of one request as the decoder leaves it, and the rules of RFC 9113 §8 about it.
//!
//! One list per connection is reused from block to block. What a name means to HTTP itself is decided once, where the
//! name enters (`Class`); pseudo-header fields are kept apart from the fields a user of `http` looks up.

use super::hpack::ENTRY_OVERHEAD;

/// What a field name means to HTTP/2 itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// Nothing.
    Other,
    Method,
    Scheme,
    Path,
    Authority,
    /// A pseudo-header field that requests do not have.
    UnknownPseudo,
    /// A field of HTTP/1.1 connections, which HTTP/2 forbids (RFC 9113 §8.2.2).
    ConnectionSpecific,
    Te,
    ContentLength,
}

impl Class {
    pub(crate) const fn of(name: &[u8]) -> Self {
        match name {
            b":method" => Self::Method,
            b":scheme" => Self::Scheme,
            b":path" => Self::Path,
            b":authority" => Self::Authority,
            [b':', ..] => Self::UnknownPseudo,
            b"te" => Self::Te,
            b"content-length" => Self::ContentLength,
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
                Self::ConnectionSpecific
            }
            _ => Self::Other,
        }
    }
}

/// Whether a name and a value keep to RFC 9113 §8.2.1: the name not empty, without upper case, controls, blanks, bytes
/// above ASCII and colons (but the one that starts a pseudo-header field's name); the value without NUL, CR and LF, and
/// without blanks at its ends.
pub(crate) fn is_valid_field(name: &[u8], value: &[u8]) -> bool {
    let Some(first) = name.first() else { return false };
    let rest = if *first == b':' { &name[1..] } else { name };
    let name_is_valid = !rest.is_empty()
        && rest
            .iter()
            .all(|byte| matches!(byte, 0x21..=0x39 | 0x3b..=0x40 | 0x5b..=0x7e));
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    name_is_valid
        && !value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'))
        && !blank(value.first())
        && !blank(value.last())
}

#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: u32,
    length: u32,
}

#[derive(Clone, Copy, Debug)]
struct Stored {
    start: u32,
    name_length: u32,
    value_length: u32,
}

/// A decoded header list.
#[derive(Debug)]
pub struct HeaderList {
    bytes: Vec<u8>,
    fields: Vec<Stored>,
    method: Option<Span>,
    scheme: Option<Span>,
    path: Option<Span>,
    authority: Option<Span>,
    content_length: Option<u64>,
    /// Size by RFC 9113 §6.5.2, of the whole list even where it was cut.
    size: usize,
    limit: usize,
    /// The first rule broken.
    malformed: Option<&'static str>,
}

/// Memory of a list above which it is given back before the next block, in bytes.
const KEEP_BYTES: usize = 4_096;

impl HeaderList {
    /// An empty list that keeps at most `limit` bytes, by the RFC's count.
    pub fn new(limit: usize) -> Self {
        Self {
            bytes: Vec::new(),
            fields: Vec::new(),
            method: None,
            scheme: None,
            path: None,
            authority: None,
            content_length: None,
            size: 0,
            limit,
            malformed: None,
        }
    }

    pub(crate) fn clear(&mut self) {
        if self.bytes.capacity() > KEEP_BYTES {
            *self = Self::new(self.limit);
            return;
        }
        self.bytes.clear();
        self.fields.clear();
        (self.method, self.scheme, self.path, self.authority) = (None, None, None, None);
        self.content_length = None;
        self.size = 0;
        self.malformed = None;
    }

    /// Whether the list was larger than its limit; the fields beyond it are lost.
    pub fn is_truncated(&self) -> bool {
        self.size > self.limit
    }

    /// The first rule of RFC 9113 §8 that the list breaks.
    pub fn malformed(&self) -> Option<&'static str> {
        self.malformed
    }

    /// Takes note of a field and tells whether there is room for it.
    #[inline]
    pub(crate) fn admit(&mut self, name_length: usize, value_length: usize) -> bool {
        self.size = self.size.saturating_add(name_length + value_length + ENTRY_OVERHEAD);
        self.size <= self.limit
    }

    /// Appends a field that was admitted.
    #[inline]
    pub(crate) fn push(&mut self, class: Class, valid: bool, name: &[u8], value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.commit(class, valid, start, name.len());
    }

    /// The buffer behind the fields, for a decoder that writes name and value there itself and then commits them.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Makes a field of the buffer's bytes from `start` on, or drops them if the list has no room.
    pub(crate) fn admit_and_commit(&mut self, class: Class, valid: bool, start: usize, name_length: usize) {
        if self.admit(name_length, self.bytes.len() - start - name_length) {
            self.commit(class, valid, start, name_length);
        } else {
            self.bytes.truncate(start);
        }
    }

    #[inline]
    fn commit(&mut self, class: Class, valid: bool, start: usize, name_length: usize) {
        let value_start = start + name_length;
        let value = Span {
            start: value_start as u32,
            length: (self.bytes.len() - value_start) as u32,
        };
        if !valid {
            self.breaks("field name or value with a forbidden character");
        }
        let slot = match class {
            Class::Other => {
                return self.fields.push(Stored {
                    start: start as u32,
                    name_length: name_length as u32,
                    value_length: value.length,
                });
            }
            Class::Method => &mut self.method,
            Class::Scheme => &mut self.scheme,
            Class::Path => &mut self.path,
            Class::Authority => &mut self.authority,
            Class::UnknownPseudo => return self.breaks("pseudo-header field that requests do not have"),
            Class::ConnectionSpecific => return self.breaks("connection-specific field"),
            Class::Te => {
                if self.get_span(value) != b"trailers" {
                    self.breaks("te other than trailers");
                }
                return self.keep(start, name_length, value);
            }
            Class::ContentLength => {
                self.commit_content_length(value);
                return self.keep(start, name_length, value);
            }
        };
        if slot.replace(value).is_some() {
            return self.breaks("pseudo-header field given twice");
        }
        if !self.fields.is_empty() {
            self.breaks("pseudo-header field behind a regular one");
        }
    }

    fn keep(&mut self, start: usize, name_length: usize, value: Span) {
        self.fields.push(Stored {
            start: start as u32,
            name_length: name_length as u32,
            value_length: value.length,
        });
    }

    fn commit_content_length(&mut self, value: Span) {
        let text = std::str::from_utf8(self.get_span(value)).ok();
        let number = text
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|t| t.parse().ok());
        match (number, self.content_length) {
            (None, _) => self.breaks("content-length that is no number"),
            (Some(new), Some(old)) if new != old => self.breaks("two content-lengths that differ"),
            (Some(new), _) => self.content_length = Some(new),
        }
    }

    fn breaks(&mut self, rule: &'static str) {
        self.malformed.get_or_insert(rule);
    }

    #[inline]
    fn get_span(&self, span: Span) -> &[u8] {
        &self.bytes[span.start as usize..(span.start + span.length) as usize]
    }

    /// Checks what only the whole list of a request shows (RFC 9113 §8.3.1).
    pub(crate) fn check_request(&mut self) {
        let Some(method) = self.method else {
            return self.breaks("no :method");
        };
        if self.get_span(method) == b"CONNECT" {
            if self.scheme.is_some() || self.path.is_some() || self.authority.is_none() {
                self.breaks("CONNECT with :scheme or :path, or without :authority");
            }
            return;
        }
        if self.scheme.is_none() {
            return self.breaks("no :scheme");
        }
        match self.path {
            None => self.breaks("no :path"),
            Some(path) if path.length == 0 => self.breaks("empty :path"),
            Some(_) => {}
        }
    }

    /// Checks a list that came behind a body (RFC 9113 §8.1).
    pub(crate) fn check_trailers(&mut self) {
        if self.method.is_some() || self.scheme.is_some() || self.path.is_some() || self.authority.is_some() {
            self.breaks("pseudo-header field in trailers");
        }
    }

    /// The value of `:method`; empty if there was none.
    pub fn method(&self) -> &[u8] {
        self.method.map_or(&[], |span| self.get_span(span))
    }

    /// The value of `:path`, with its query.
    pub fn path(&self) -> &[u8] {
        self.path.map_or(&[], |span| self.get_span(span))
    }

    /// The value of `:scheme`.
    pub fn scheme(&self) -> &[u8] {
        self.scheme.map_or(&[], |span| self.get_span(span))
    }

    /// The value of `:authority`, if it was sent.
    pub fn authority(&self) -> Option<&[u8]> {
        self.authority.map(|span| self.get_span(span))
    }

    /// The number in `content-length`, if it was sent.
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// The first field called `name` (lower case).
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|(found, _)| *found == name.as_bytes())
            .map(|(_, value)| value)
    }

    /// Regular fields in the order of arrival, names in lower case.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|field| {
            let start = field.start as usize;
            let middle = start + field.name_length as usize;
            (
                &self.bytes[start..middle],
                &self.bytes[middle..middle + field.value_length as usize],
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(fields: &[(&str, &str)]) -> HeaderList {
        let mut list = HeaderList::new(1000);
        for (name, value) in fields {
            let valid = is_valid_field(name.as_bytes(), value.as_bytes());
            if list.admit(name.len(), value.len()) {
                list.push(Class::of(name.as_bytes()), valid, name.as_bytes(), value.as_bytes());
            }
        }
        list
    }

    fn request(fields: &[(&str, &str)]) -> Option<&'static str> {
        let mut list = list(fields);
        list.check_request();
        list.malformed()
    }

    const GOOD: [(&str, &str); 3] = [(":method", "POST"), (":scheme", "http"), (":path", "/a.B/C")];

    fn with(extra: &[(&'static str, &'static str)]) -> Option<&'static str> {
        request(&[&GOOD[..], extra].concat())
    }

    #[test]
    fn a_good_request_is_kept_apart_by_kind() {
        let list = list(&[&GOOD[..], &[(":authority", "h:1"), ("token", "t"), ("te", "trailers")]].concat());
        assert_eq!(list.malformed(), None);
        assert_eq!(
            (list.method(), list.path(), list.scheme()),
            (&b"POST"[..], &b"/a.B/C"[..], &b"http"[..])
        );
        assert_eq!(list.authority(), Some(&b"h:1"[..]));
        assert_eq!(list.get("token"), Some(&b"t"[..]));
        assert_eq!(list.get("absent"), None);
        assert_eq!(list.iter().count(), 2);
    }

    #[test]
    fn rules_of_rfc_9113_section_8() {
        assert_eq!(with(&[]), None);
        assert_eq!(request(&GOOD[1..]), Some("no :method"));
        assert_eq!(request(&[GOOD[0], GOOD[2]]), Some("no :scheme"));
        assert_eq!(request(&GOOD[..2]), Some("no :path"));
        assert_eq!(request(&[GOOD[0], GOOD[1], (":path", "")]), Some("empty :path"));
        assert_eq!(with(&[(":path", "/b")]), Some("pseudo-header field given twice"));
        assert_eq!(
            with(&[("a", "b"), (":authority", "b")]),
            Some("pseudo-header field behind a regular one")
        );
        assert_eq!(
            with(&[(":status", "200")]),
            Some("pseudo-header field that requests do not have")
        );
        assert_eq!(with(&[("connection", "close")]), Some("connection-specific field"));
        assert_eq!(with(&[("te", "gzip")]), Some("te other than trailers"));
        assert_eq!(
            with(&[("content-length", "-1")]),
            Some("content-length that is no number")
        );
        assert_eq!(
            with(&[("content-length", "")]),
            Some("content-length that is no number")
        );
        assert_eq!(
            with(&[("content-length", "1"), ("content-length", "2")]),
            Some("two content-lengths that differ")
        );
        assert_eq!(with(&[("content-length", "1"), ("content-length", "1")]), None);
        for (name, value) in [
            ("A", "b"),
            ("", "b"),
            ("a b", "c"),
            ("a:", "c"),
            ("a\u{7f}", "c"),
            ("é", "c"),
        ] {
            assert_eq!(
                with(&[(name, value)]),
                Some("field name or value with a forbidden character"),
                "{name:?}"
            );
        }
        for value in [" a", "a\t", "a\0b", "a\nb", "a\rb"] {
            assert_eq!(
                with(&[("a", value)]),
                Some("field name or value with a forbidden character"),
                "{value:?}"
            );
        }
        assert_eq!(with(&[("a", ""), ("a.b_c-d", "e f\tg é")]), None);
        assert_eq!(request(&[(":method", "CONNECT"), (":authority", "a")]), None);
        assert!(request(&[(":method", "CONNECT")]).is_some());
        let mut trailers = list(&GOOD[..1]);
        trailers.check_trailers();
        assert_eq!(trailers.malformed(), Some("pseudo-header field in trailers"));
    }

    #[test]
    fn a_list_beyond_its_limit_is_cut_and_says_so() {
        let mut list = list(&[("a", "1"), ("b", &"x".repeat(1000)), ("c", "2")]);
        assert!(list.is_truncated());
        assert_eq!(list.iter().count(), 1);
        list.clear();
        assert!(!list.is_truncated());
        assert_eq!(list.iter().count(), 0);
    }
}
