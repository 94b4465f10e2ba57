//! What peers send each other against etcd's own code: it reads what ringd writes and writes the same again; ringd
//! reads what it writes. `tests/peer-codec` is the Go program on etcd's `rafthttp`, which `go` builds when the tests
//! start.

use bytes::Bytes;
use raft::eraftpb::{Entry, Message, MessageType};
use ringd::raft::transport::codec::{
    AppendDecoder, AppendEncoder, Item, MessageDecoder, encode_heartbeat, encode_message,
};
use ringd::raft::transport::wire::{self, Change, ConfChange};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Runs the Go program on `input` and returns what it printed.
fn etcd(command: &str, input: &[u8]) -> Vec<u8> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peer-codec");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peer-codec");
        let mut build = Command::new("go");
        build.arg("build").arg("-o").arg(&program).arg(".").current_dir(source);
        let built = build.output().expect("these tests need the Go toolchain");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        program
    });
    let mut started = Command::new(program);
    started
        .arg(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = started.spawn().expect("the program was just built");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input).expect("the program reads all of it first");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// A message in the words of the Go program.
fn describe(message: &Message) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let Message {
        to,
        from,
        term,
        log_term,
        index,
        commit,
        ..
    } = message;
    let mut text = wire::name(message.msg_type()).to_string();
    let _ = write!(
        text,
        " to {to:x} from {from:x} term {term} logterm {log_term} index {index} commit {commit}"
    );
    let (reject, hint) = (message.reject, message.reject_hint);
    let _ = write!(text, " reject {reject} hint {hint} context {}", hex(&message.context));
    for entry in &message.entries {
        let _ = write!(
            text,
            " entry {} {} {} {}",
            entry.entry_type,
            entry.term,
            entry.index,
            hex(&entry.data)
        );
    }
    if let Some(snapshot) = &message.snapshot {
        let metadata = snapshot.get_metadata();
        let state = metadata.get_conf_state();
        let list = |ids: &[u64]| format!("{ids:?}").replace(',', "");
        let _ = write!(
            text,
            " snapshot {} {} {} {} {} {} {} {}",
            hex(&snapshot.data),
            metadata.index,
            metadata.term,
            list(&state.voters),
            list(&state.learners),
            list(&state.voters_outgoing),
            list(&state.learners_next),
            state.auto_leave
        );
    }
    text
}

/// Messages of every type and with every field.
fn messages() -> Vec<Message> {
    let mut made = Vec::new();
    for kind in (0..30).filter_map(wire::kind_of) {
        for variant in 0..3u64 {
            let mut message = Message {
                to: 1,
                from: 0xabc << 40,
                term: variant,
                log_term: 3 * variant,
                index: variant << 33,
                reject: variant == 1,
                reject_hint: 7 * variant,
                context: vec![b'c'; variant as usize * 8].into(),
                ..Message::default()
            };
            message.set_msg_type(kind);
            message.entries = (0..variant * 2).map(|index| entry(index, index)).collect();
            if kind == MessageType::MsgSnapshot {
                let snapshot = message.mut_snapshot();
                snapshot.data = "data".into();
                let metadata = snapshot.mut_metadata();
                (metadata.index, metadata.term) = (variant, 2);
                *metadata.mut_conf_state() = (vec![1, 2 << 60], vec![3]).into();
            }
            if matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat) {
                message.commit = 9 * variant;
            }
            made.push(message);
        }
    }
    made
}

fn entry(term: u64, index: u64) -> Entry {
    Entry {
        entry_type: (index % 3) as i32,
        term,
        index,
        data: vec![index as u8; (index as usize * 131) % 5000].into(),
        ..Entry::default()
    }
}

fn read(stream: Vec<u8>) -> Vec<Item> {
    let mut decoder = MessageDecoder::default();
    decoder.receive(stream.into());
    std::iter::from_fn(|| decoder.next_item().expect("a stream of messages")).collect()
}

#[test]
fn etcd_reads_our_messages_and_writes_the_same() {
    let (mut stream, mut texts) = (Vec::new(), String::new());
    for message in messages() {
        encode_message(&message, &mut stream).unwrap();
        texts += &(describe(&message) + "\n");
    }
    encode_heartbeat(&mut stream);
    let mut heartbeat = Message::default();
    heartbeat.set_msg_type(MessageType::MsgHeartbeat);
    texts += &(describe(&heartbeat) + "\n");
    assert_eq!(String::from_utf8(etcd("describe", &stream)).unwrap(), texts);
    assert!(etcd("message", &stream) == stream, "etcd encodes something else");
}

