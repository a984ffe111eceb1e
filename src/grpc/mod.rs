//! gRPC over [`crate::h2`] (its PROTOCOL-HTTP2), client and server, unary and streaming, without compression.
//!
//! Messages stay in the pieces in which they arrived: who forwards one passes the pieces on, and who reads one asks
//! for [`Message::to_vec`]. Memory of a stream is bounded by the message's limit and the window.
//!
//! A server that answers every request of every stream with the same bytes, on a thread of its own for each connection:
//!
//! ```
//! use ferrule::grpc::{self, Incoming, Received, Request, Status};
//! use ferrule::h2::{Deadlines, Endpoint, Event, Options};
//! use std::collections::HashMap;
//! use std::time::Duration;
//!
//! fn serve(socket: std::os::unix::net::UnixStream) -> ferrule::error::Result<()> {
//!     let mut endpoint = Endpoint::server(socket, &Options::default(), Deadlines::default())?;
//!     let mut streams = HashMap::new();
//!     loop {
//!         let id = match endpoint.next(Duration::from_secs(60))? {
//!             Some(Event::Headers(id, headers)) => {
//!                 match Request::read(headers) {
//!                     Ok(request) if request.path == "/my.Service/Stream" => {
//!                         endpoint.answer(id, &grpc::answer(), false);
//!                         streams.insert(id, Incoming::requests(id, 4 << 20));
//!                     }
//!                     Ok(_) => grpc::finish(&mut endpoint, id, &Status::new(grpc::Code::Unimplemented, "no such method")),
//!                     Err(answer) => endpoint.answer(id, &answer, true),
//!                 }
//!                 id
//!             }
//!             Some(Event::Reset(id, _)) => {
//!                 streams.remove(&id);
//!                 continue;
//!             }
//!             Some(Event::Readable(id) | Event::Writable(id)) => id,
//!             _ => continue,
//!         };
//!         let Some(incoming) = streams.get_mut(&id) else { continue };
//!         // While there is no room to answer, nothing is read: the client stops when its window is used up.
//!         while endpoint.has_room(id) {
//!             match incoming.receive(&mut endpoint) {
//!                 Received::Message(_) => endpoint.send(id, grpc::encode(b"\x0a\x01x")),
//!                 Received::Nothing => break,
//!                 Received::End(status) => {
//!                     grpc::finish(&mut endpoint, id, &status);
//!                     streams.remove(&id);
//!                     break;
//!                 }
//!             }
//!         }
//!     }
//! }
//! ```

mod message;
mod metadata;
mod status;
mod stream;

pub use message::{Deframer, Message, PREFIX, Piece, encode, prefix};
pub use metadata::{Request, add, add_timeout, answer, binary, refusal, request};
pub use status::{Code, Status};
pub use stream::{Incoming, Received, finish, open, send, unary};
