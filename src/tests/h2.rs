//! HTTP/2 and gRPC over real sockets, with TLS and without, against ourselves and against nghttp2's programs.

mod calls;
mod endpoints;
mod programs;
mod tls;

use ferrule::error::Kind;
use ferrule::h2::{Deadlines, Endpoint, Event, Headers, Options, Read, StreamId};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

/// Long enough never to pass by accident.
const LONG: Duration = Duration::from_secs(30);
/// Long enough for something that must not happen to happen.
const MOMENT: Duration = Duration::from_millis(200);

fn request(path: &str) -> Headers {
    Headers::new().with(":method", "POST").with(":scheme", "http").with(":path", path)
}

fn ok() -> Headers {
    Headers::new().with(":status", "200")
}

/// Both ends of a Unix connection.
fn pair(options: &Options, deadlines: &Deadlines) -> (Endpoint, Endpoint) {
    let (here, there) = UnixStream::pair().unwrap();
    let client = Endpoint::client(here, options, deadlines.clone()).unwrap();
    (client, Endpoint::server(there, options, deadlines.clone()).unwrap())
}

/// A client whose server runs on a thread of its own.
fn served<T: Send + 'static>(serve: impl FnOnce(Endpoint) -> T + Send + 'static) -> (Endpoint, JoinHandle<T>) {
    let (client, server) = pair(&Options::default(), &Deadlines::default());
    (client, std::thread::spawn(move || serve(server)))
}

/// The next event; there must be one.
#[track_caller]
fn event(endpoint: &mut Endpoint) -> Event {
    endpoint.next(LONG).unwrap().expect("an event in time")
}

/// The next request.
#[track_caller]
fn opened(endpoint: &mut Endpoint) -> (StreamId, Headers) {
    match event(endpoint) {
        Event::Headers(id, headers) => (id, headers),
        other => panic!("{other:?}"),
    }
}

/// Lets everything happen until the connection has ended; why it has.
fn ended(endpoint: &mut Endpoint) -> Kind {
    loop {
        if let Err(failure) = endpoint.next(LONG) {
            return failure.kind();
        }
    }
}

/// Reads a stream to its end; returns how many bytes came.
#[track_caller]
fn read_all(endpoint: &mut Endpoint, id: StreamId) -> usize {
    let mut total = 0;
    loop {
        match endpoint.read(id) {
            Read::Data(chunk) => total += chunk.len(),
            Read::Empty => drop(event(endpoint)),
            Read::End(_) => return total,
            Read::Gone => panic!("the stream is gone after {total} bytes"),
        }
    }
}

/// Sends so many bytes on a stream, never more than its queue takes, and ends it.
fn send_all(endpoint: &mut Endpoint, id: StreamId, mut bytes: usize) {
    while bytes > 0 {
        if endpoint.has_room(id) {
            let length = bytes.min(16 << 10);
            endpoint.send(id, vec![b'x'; length]);
            bytes -= length;
        } else {
            event(endpoint);
        }
    }
    endpoint.end(id, None);
}
