//! The messages that come on one stream, on either side, and how they end; and the simplest kind of call.

use super::message::{Deframer, Message, Piece, encode};
use super::metadata::add_timeout;
use super::status::{Code, Status};
use crate::h2::{Connection, Endpoint, Event, Headers, Read, Reason, StreamId, Unopened};
use crate::sys::clock;
use std::time::Duration;

/// What a stream has.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// The next message.
    Message(Message),
    /// Nothing now; an event will come.
    Nothing,
    /// No more messages. On a server: the client has sent all, and the status is OK, or says what is to be answered.
    /// On a client: how the call ended.
    End(Status),
}

/// The messages that come on one stream.
#[derive(Debug)]
pub struct Incoming {
    stream: StreamId,
    deframer: Deframer,
    message: Message,
    /// A client: the answer is one of gRPC, or its end is known before its messages.
    answer: Option<Result<(), Status>>,
    server: bool,
}

impl Incoming {
    /// On a server: the requests of a stream, each at most `limit` bytes.
    pub fn requests(stream: StreamId, limit: usize) -> Self {
        let deframer = Deframer::new(limit, true);
        Incoming { stream, deframer, message: Message::default(), answer: Some(Ok(())), server: true }
    }

    /// On a client: the answers to a call.
    pub fn answers(stream: StreamId, limit: usize) -> Self {
        let deframer = Deframer::new(limit, false);
        Incoming { stream, deframer, message: Message::default(), answer: None, server: false }
    }

    /// The stream.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Whether a message has begun and is not complete.
    pub fn is_within(&self) -> bool {
        !self.deframer.is_between()
    }

    /// On a client: takes the head of the answer ([`Event::Headers`]).
    pub fn head(&mut self, headers: &Headers) {
        let kind = headers.text("content-type").unwrap_or_default();
        self.answer = Some(match (headers.status(), Status::read(headers)) {
            // Trailers-Only.
            (_, Some(status)) => Err(status),
            (Some(200), None) if kind.starts_with("application/grpc") => Ok(()),
            (Some(200), None) => Err(Status::new(Code::Unknown, format_args!("the answer is of type {kind:?}"))),
            (http, None) => Err(Status::of_http(http.unwrap_or_default())),
        });
    }

    /// The next message. Its bytes count as read, and their credit goes back, as they come: a message longer than the
    /// window arrives, and as many bytes are held as it has. Who does not call this pauses the stream.
    pub fn receive(&mut self, connection: &mut Connection) -> Received {
        loop {
            match self.deframer.piece() {
                Ok(Some(Piece::Start(_))) => continue,
                Ok(Some(Piece::Body(body))) => {
                    self.message.pieces.push(body);
                    continue;
                }
                Ok(Some(Piece::End)) => return Received::Message(std::mem::take(&mut self.message)),
                Ok(None) => {}
                Err(status) => return self.give_up(connection, status),
            }
            match connection.read(self.stream) {
                Read::Data(chunk) => match &self.answer {
                    Some(Ok(())) => self.deframer.push(chunk),
                    // The page of a proxy, say: its head has said enough.
                    Some(Err(status)) => return self.give_up(connection, status.clone()),
                    None => {}
                },
                Read::Empty => return Received::Nothing,
                Read::End(trailers) => return Received::End(self.end(trailers.as_deref())),
                Read::Gone => return Received::End(Status::new(Code::Cancelled, "the stream is over")),
            }
        }
    }

    /// A client gives the stream up; a server answers with the status.
    fn give_up(&mut self, connection: &mut Connection, status: Status) -> Received {
        if !self.server {
            connection.reset(self.stream, Reason::CANCEL);
        }
        Received::End(status)
    }

    fn end(&mut self, trailers: Option<&Headers>) -> Status {
        if !self.deframer.is_between() {
            return Status::new(Code::Internal, "the stream ended within a message");
        }
        if self.server {
            return Status::ok();
        }
        match (self.answer.take(), trailers.and_then(Status::read)) {
            (Some(Err(status)), _) | (_, Some(status)) => status,
            _ => Status::new(Code::Unknown, "the answer ended without a status"),
        }
    }
}

/// Sends a message on a stream. Ask [`Connection::has_room`] before.
pub fn send(connection: &mut Connection, stream: StreamId, message: Message) {
    connection.send(stream, super::message::prefix(message.len()).as_slice());
    message.pieces.into_iter().for_each(|piece| connection.send(stream, piece));
}

/// Ends a call on a server: with trailers after what was sent, or as the whole answer where nothing was.
pub fn finish(connection: &mut Connection, stream: StreamId, status: &Status) {
    connection.answer(stream, &super::metadata::refusal(status), true);
    connection.end(stream, Some(status.write(Headers::new())));
}

/// Makes one call with one message each way on a connection of its own, or one that nothing else uses meanwhile; within
/// `timeout`, of which the server is told. The answer is at most `limit` bytes.
///
/// The error is how the call ended: the server's status; UNAVAILABLE with the reason when the connection ended;
/// DEADLINE_EXCEEDED when the time was over.
pub fn unary(
    endpoint: &mut Endpoint,
    mut request: Headers,
    message: &[u8],
    limit: usize,
    timeout: Duration,
) -> Result<Message, Status> {
    let deadline = clock::now() + timeout;
    add_timeout(&mut request, timeout);
    let stream = open(endpoint, &request)?;
    endpoint.send(stream, encode(message));
    endpoint.end(stream, None);
    let mut incoming = Incoming::answers(stream, limit);
    let mut answer = None;
    loop {
        let left = clock::until(deadline);
        match endpoint.next(left).map_err(|failure| Status::of_failure(&failure))? {
            Some(Event::Headers(_, headers)) => incoming.head(&headers),
            Some(Event::Reset(of, reason)) if of == stream => return Err(Status::of_reset(reason)),
            Some(_) => {}
            None if clock::until(deadline).is_zero() => {
                endpoint.reset(stream, Reason::CANCEL);
                return Err(Status::new(Code::DeadlineExceeded, format_args!("no answer within {timeout:?}")));
            }
            None => {}
        }
        loop {
            match incoming.receive(endpoint) {
                Received::Nothing => break,
                Received::Message(message) if answer.is_none() => answer = Some(message),
                Received::Message(_) => {
                    endpoint.reset(stream, Reason::CANCEL);
                    return Err(Status::new(Code::Internal, "more than one message in answer to a unary call"));
                }
                Received::End(status) if status.code != Code::Ok => return Err(status),
                Received::End(_) => {
                    let missing = || Status::new(Code::Internal, "no message in answer to a unary call");
                    return answer.ok_or_else(missing);
                }
            }
        }
    }
}

/// Opens a stream for a call; the error is what the call ends with.
pub fn open(connection: &mut Connection, request: &Headers) -> Result<StreamId, Status> {
    connection.open(request, false).map_err(|unopened| {
        let why = match unopened {
            Unopened::Full => "the server allows no more streams at the same time",
            Unopened::Closing => "the connection is being closed",
        };
        Status::new(Code::Unavailable, why)
    })
}
