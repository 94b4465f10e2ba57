//! A small gRPC client on the `h2` crate: it shows an answer's status, headers and raw messages, and interprets
//! nothing.

use std::{fmt, io};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::{RecvStream, SendStream, client, client::ResponseFuture};
use http::{HeaderMap, Request, Response};
use prost::Message;
use tokio::net::TcpStream;

/// The bytes in front of each message: a compression flag and a length of four bytes.
const PREFIX_LENGTH: usize = 5;
/// The flow-control window of a stream, unless a test asks for a smaller one.
const STREAM_WINDOW: u32 = 16 << 20;
/// The flow-control window of a connection.
const CONNECTION_WINDOW: u32 = 64 << 20;

/// How a call ended.
#[derive(Clone, PartialEq, Eq)]
pub struct Status {
    /// gRPC's code; [`Status::TRANSPORT`] when the server sent none.
    pub code: i32,
    /// gRPC's message, percent-decoded; for a call without a status, what happened instead.
    pub message: String,
}

impl Status {
    /// Stands for a call that ended without a gRPC status.
    pub const TRANSPORT: i32 = -1;

    /// The status of a call that succeeded.
    pub fn ok() -> Self {
        Self {
            code: 0,
            message: String::new(),
        }
    }

    fn transport(error: impl fmt::Display) -> Self {
        Self {
            code: Self::TRANSPORT,
            message: error.to_string(),
        }
    }

    fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let code = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
        let message = headers
            .get("grpc-message")
            .map(|message| percent_decode(message.as_bytes()))
            .unwrap_or_default();
        Some(Self { code, message })
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "status {} {:?}", self.code, self.message)
    }
}

/// The whole answer to a unary or server-streaming call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status, from the trailers or from headers without a body.
    pub status: Status,
    /// HTTP's status and the content type, which gRPC fixes: 200 and `application/grpc`.
    pub head: Option<(u16, String)>,
    /// The messages, without their prefixes.
    pub messages: Vec<Bytes>,
}

impl Reply {
    /// The one message of a successful unary call, or the status of a failed one.
    pub fn message<R: Message + Default>(&self) -> Result<R, Status> {
        if self.status.code != 0 {
            return Err(self.status.clone());
        }
        match self.messages.as_slice() {
            [message] => R::decode(message.clone()).map_err(Status::transport),
            other => Err(Status::transport(format!("{} messages in a unary answer", other.len()))),
        }
    }
}

/// A connection.
#[derive(Clone)]
pub struct Channel {
    sender: client::SendRequest<Bytes>,
    authority: String,
}

impl Channel {
    /// Connects to `address` (`host:port`).
    pub async fn connect(address: &str) -> io::Result<Self> {
        Self::connect_with_windows(address, STREAM_WINDOW, CONNECTION_WINDOW).await
    }

    /// Connects with the given flow-control windows, in bytes, for a stream and for the connection.
    pub async fn connect_with_windows(address: &str, stream: u32, connection: u32) -> io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let mut builder = client::Builder::new();
        builder
            .initial_window_size(stream)
            .initial_connection_window_size(connection);
        builder
            .max_concurrent_reset_streams(1000)
            .enable_push(false)
            .max_send_buffer_size(64 << 20);
        let (sender, driver) = builder.handshake(socket).await.map_err(io::Error::other)?;
        tokio::spawn(async move {
            // A connection that breaks shows in the calls that were on it.
            let _ = driver.await;
        });
        Ok(Self {
            sender,
            authority: address.to_string(),
        })
    }

    /// A unary call with a message, decoded.
    pub async fn call<R: Message + Default>(&self, path: &str, request: &impl Message) -> Result<R, Status> {
        self.unary(path, request.encode_to_vec().into(), &[]).await.message()
    }

    /// A call with one request message, given as raw bytes; collects the whole answer.
    pub async fn unary(&self, path: &str, request: Bytes, metadata: &[(&str, &str)]) -> Reply {
        self.framed(path, frame(&request), metadata).await
    }

    /// A call whose body is sent as it is: for framing that is wrong on purpose.
    pub async fn framed(&self, path: &str, body: Bytes, metadata: &[(&str, &str)]) -> Reply {
        let (response, mut sender) = match self.open(path, metadata).await {
            Ok(opened) => opened,
            Err(status) => {
                return Reply {
                    status,
                    head: None,
                    messages: Vec::new(),
                };
            }
        };
        // An error here means that the server ended the call early; its answer tells why.
        let _ = sender.send_data(body, true);
        let mut stream = Stream::new(response, sender);
        let mut messages = Vec::new();
        let status = loop {
            match stream.next_raw().await {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break Status::ok(),
                Err(status) => break status,
            }
        };
        Reply {
            status,
            head: stream.head,
            messages,
        }
    }

    /// Opens a call and leaves both directions open.
    pub async fn stream(&self, path: &str, metadata: &[(&str, &str)]) -> Result<Stream, Status> {
        let (response, sender) = self.open(path, metadata).await?;
        Ok(Stream::new(response, sender))
    }

    async fn open(&self, path: &str, metadata: &[(&str, &str)]) -> Result<(ResponseFuture, SendStream<Bytes>), Status> {
        let mut request = Request::post(format!("http://{}{path}", self.authority))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in metadata {
            request = request.header(*name, *value);
        }
        let request = request.body(()).map_err(Status::transport)?;
        let mut sender = self.sender.clone().ready().await.map_err(Status::transport)?;
        sender.send_request(request, false).map_err(Status::transport)
    }
}

