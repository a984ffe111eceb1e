//! gRPC calls, unary and streaming, and every way in which they end.

use super::*;
use ferrule::grpc::{self, Code, Incoming, Message, Received, Request, Status};
use std::time::Instant;

const LIMIT: usize = 4 << 20;

/// Answers calls: the path says how.
fn serve(mut server: Endpoint) {
    let mut streams = std::collections::HashMap::new();
    // Until the client has closed.
    while let Ok(event) = server.next(LONG) {
        let id = match event {
            Some(Event::Headers(id, headers)) => {
                match Request::read(headers) {
                    Err(answer) => server.answer(id, &answer, true),
                    Ok(request) => match request.path.as_str() {
                        "/echo" => {
                            server.answer(id, &grpc::answer(), false);
                            streams.insert(id, Incoming::requests(id, LIMIT));
                        }
                        "/silent" => {}
                        "/page" => {
                            let head = Headers::new().with(":status", "503").with("content-type", "text/html");
                            server.answer(id, &head, false);
                            server.send(id, b"<html>".as_slice());
                            server.end(id, None);
                        }
                        "/html" => server.answer(id, &ok().with("content-type", "text/html"), true),
                        "/nothing" => {
                            server.answer(id, &grpc::answer(), false);
                            grpc::finish(&mut server, id, &Status::ok());
                        }
                        "/no-status" => server.answer(id, &grpc::answer(), true),
                        "/reset" => server.reset(id, ferrule::h2::Reason::ENHANCE_YOUR_CALM),
                        "/gzip" | "/half" => {
                            server.answer(id, &grpc::answer(), false);
                            let gzip = request.path == "/gzip";
                            server.send(id, [u8::from(gzip), 0, 0, 0, 9, 1].as_slice());
                            server.end(id, Some(Status::ok().write(Headers::new())));
                        }
                        path => {
                            let status = Status::new(Code::Unimplemented, format_args!("no method {path}: ü"));
                            grpc::finish(&mut server, id, &status);
                        }
                    },
                }
                id
            }
            Some(Event::Readable(id) | Event::Writable(id)) => id,
            _ => continue,
        };
        let Some(incoming) = streams.get_mut(&id) else { continue };
        while server.has_room(id) {
            match incoming.receive(&mut server) {
                Received::Message(message) => grpc::send(&mut server, id, message),
                Received::Nothing => break,
                Received::End(status) => {
                    grpc::finish(&mut server, id, &status);
                    streams.remove(&id);
                    break;
                }
            }
        }
    }
}

fn call(client: &mut Endpoint, path: &str, message: &[u8], timeout: Duration) -> Result<Vec<u8>, Status> {
    let request = grpc::request("http", "xds-grpc", path);
    grpc::unary(client, request, message, LIMIT, timeout).map(|message| message.to_vec())
}

#[test]
fn unary_calls_end_in_every_way() {
    let (mut client, server) = served(serve);
    let large = vec![7; LIMIT];
    assert_eq!(call(&mut client, "/echo", b"hello", LONG).unwrap(), b"hello");
    assert_eq!(call(&mut client, "/echo", b"", LONG).unwrap(), b"");
    assert_eq!(call(&mut client, "/echo", &large, LONG).unwrap(), large);
    let mut end = |path: &str, message: &[u8]| {
        let status = call(&mut client, path, message, LONG).unwrap_err();
        (status.code, status.message)
    };
    let too_large = vec![7; LIMIT + 1];
    let expected = "received message larger than max (4194305 vs. 4194304)";
    assert_eq!(end("/echo", &too_large), (Code::ResourceExhausted, expected.to_owned()));
    assert_eq!(end("/other", b""), (Code::Unimplemented, "no method /other: ü".to_owned()));
    assert_eq!(end("/page", b"").0, Code::Unavailable);
    assert_eq!(end("/html", b"").0, Code::Unknown);
    assert_eq!(end("/nothing", b""), (Code::Internal, "no message in answer to a unary call".to_owned()));
    assert_eq!(end("/no-status", b"").0, Code::Unknown);
    assert_eq!(end("/reset", b""), (Code::ResourceExhausted, "the stream was reset: ENHANCE_YOUR_CALM".to_owned()));
    assert_eq!(end("/gzip", b"").0, Code::Internal);
    assert_eq!(end("/half", b""), (Code::Internal, "the stream ended within a message".to_owned()));
    let begin = Instant::now();
    let status = call(&mut client, "/silent", b"", MOMENT).unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
    assert!(begin.elapsed() >= MOMENT && begin.elapsed() < LONG / 2);
    // After all that the connection still serves.
    assert_eq!(call(&mut client, "/echo", b"still", LONG).unwrap(), b"still");
    assert_eq!(client.open_streams(), 0);
    drop(client);
    server.join().unwrap();
}

#[test]
fn a_server_that_leaves_makes_calls_unavailable() {
    let (mut client, server) = served(|mut server| drop(opened(&mut server)));
    assert_eq!(call(&mut client, "/echo", b"", LONG).unwrap_err().code, Code::Unavailable);
    server.join().unwrap();
    let status = call(&mut client, "/echo", b"", LONG).unwrap_err();
    assert_eq!(status.code, Code::Unavailable, "{status}");
}

#[test]
fn a_stream_carries_messages_both_ways_at_the_pace_of_the_reader() {
    let (mut client, server) = served(serve);
    let id = grpc::open(&mut client, &grpc::request("http", "xds-grpc", "/echo")).unwrap();
    let mut incoming = Incoming::answers(id, LIMIT);
    let sizes: Vec<usize> = (0..200).map(|n| if n % 20 == 0 { 1_000_000 } else { n }).collect();
    let (mut sent, mut got) = (0, Vec::new());
    let end = loop {
        while sent < sizes.len() && client.has_room(id) {
            let message = Message { pieces: vec![vec![sent as u8; sizes[sent]].into()] };
            grpc::send(&mut client, id, message);
            sent += 1;
            if sent == sizes.len() {
                client.end(id, None);
            }
        }
        match incoming.receive(&mut client) {
            Received::Message(message) => got.push(message.len()),
            Received::End(status) => break status,
            Received::Nothing => {
                if let Event::Headers(_, headers) = event(&mut client) {
                    incoming.head(&headers);
                }
            }
        }
    };
    assert_eq!((end, got), (Status::ok(), sizes));
    drop(client);
    server.join().unwrap();
}

#[test]
fn a_compressed_request_is_refused() {
    let (mut client, server) = served(serve);
    let id = grpc::open(&mut client, &grpc::request("http", "xds-grpc", "/echo")).unwrap();
    client.send(id, [1, 0, 0, 0, 1, 9].as_slice());
    let mut incoming = Incoming::answers(id, LIMIT);
    let status = loop {
        match incoming.receive(&mut client) {
            Received::End(status) => break status,
            Received::Message(message) => panic!("{message:?}"),
            Received::Nothing => {
                if let Event::Headers(_, headers) = event(&mut client) {
                    incoming.head(&headers);
                }
            }
        }
    };
    assert_eq!(status.code, Code::Unimplemented);
    drop(client);
    server.join().unwrap();
}
