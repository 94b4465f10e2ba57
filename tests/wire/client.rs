//! A client that sends a script of frames and writes down what comes back, and the comparison of two servers.

use std::time::{Duration, Instant};

use prost::Message;

use crate::support::{
    etcd,
    frames::{self, Frame, Raw},
    grpc,
    server::Server,
};

/// How long an answer may take, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long is waited for what should not come, and how long when the two servers were not at one about it: one of
/// them may just have been slow.
const SILENCE: Duration = Duration::from_millis(200);
const LONG_SILENCE: Duration = Duration::from_secs(10);

/// What a client does.
#[derive(Clone)]
pub enum Act {
    Headers {
        stream: u32,
        fields: Vec<(Vec<u8>, Vec<u8>)>,
        end: bool,
    },
    Data {
        stream: u32,
        bytes: Vec<u8>,
        end: bool,
    },
    Bytes(Vec<u8>),
    /// Reads until a stream has been answered to its end, and goes on after a pause.
    AwaitAnswer(u32),
}

/// How long a client listens.
#[derive(Clone, Copy, PartialEq)]
pub enum Until {
    /// Until the last stream it opened has ended.
    End,
    /// For a while: nothing more is to come.
    Silence,
    /// Until the last stream it opened has ended, and then for a while: nothing more is to come.
    SilenceAfterEnd,
}

/// What a client does, and how long it listens.
pub struct Case {
    name: String,
    acts: Vec<Act>,
    until: Until,
}

/// A case that ends with its last call.
pub fn case(name: impl Into<String>, acts: Vec<Act>) -> Case {
    Case {
        name: name.into(),
        acts,
        until: Until::End,
    }
}

/// A case after which nothing more is to come.
pub fn silent(name: impl Into<String>, acts: Vec<Act>) -> Case {
    Case {
        name: name.into(),
        acts,
        until: Until::Silence,
    }
}

/// A case that ends by itself at some time, after which nothing more is to come.
pub fn silent_after_end(name: impl Into<String>, acts: Vec<Act>) -> Case {
    Case {
        name: name.into(),
        acts,
        until: Until::SilenceAfterEnd,
    }
}

/// A header list.
pub type Fields = Vec<(&'static str, Vec<u8>)>;

/// The header list of a proper call.
pub fn proper(path: &str) -> Fields {
    vec![
        (":method", b"POST".to_vec()),
        (":scheme", b"http".to_vec()),
        (":path", path.into()),
        (":authority", b"localhost".to_vec()),
        ("content-type", b"application/grpc".to_vec()),
        ("te", b"trailers".to_vec()),
    ]
}

/// A header list with a field changed, or added at the end.
pub fn with(mut fields: Fields, name: &'static str, value: impl Into<Vec<u8>>) -> Fields {
    let value = value.into();
    match fields.iter_mut().find(|(found, _)| *found == name) {
        Some((_, old)) => *old = value,
        None => fields.push((name, value)),
    }
    fields
}

/// A header list that lacks a field.
pub fn without(mut fields: Fields, name: &str) -> Fields {
    fields.retain(|(found, _)| *found != name);
    fields
}

/// A header list with a field at its end, a second time if it is there.
pub fn plus(mut fields: Fields, name: &'static str, value: impl Into<Vec<u8>>) -> Fields {
    fields.push((name, value.into()));
    fields
}

/// Begins a call.
pub fn open_on(stream: u32, fields: Fields, end: bool) -> Act {
    let fields = fields
        .into_iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value))
        .collect();
    Act::Headers { stream, fields, end }
}

/// Begins the first call.
pub fn open(fields: Fields) -> Act {
    open_on(1, fields, false)
}

/// Data of the first call.
pub fn data(bytes: impl Into<Vec<u8>>, end: bool) -> Act {
    Act::Data {
        stream: 1,
        bytes: bytes.into(),
        end,
    }
}

/// A read of a key that is not there, framed.
pub fn read() -> Vec<u8> {
    grpc::frame(&etcd::get("none").encode_to_vec()).to_vec()
}

/// A proper read with another header list.
pub fn read_with(name: impl Into<String>, fields: Fields) -> Case {
    case(name, vec![open(fields), data(read(), true)])
}

/// What came back, a line for each thing.
fn perform(server: &Server, case: &Case, silence: Duration) -> Vec<String> {
    let mut listener = Listener {
        raw: Raw::connect(&server.address()).expect("a connection"),
        seen: Vec::new(),
    };
    let mut last_stream = 0;
    for act in &case.acts {
        let raw = &mut listener.raw;
        // A server that has ended the connection shows that below.
        let _ = match act {
            Act::Headers { stream, fields, end } => {
                last_stream = *stream;
                let fields: Vec<(&[u8], &[u8])> = fields.iter().map(|(name, value)| (&name[..], &value[..])).collect();
                raw.headers(*stream, &fields, *end)
            }
            Act::Data { stream, bytes, end } => raw.data(*stream, bytes, *end),
            Act::Bytes(bytes) => raw.send(bytes),
            Act::AwaitAnswer(stream) => {
                listener.listen(Until::SilenceAfterEnd, silence, *stream);
                Ok(())
            }
        };
    }
    listener.listen(case.until, silence, last_stream);
    listener.seen
}

