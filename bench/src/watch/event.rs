//! A `WatchResponse` as far as counting needs it, read without decoding the rest: field numbers from etcd's `rpc.proto`
//! and `kv.proto`.

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    pub mod_revision: u64,
    pub value: &'a [u8],
}

/// What a response says beside its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub watch_id: u64,
    pub created: bool,
    pub canceled: bool,
}

/// A value that is no Protocol Buffers message, or not this one.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Takes one field off a message.
#[inline]
fn take<'a>(rest: &mut &'a [u8]) -> Result<Option<(u64, Field<'a>)>, Malformed> {
    if rest.is_empty() {
        return Ok(None);
    }
    let tag = varint(rest)?;
    let field = match tag & 7 {
        0 => Field::Number(varint(rest)?),
        2 => {
            let length = varint(rest)? as usize;
            let (bytes, behind) = rest.split_at_checked(length).ok_or(Malformed)?;
            *rest = behind;
            Field::Bytes(bytes)
        }
        _ => return Err(Malformed),
    };
    Ok(Some((tag >> 3, field)))
}

#[inline]
fn varint(rest: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0;
    for (place, byte) in rest.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            *rest = &rest[place + 1..];
            return Ok(value);
        }
    }
    Err(Malformed)
}

/// Reads a response and tells of every event.
pub fn read(mut message: &[u8], mut event: impl FnMut(Event<'_>)) -> Result<Head, Malformed> {
    let mut head = Head::default();
    while let Some(field) = take(&mut message)? {
        match field {
            (2, Field::Number(id)) => head.watch_id = id,
            (3, Field::Number(created)) => head.created = created != 0,
            (4, Field::Number(canceled)) => head.canceled = canceled != 0,
            (11, Field::Bytes(bytes)) => event(read_event(bytes)?),
            _ => {}
        }
    }
    Ok(head)
}

fn read_event(mut message: &[u8]) -> Result<Event<'_>, Malformed> {
    let mut event = Event {
        mod_revision: 0,
        value: &[],
    };
    while let Some(field) = take(&mut message)? {
        let (2, Field::Bytes(mut kv)) = field else { continue };
        while let Some(field) = take(&mut kv)? {
            match field {
                (3, Field::Number(revision)) => event.mod_revision = revision,
                (5, Field::Bytes(value)) => event.value = value,
                _ => {}
            }
        }
    }
    Ok(event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use ringd::proto::etcdserverpb::WatchResponse;
    use ringd::proto::mvccpb;

    #[test]
    fn events_are_found() {
        let kv = |mod_revision, value: &str| mvccpb::KeyValue {
            key: "key".into(),
            create_revision: 3,
            mod_revision,
            version: 300,
            value: value.to_string().into(),
            lease: 7,
        };
        let event = |revision, value| mvccpb::Event {
            kv: Some(kv(revision, value)),
            prev_kv: Some(kv(1, "before")),
            ..Default::default()
        };
        let response = WatchResponse {
            header: Some(Default::default()),
            watch_id: 300,
            created: true,
            events: vec![event(1 << 40, "one"), event(5, "")],
            ..Default::default()
        };
        let bytes = response.encode_to_vec();
        let mut found = Vec::new();
        let head = read(&bytes, |event| found.push((event.mod_revision, event.value.to_vec())));
        let expected = Head {
            watch_id: 300,
            created: true,
            canceled: false,
        };
        assert_eq!(head, Ok(expected));
        assert_eq!(found, [(1 << 40, b"one".to_vec()), (5, Vec::new())]);
        assert_eq!(read(&bytes[..bytes.len() - 1], |_| ()), Err(Malformed));
        assert_eq!(read(&[0xff; 12], |_| ()), Err(Malformed));
    }
}
