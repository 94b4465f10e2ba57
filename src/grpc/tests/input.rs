//! What a call announces and sends beside what is looked at.

use super::calls::{CALL, caller, with};
use crate::grpc::{Code, Event, Status};

/// The method comes first: grpc-go looks at the encoding once it knows whom the call is for.
#[test]
fn an_encoding_is_refused_by_whoever_knows_the_method() {
    for (encoding, refusal) in [
        (
            "gzip",
            Some("grpc: Decompressor is not installed for grpc-encoding \"gzip\""),
        ),
        ("identity", None),
        ("", None),
    ] {
        let mut caller = caller();
        let events = caller.start_with(1, &with(&[("grpc-encoding", encoding)]), false);
        assert!(matches!(events[..], [Event::Started { .. }]), "{events:?}");
        let status = caller.server.request().refused_encoding();
        assert_eq!(status.as_ref().map(|status| &*status.message), refusal);
        assert!(status.is_none_or(|status| status.code == Code::Unimplemented));
    }
}

/// What is behind the message of a unary call is not looked at: no event, no error, and its bytes go back to the
/// caller's window.
#[test]
fn input_that_is_ignored_may_be_anything() {
    for rest in [&[9u8; 40_000][..], &[0, 255, 255, 255, 255], &[0, 0, 0, 0, 9, 1]] {
        let mut caller = caller();
        let bytes = [&[0, 0, 0, 0, 1, 7], rest].concat();
        let events = caller.start_with(1, &CALL, false);
        let [Event::Started { call, .. }] = events[..] else {
            panic!("{events:?}")
        };
        let events = caller.data(1, &bytes[..6], false);
        assert!(matches!(events[..], [Event::Message { last: false, .. }]), "{events:?}");
        caller.server.ignore_input(call);
        for (place, piece) in bytes[6..].chunks(16_000).enumerate() {
            assert_eq!(caller.data(1, piece, (place + 1) * 16_000 >= rest.len()), []);
        }
        caller.server.finish(call, &Status::no_unary_message()).unwrap();
        assert!(caller.answer(1).ended);
    }
}
