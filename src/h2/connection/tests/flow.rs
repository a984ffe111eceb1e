//! Flow control: credit for what was read, on stream and connection, and a paused stream that stops nobody else.

use super::*;

/// A server with one open stream, part of the way through a large upload that nobody reads.
fn paused() -> (Pair, StreamId) {
    let mut pair = Pair::new(&small());
    let id = pair.open();
    pair.client.send(id, vec![7; 1_000_000]);
    pair.exchange();
    (pair, id)
}

#[test]
fn who_does_not_read_stops_the_peer_at_the_window() {
    let (mut pair, id) = paused();
    assert_eq!(pair.server.streams[&id.0].unread(), 65_535);
    assert_eq!(pair.client.queued(id), 1_000_000 - 65_535);
    assert_eq!(events(&mut pair.server), [Event::Readable(id)]);
    // Every read lets the peer go on, and memory is bounded by the window all the time.
    let mut total = 0;
    while total < 1_000_000 {
        let Read::Data(chunk) = pair.server.read(id) else { panic!("stuck after {total} bytes") };
        assert!(chunk.iter().all(|byte| *byte == 7));
        total += chunk.len();
        pair.exchange();
        let stream = &pair.server.streams[&id.0];
        assert!(stream.unread() <= 65_535);
        assert!(stream.arrived.iter().map(Chunk::capacity).sum::<usize>() <= 2 * 65_535);
    }
    assert_eq!((pair.server.read(id), pair.client.queued(id)), (Read::Empty, 0));
}

#[test]
fn a_paused_stream_stops_nobody_else() {
    let (mut pair, id) = paused();
    let other = pair.client.open(&request(), false).unwrap();
    pair.client.send(other, b"small".as_slice());
    pair.client.ping(*b"pingping");
    pair.server.ping(*b"pongpong");
    let mut settings = Vec::new();
    wire::settings(&mut settings, &[(INITIAL_WINDOW_SIZE, 1000)]);
    pair.client.receive(&settings).unwrap();
    pair.exchange();
    assert!(events(&mut pair.server).contains(&Event::Pong(*b"pongpong")));
    assert_eq!(events(&mut pair.client), [Event::Pong(*b"pingping")]);
    assert_eq!(drain(&mut pair.server, other).0, b"small");
    pair.client.shut_down();
    pair.client.reset(id, Reason::CANCEL);
    pair.exchange();
    let events = events(&mut pair.server);
    assert_eq!(events, [Event::GoAway(Reason::NO_ERROR, [].into()), Event::Reset(id, Reason::CANCEL)]);
}

#[test]
fn the_connections_window_is_shared_and_an_end_needs_none() {
    let mut pair = Pair::new(&small());
    let ids: Vec<_> = (0..3).map(|_| pair.open()).collect();
    for id in &ids {
        pair.client.send(*id, vec![0; 60_000]);
    }
    pair.exchange();
    let unread = |pair: &Pair, id: &StreamId| pair.server.streams[&id.0].unread();
    assert_eq!(ids.iter().map(|id| unread(&pair, id)).sum::<usize>(), 100_000);
    assert!(ids.iter().all(|id| unread(&pair, id) > 0), "each had its turn");
    events(&mut pair.server);
    // A stream without bytes ends although no window is left.
    let last = pair.open();
    pair.client.end(last, Some(Headers::new().with("x", "y")));
    pair.exchange();
    assert!(matches!(pair.server.read(last), Read::End(Some(_))));
    // All of it arrives once it is read.
    let mut totals = [0; 3];
    for _ in 0..20 {
        for (id, total) in ids.iter().zip(&mut totals) {
            *total += drain(&mut pair.server, *id).0.len();
        }
        pair.exchange();
    }
    assert_eq!(totals, [60_000; 3]);
}

#[test]
fn windows_may_shrink_below_nothing_and_grow_again() {
    let mut pair = Pair::new(&small());
    let id = pair.open();
    let settle = |pair: &mut Pair, window: u32| {
        let mut settings = Vec::new();
        wire::settings(&mut settings, &[(INITIAL_WINDOW_SIZE, window)]);
        pair.client.receive(&settings).unwrap();
        pair.exchange();
        let read = drain(&mut pair.server, id).0.len();
        // Credit for it came only where half a window was read.
        assert_eq!(pair.exchange(), 0);
        read
    };
    pair.client.send(id, vec![0; 30_000]);
    assert_eq!(settle(&mut pair, 10_000), 10_000);
    assert_eq!(settle(&mut pair, 0), 0);
    assert_eq!(settle(&mut pair, 9_000), 0);
    assert_eq!(settle(&mut pair, 10_001), 1);
    assert_eq!(settle(&mut pair, 100_000), 19_999);
}

#[test]
fn room_is_given_when_half_of_the_queue_is_sent() {
    let mut pair = Pair::new(&small());
    let id = pair.open();
    assert!(pair.client.has_room(id));
    pair.client.send(id, vec![0; 9_999]);
    assert!(pair.client.has_room(id));
    pair.client.send(id, vec![0; 60_000]);
    assert!(!pair.client.has_room(id));
    pair.exchange();
    assert_eq!((pair.client.queued(id), events(&mut pair.client)), (4_464, vec![Event::Writable(id)]));
    assert!(pair.client.has_room(id));
}

#[test]
fn single_bytes_do_not_cost_an_allocation_each() {
    let mut server = server();
    server.receive(&frame(wire::HEADERS, wire::END_HEADERS, 1, &block(&request()))).unwrap();
    let byte = frame(wire::DATA, 0, 1, b"x");
    for _ in 0..50_000 {
        server.receive(&byte).unwrap();
    }
    let arrived = &server.streams[&1].arrived;
    assert!(arrived.len() < 8 && arrived.iter().map(Chunk::capacity).sum::<usize>() < 200_000, "{arrived:?}");
}

#[test]
fn more_than_the_window_is_a_fault() {
    let mut check = server();
    check.receive(&frame(wire::HEADERS, wire::END_HEADERS, 1, &block(&request()))).unwrap();
    let data = |stream: u32| frame(wire::DATA, 0, stream, &[0; 16_384]);
    for _ in 0..3 {
        check.receive(&data(1)).unwrap();
    }
    // The stream's alone ends the stream.
    check.receive(&data(1)).unwrap();
    let frames = sent(&mut check);
    let reset = frames.iter().find(|frame| frame.0 == wire::RST_STREAM).unwrap();
    assert_eq!(reason(reset), Reason::FLOW_CONTROL_ERROR);
    assert_eq!(check.open_streams(), 0);
    // The connection's ends the connection.
    let mut check = server();
    for stream in [1, 3, 5] {
        check.receive(&frame(wire::HEADERS, wire::END_HEADERS, stream, &block(&request()))).unwrap();
    }
    let sent_on = [1, 3, 5, 1, 3, 5, 1].map(data).concat();
    assert_eq!(check.receive(&sent_on).unwrap_err().reason, Reason::FLOW_CONTROL_ERROR);
}
