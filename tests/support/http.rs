//! A plain HTTP/1.1 client that shows an answer as it came.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

/// An answer, its fields by lower-case name.
#[derive(Debug, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let (_, value) = self.fields.iter().find(|(found, _)| found == name)?;
        Some(value)
    }

    /// Without what may differ: the time, the way the length is told, and the order of fields and checks.
    pub fn comparable(mut self) -> Self {
        let varies = ["date", "content-length", "transfer-encoding", "connection"];
        self.fields.retain(|(name, _)| !varies.contains(&name.as_str()));
        self.fields.sort();
        let mut lines: Vec<&str> = self.body.split('\n').collect();
        lines.sort_unstable();
        self.body = lines.join("\n");
        self
    }
}

/// One request on a connection of its own.
pub fn request(address: &str, method: &str, target: &str) -> Answer {
    let request = format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    answer_to(address, method, request.as_bytes())
}

/// The answer to a request that is written out, on a connection of its own.
pub fn answer_to(address: &str, method: &str, request: &[u8]) -> Answer {
    // etcd leaves a peer's connection open for seconds after the answer.
    let text = exchange_until(address, request, |answer| is_whole(answer, method));
    let text = String::from_utf8(text).expect("an answer in UTF-8");
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no head in {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status");
    let fields = lines.map(|line| {
        let (name, value) = line.split_once(": ").expect("a field");
        (name.to_ascii_lowercase(), value.to_string())
    });
    let fields: Vec<_> = fields.collect();
    let is_chunked = fields.iter().any(|(name, _)| name == "transfer-encoding");
    Answer {
        status: status.parse().expect("a number"),
        body: if is_chunked {
            join_chunks(body)
        } else {
            body.to_string()
        },
        fields,
    }
}

/// The body that chunks make.
fn join_chunks(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((length, tail)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("a chunk's length");
        body.push_str(&tail[..length]);
        rest = tail[length..].strip_prefix("\r\n").expect("a chunk's end");
    }
    body
}

/// Whether an answer has come to the end that its head names.
fn is_whole(answer: &[u8], method: &str) -> bool {
    let text = String::from_utf8_lossy(answer).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    method == "HEAD" || length.is_some_and(|length| body.len() >= length.parse().expect("a number"))
}

/// Sends bytes on a connection of its own; all that comes back until its end.
pub fn exchange(address: &str, sent: &[u8]) -> Vec<u8> {
    exchange_until(address, sent, |_| false)
}

fn exchange_until(address: &str, sent: &[u8], is_whole: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("a timeout");
    stream.write_all(sent).expect("the request is sent");
    let mut answer = Vec::new();
    let mut part = [0; 16 << 10];
    while !is_whole(&answer) {
        match stream.read(&mut part) {
            Ok(length) if length > 0 => answer.extend_from_slice(&part[..length]),
            // A reset is an answer, too.
            _ => break,
        }
    }
    answer
}
