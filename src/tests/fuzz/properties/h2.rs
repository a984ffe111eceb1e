//! HTTP/2 connections, header blocks, and the messages of gRPC.

use ferrule::grpc::{self, Deframer, Piece, Request, Status};
use ferrule::h2::hpack::{Decoder, Encoder};
use ferrule::h2::{Connection, Event, Fault, Headers, Options, Read};

/// Small enough that inputs of the fuzzer reach the limits.
const LIMITS: Options = Options { streams: 8, stream_window: 65_535, window: 70_000, queue: 1000, header_list: 2000 };

/// What a connection did: events, bytes read, bytes sent, and how it ended.
type Course = (Vec<Event>, Vec<Vec<u8>>, Vec<u8>, Result<(), Fault>);

/// A server (or a client with two calls) is given the input in pieces; then it reads, answers, and sends.
fn course(mut connection: Connection, client: bool, input: &[u8], step: usize) -> Course {
    let request = Headers::new().with(":method", "POST").with(":scheme", "http").with(":path", "/");
    let ours: Vec<_> = (0..2).filter(|_| client).map(|_| connection.open(&request, false).unwrap()).collect();
    let received = input.chunks(step).try_for_each(|piece| connection.receive(piece));
    let mut events: Vec<Event> = std::iter::from_fn(|| connection.event()).collect();
    // Whether bytes were there for a moment depends on the cuts.
    let reset = |events: &[Event], id| events.iter().any(|event| matches!(event, Event::Reset(of, _) if *of == id));
    let gone: Vec<_> =
        events.iter().filter_map(|e| if let Event::Readable(id) = e { Some(*id) } else { None }).collect();
    let gone: Vec<_> = gone.into_iter().filter(|id| reset(&events, *id)).collect();
    events.retain(|event| !matches!(event, Event::Readable(id) if gone.contains(id)));
    assert!(connection.open_streams() <= LIMITS.streams as usize);
    let mut bodies = Vec::new();
    let opened = events.iter().filter_map(|event| if let Event::Headers(id, _) = event { Some(*id) } else { None });
    for id in ours.into_iter().chain(opened.collect::<Vec<_>>()) {
        let mut body = Vec::new();
        while let Read::Data(chunk) = connection.read(id) {
            assert!(!chunk.is_empty());
            body.extend_from_slice(&chunk);
        }
        assert!(body.len() <= LIMITS.stream_window);
        bodies.push(body);
        connection.answer(id, &Headers::new().with(":status", "200"), false);
        connection.send(id, b"body".as_slice());
        connection.end(id, None);
    }
    let mut sent = Vec::new();
    // As often as there is something: it comes to an end.
    for _ in 0..input.len() + 100 {
        let before = sent.len();
        let mut out = Vec::new();
        connection.output(&mut out, 1000);
        sent.extend(out);
        if sent.len() == before {
            assert!(!connection.has_output(), "nothing to send, and yet something");
            assert_eq!(connection.is_over() && received.is_err(), received.is_err());
            return (events, bodies, sent, received);
        }
    }
    panic!("there is always something to send");
}

/// What a peer sends: the same comes of it however it is cut. The first byte says how, and who we are.
pub fn connection(input: &[u8]) {
    let Some((first, input)) = input.split_first() else { return };
    let (client, step) = (first & 1 == 1, usize::from(first >> 1) + 1);
    let new = || if client { Connection::client(&LIMITS) } else { Connection::server(&LIMITS) };
    let whole = course(new(), client, input, input.len().max(1));
    assert_eq!(course(new(), client, input, step), whole, "{step} bytes at a time");
    // What we send is what a peer of our kind takes.
    let mut peer = if client { Connection::server(&LIMITS) } else { Connection::client(&LIMITS) };
    let opens = Headers::new().with(":method", "POST").with(":scheme", "http").with(":path", "/");
    for _ in 0..if client { 0 } else { LIMITS.streams } {
        peer.open(&opens, false).unwrap();
    }
    if let Err(fault) = peer.receive(&whole.2) {
        // Only of streams that it never had: the input is not what this peer has sent.
        assert!(!client, "{fault}");
    }
}

/// Two header blocks, one after the other: what is read is written and read again.
pub fn header_blocks(input: &[u8]) {
    const LIMIT: usize = 4096;
    let Some((first, input)) = input.split_first() else { return };
    let (one, other) = input.split_at(usize::from(*first).min(input.len()));
    let (mut decoder, mut encoder, mut again) = (Decoder::default(), Encoder::default(), Decoder::default());
    for block in [one, other] {
        let Ok(decoded) = decoder.decode(block, LIMIT) else { return };
        let Some(headers) = decoded else { continue };
        let size: usize = headers.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
        assert!(size <= LIMIT);
        let mut written = Vec::new();
        encoder.encode(&headers, &mut written);
        assert_eq!(again.decode(&written, LIMIT).unwrap().unwrap(), headers);
        if let Some(status) = Status::read(&headers) {
            let written = status.write(Headers::new());
            assert_eq!(Status::read(&written), Some(status));
        }
        let _ = Request::read(headers);
    }
}

/// A stream of messages: the same ones however it is cut, none above the limit.
pub fn messages(input: &[u8]) {
    const LIMIT: usize = 1000;
    let Some((step, input)) = input.split_first() else { return };
    let read = |step: usize| {
        let mut deframer = Deframer::new(LIMIT, true);
        input.chunks(step).for_each(|chunk| deframer.push(chunk.into()));
        let (mut found, mut open) = (Vec::new(), Vec::new());
        let end = loop {
            match deframer.piece() {
                Ok(Some(Piece::Start(length))) => assert!(length <= LIMIT && open.is_empty()),
                Ok(Some(Piece::Body(body))) => open.extend_from_slice(&body),
                Ok(Some(Piece::End)) => found.push(std::mem::take(&mut open)),
                Ok(None) => break Ok(deframer.is_between()),
                Err(status) => break Err(status),
            }
        };
        (found, end)
    };
    let whole = read(input.len().max(1));
    assert_eq!(read(usize::from(*step) + 1), whole);
    let written: Vec<u8> = whole.0.iter().flat_map(|message| grpc::encode(message)).collect();
    assert!(input.starts_with(&written));
}