/// One call with both directions open.
pub struct Stream {
    response: Option<ResponseFuture>,
    head: Option<(u16, String)>,
    sender: SendStream<Bytes>,
    receiver: Option<RecvStream>,
    received: BytesMut,
    ended: Option<Status>,
}

impl Stream {
    fn new(response: ResponseFuture, sender: SendStream<Bytes>) -> Self {
        Self {
            response: Some(response),
            head: None,
            sender,
            receiver: None,
            received: BytesMut::new(),
            ended: None,
        }
    }

    /// Sends one message.
    pub fn send(&mut self, message: &impl Message) -> Result<(), Status> {
        self.send_raw(&message.encode_to_vec())
    }

    /// Sends one message given as its bytes.
    pub fn send_raw(&mut self, message: &[u8]) -> Result<(), Status> {
        self.sender.send_data(frame(message), false).map_err(Status::transport)
    }

    /// Ends the sending direction.
    pub fn finish_sending(&mut self) -> Result<(), Status> {
        self.sender.send_data(Bytes::new(), true).map_err(Status::transport)
    }

    /// Resets the stream.
    pub fn cancel(&mut self) {
        self.sender.send_reset(h2::Reason::CANCEL);
    }

    /// The next message decoded; `None` at the end of a call that succeeded. Safe to drop and call again.
    pub async fn next<R: Message + Default>(&mut self) -> Result<Option<R>, Status> {
        match self.next_raw().await? {
            None => Ok(None),
            Some(message) => R::decode(message).map(Some).map_err(Status::transport),
        }
    }

    /// The bytes of the next message; `None` at the end of a call that succeeded. Safe to drop and call again.
    pub async fn next_raw(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(message));
            }
            if let Some(status) = &self.ended {
                return if status.code == 0 {
                    Ok(None)
                } else {
                    Err(status.clone())
                };
            }
            if let Err(status) = self.receive().await {
                self.ended = Some(status);
            }
        }
    }

    /// The next piece of the body as it came, prefixes and cut messages included; `None` at the end of a call that
    /// succeeded. For answers too large to be kept. Not to be mixed with [`Stream::next_raw`].
    pub async fn next_piece(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if !self.received.is_empty() {
                return Ok(Some(self.received.split().freeze()));
            }
            match self.receive().await {
                Ok(()) => {}
                Err(status) if status.code == 0 => return Ok(None),
                Err(status) => return Err(status),
            }
        }
    }

    fn take_message(&mut self) -> Result<Option<Bytes>, Status> {
        if self.received.len() < PREFIX_LENGTH {
            return Ok(None);
        }
        let length = u32::from_be_bytes(self.received[1..PREFIX_LENGTH].try_into().expect("four bytes")) as usize;
        if self.received.len() < PREFIX_LENGTH + length {
            return Ok(None);
        }
        if self.received[0] != 0 {
            return Err(Status::transport("a compressed message, which was not asked for"));
        }
        self.received.advance(PREFIX_LENGTH);
        Ok(Some(self.received.split_to(length).freeze()))
    }

    /// Takes in the next piece of the answer. An error is the end of the call, whatever its status.
    async fn receive(&mut self) -> Result<(), Status> {
        if let Some(response) = self.response.as_mut() {
            let response = response.await;
            self.response = None;
            return self.begin(response.map_err(Status::transport)?);
        }
        let receiver = self
            .receiver
            .as_mut()
            .ok_or_else(|| Status::transport("the call has ended"))?;
        if let Some(data) = receiver.data().await {
            let data = data.map_err(Status::transport)?;
            receiver
                .flow_control()
                .release_capacity(data.len())
                .map_err(Status::transport)?;
            self.received.extend_from_slice(&data);
            return Ok(());
        }
        let trailers = receiver.trailers().await.map_err(Status::transport)?;
        let status = trailers.as_ref().and_then(Status::from_headers);
        Err(status.unwrap_or_else(|| Status::transport("the answer ended without a status")))
    }

    fn begin(&mut self, response: Response<RecvStream>) -> Result<(), Status> {
        let content_type = response
            .headers()
            .get("content-type")
            .map(|value| value.to_str().unwrap_or("?").to_string());
        self.head = Some((response.status().as_u16(), content_type.unwrap_or_default()));
        if let Some(status) = Status::from_headers(response.headers()) {
            return Err(status);
        }
        self.receiver = Some(response.into_body());
        Ok(())
    }
}

/// A message behind gRPC's prefix.
pub fn frame(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(PREFIX_LENGTH + message.len());
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(message);
    framed.freeze()
}

fn percent_decode(text: &[u8]) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let hexadecimal = match tail {
            [high, low, ..] if *first == b'%' => std::str::from_utf8(&[*high, *low])
                .ok()
                .and_then(|digits| u8::from_str_radix(digits, 16).ok()),
            _ => None,
        };
        decoded.push(hexadecimal.unwrap_or(*first));
        rest = if hexadecimal.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