#[test]
fn we_read_etcds_messages_as_etcd_does() {
    let stream = etcd("make", &[]);
    let theirs = String::from_utf8(etcd("describe", &stream)).unwrap();
    let items = read(stream);
    assert_eq!(items.len(), theirs.lines().count());
    let mut known = 0;
    for (item, line) in items.iter().zip(theirs.lines()) {
        match item {
            Item::Message(message) => {
                let mut line = line.to_string();
                // What only appends, heartbeats and snapshots have a use for is not read elsewhere.
                if !["MsgApp ", "MsgHeartbeat ", "MsgSnap "]
                    .iter()
                    .any(|kind| line.starts_with(kind))
                {
                    let (start, rest) = line.split_once(" commit ").unwrap();
                    line = format!("{start} commit 0 {}", rest.split_once(' ').unwrap().1);
                }
                assert_eq!(describe(message), line);
                known += 1;
            }
            Item::Heartbeat => panic!("everything there has a sender"),
            Item::Unknown(_) => assert!(
                [
                    "MsgHup",
                    "MsgBeat",
                    "MsgUnreachable",
                    "MsgSnapStatus",
                    "MsgCheckQuorum",
                    "MsgStorage",
                    "MsgForgetLeader"
                ]
                .iter()
                .any(|local| line.starts_with(local)),
                "{line}"
            ),
        }
    }
    assert_eq!(known, 14 * 4);
}

/// A leader's appends: going on, going back, in a new term, with an entry that does not fit etcd's buffer.
fn appends() -> Vec<Message> {
    let append = |term: u64, log_term: u64, index: u64, terms: &[u64]| {
        let mut message = Message {
            to: 1,
            from: 2,
            term,
            log_term,
            index,
            entries: terms
                .iter()
                .zip(index + 1..)
                .map(|(term, index)| entry(*term, index))
                .collect(),
            commit: index,
            ..Message::default()
        };
        message.set_msg_type(MessageType::MsgAppend);
        message
    };
    let mut made = vec![
        append(1, 0, 0, &[1]),
        append(1, 1, 1, &[1, 1]),
        append(1, 1, 3, &[]),
        append(2, 1, 3, &[2]),
        append(2, 2, 4, &[2, 2, 2]),
        append(2, 2, 7, &[2]),
        append(2, 2, 3, &[]),
        append(2, 2, 3, &[2, 2]),
        append(2, 2, 4, &[]),
    ];
    made[5].entries[0].data = vec![b'x'; 3 << 20].into();
    made
}

#[test]
fn etcd_reads_our_appends_and_writes_the_same() {
    let (mut encoder, mut stream, mut texts) = (AppendEncoder::default(), Vec::new(), String::new());
    for message in appends() {
        encoder.encode(&message, &mut stream).unwrap();
        encoder.heartbeat(&mut stream);
        texts += &(describe(&message) + "\n");
    }
    let theirs = String::from_utf8(etcd("describe-app", &stream)).unwrap();
    let theirs: Vec<_> = theirs
        .lines()
        .filter(|line| !line.starts_with("MsgHeartbeat"))
        .collect();
    assert!(
        theirs == texts.lines().collect::<Vec<_>>(),
        "etcd understands something else"
    );
    let again = etcd("msgapp", &stream);
    assert!(again == stream, "etcd encodes something else");
    let mut decoder = AppendDecoder::new(1, 2);
    decoder.receive(Bytes::from(again));
    let items = std::iter::from_fn(|| decoder.next_item().expect("a stream of appends"));
    let read: Vec<_> = items
        .filter_map(|item| match item {
            Item::Message(message) => Some(*message),
            _ => None,
        })
        .collect();
    assert!(read == appends(), "we read something else than we wrote");
}

#[test]
fn changes_mean_the_same_to_etcd() {
    for (change, name) in [
        (Change::AddNode, "ConfChangeAddNode"),
        (Change::RemoveNode, "ConfChangeRemoveNode"),
        (Change::UpdateNode, "ConfChangeUpdateNode"),
        (Change::AddLearnerNode, "ConfChangeAddLearnerNode"),
    ] {
        let change = ConfChange {
            id: 5,
            change,
            node_id: 0xabc,
            context: "{}".into(),
        };
        let mut bytes = Vec::new();
        change.encode(&mut bytes);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let read = String::from_utf8(etcd("change", &bytes)).unwrap();
        assert_eq!(read, format!("5 {name} 2748 7b7d\n{hex}\n"));
        assert_eq!(ConfChange::decode(bytes.into()), Ok(change));
    }
}