/// A connection, and what came back on it.
struct Listener {
    raw: Raw,
    seen: Vec<String>,
}

impl Listener {
    fn listen(&mut self, until: Until, silence: Duration, stream: u32) {
        let in_silence = |listener: &mut Self| listener.until_end(Instant::now() + silence, None);
        match until {
            Until::Silence => drop(in_silence(self)),
            Until::End | Until::SilenceAfterEnd => match self.until_end(Instant::now() + PATIENCE, Some(stream)) {
                Heard::Nothing => self.seen.push("nothing more, though the call has not ended".into()),
                Heard::End if until == Until::SilenceAfterEnd => drop(in_silence(self)),
                Heard::End | Heard::Over => {}
            },
        }
    }

    /// Notes frames until `deadline`, until the connection is over, or until this stream has ended.
    fn until_end(&mut self, deadline: Instant, stream: Option<u32>) -> Heard {
        loop {
            let frame = match self.raw.next(deadline) {
                Ok(Some(frame)) => frame,
                Ok(None) => return Heard::Nothing,
                Err(_) => {
                    self.seen.push("the connection ended".into());
                    return Heard::Over;
                }
            };
            let is_message = frame.kind <= frames::HEADERS;
            let ends = frame.kind == frames::RST_STREAM || is_message && frame.flags & frames::END_STREAM != 0;
            let (of, kind) = (frame.stream, frame.kind);
            self.note(frame);
            if kind == frames::GOAWAY {
                // How soon the connection ends after this is each server's own.
                return Heard::Over;
            }
            if is_message && ends {
                self.seen.push(format!("{of}: end"));
            }
            if ends && stream == Some(of) {
                return Heard::End;
            }
        }
    }

    fn note(&mut self, frame: Frame) {
        let stream = frame.stream;
        match frame.kind {
            frames::HEADERS => {
                let mut fields = self.raw.fields(&frame);
                fields.iter_mut().for_each(settle);
                // Without a message and with an empty one is the same to every client.
                fields.retain(|(name, value)| !(name == "grpc-message" && value.is_empty()));
                fields.sort();
                self.seen.push(format!("{stream}: fields {fields:?}"));
            }
            frames::DATA => self.seen.push(format!("{stream}: data {:02x?}", frame.payload)),
            frames::RST_STREAM => {
                let reset = format!("{stream}: reset");
                if !self.seen.iter().any(|line| line.starts_with(&reset)) {
                    self.seen.push(format!("{reset} {:?}", frame.payload));
                }
            }
            frames::GOAWAY => {
                let (code, text) = frame.payload[4..].split_at(4);
                self.seen
                    .push(format!("goaway {code:?} {}", String::from_utf8_lossy(text)));
            }
            frames::PING if frame.flags & frames::ACK == 0 => {
                let _ = self
                    .raw
                    .send(&frames::frame(frames::PING, frames::ACK, 0, &frame.payload));
            }
            _ => {}
        }
    }
}

/// How listening ended.
enum Heard {
    /// At its deadline.
    Nothing,
    /// With the stream that was listened for.
    End,
    /// With the connection.
    Over,
}

/// Go's protobuf separates words by one of two kinds of space, by chance of the build.
fn settle((_, value): &mut (String, String)) {
    *value = value.replace("%C2%A0", " ");
}

/// Performs every case on both servers: name, what the subject sent, what the reference did.
pub fn perform_on_both(arguments: &[&str], cases: Vec<Case>) -> Vec<(String, Vec<String>, Vec<String>)> {
    let subject = Server::subject(arguments);
    let reference = Server::reference(arguments);
    let both = |case: Case| {
        let both = |silence| (perform(&subject, &case, silence), perform(&reference, &case, silence));
        let (mut ours, mut theirs) = both(SILENCE);
        if ours != theirs && case.until == Until::Silence {
            (ours, theirs) = both(LONG_SILENCE);
        }
        (case.name, ours, theirs)
    };
    cases.into_iter().map(both).collect()
}

/// Performs every case on both servers and reports all differences at once.
pub fn expect_same(arguments: &[&str], cases: Vec<Case>) {
    let mut differences = String::new();
    for (name, ours, theirs) in perform_on_both(arguments, cases) {
        if ours != theirs {
            let (ours, theirs) = (ours.join("\n    "), theirs.join("\n    "));
            differences += &format!("\n{name}\n  subject:\n    {ours}\n  reference:\n    {theirs}");
        }
    }
    assert!(differences.is_empty(), "{differences}");
}
