//! Waiting: for one of two things, or not longer than a peer may be silent.

use crate::reactor::serve::{self, Stream};
use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// What came first.
pub(super) enum Either<A, B> {
    Left(A),
    Right(B),
}

/// The one that comes first; the left one when both are there. The other is dropped.
pub(super) async fn either<A, B>(left: impl Future<Output = A>, right: impl Future<Output = B>) -> Either<A, B> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    std::future::poll_fn(|context| {
        if let Poll::Ready(value) = left.as_mut().poll(context) {
            return Poll::Ready(Either::Left(value));
        }
        right.as_mut().poll(context).map(Either::Right)
    })
    .await
}

/// Received bytes, none at the end; an error if nothing came for as long as `silence`.
pub(super) async fn receive(stream: &Stream, silence: Duration) -> io::Result<bytes::Bytes> {
    let received = serve::timeout(silence, stream.receive()).await;
    received.unwrap_or_else(|| Err(silent("nothing came", silence)))
}

/// Sends all of it; an error if the peer took nothing for as long as `silence`.
pub(super) async fn send(stream: &Stream, mut bytes: &[u8], silence: Duration) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = serve::timeout(silence, stream.write(bytes)).await;
        match written.unwrap_or_else(|| Err(silent("nothing was taken", silence)))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            length => bytes = &bytes[length..],
        }
    }
    Ok(())
}

fn silent(what: &str, silence: Duration) -> io::Error {
    let text = format!("{what} for {} seconds", silence.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, text)
}
