//! The calls of a core that are not over: what is kept of them, and their end.

use super::method::Method;
use super::service::{Api, CallState, Caller, unreadable};
use crate::grpc::{Code, Status};
use crate::limits::API_HELD_BYTES;
use crate::net::Net;
use bytes::Bytes;

impl Api {
    /// The state of a call that is not over.
    pub(super) fn state(&mut self, caller: Caller) -> Option<&mut CallState> {
        self.calls
            .get_mut(caller.tag as usize)
            .filter(|state| state.call == caller.call)
    }

    /// Keeps the message of a call until its caller has sent all. One that can't be read is refused at once.
    pub(super) fn hold(&mut self, net: &mut Net, caller: Caller, method: Method, message: &Bytes) {
        if let Some(status) = unreadable(method, message) {
            return self.fail(net, caller, &status);
        }
        if self.held_bytes + message.len() > API_HELD_BYTES {
            let text = "grpc: too many bytes of requests whose callers have not sent all";
            return self.fail(net, caller, &Status::new(Code::ResourceExhausted, text));
        }
        self.held_bytes += message.len();
        if let Some(state) = self.state(caller) {
            // A copy: the message may be a slice of a far larger buffer.
            state.held = Some(Bytes::copy_from_slice(message));
        }
    }

    /// A call was answered to its end, with a message of `length` bytes if it is unary.
    pub(super) fn finished(&mut self, caller: Caller, length: usize) {
        self.count_sent_bytes(length);
        self.forget(caller, Code::Ok);
    }

    pub(super) fn forget(&mut self, caller: Caller, code: Code) {
        let Some(state) = self.state(caller) else { return };
        let (method, room, received_at) = (state.method, state.room.take(), state.received_at);
        let held = state.held.take();
        self.held_bytes -= held.map_or(0, |message| message.len());
        self.calls.remove(caller.tag as usize);
        self.call_ended(method, code, received_at);
        if method == Method::Watch {
            self.watch_ended(caller);
        }
        if let Some(room) = room {
            room.notify();
        }
    }
}
