//! Peers that break the protocol, and peers that try to make us work or hold memory without an end.

use super::*;

/// Gives a greeted server these bytes over and over; the fault, and after how many times.
#[track_caller]
fn flood(times: usize, bytes: impl Fn(usize) -> Vec<u8>) -> (usize, Fault) {
    flood_on(server(), times, bytes)
}

#[track_caller]
fn flood_on(mut server: Connection, times: usize, bytes: impl Fn(usize) -> Vec<u8>) -> (usize, Fault) {
    for time in 0..times {
        let received = server.receive(&bytes(time));
        // The peer reads what we answer, so that it is not this which ends it.
        let frames = sent(&mut server);
        server.events.clear();
        if let Err(fault) = received {
            let last = frames.last().unwrap();
            assert_eq!((last.0, reason(last)), (wire::GOAWAY, fault.reason));
            assert!(server.is_over() && server.open_streams() == 0 && server.read(StreamId(1)) == Read::Gone);
            assert_eq!(server.receive(b"more"), Ok(()));
            assert!(sent(&mut server).is_empty());
            return (time, fault);
        }
    }
    panic!("{times} times are no fault");
}

#[test]
fn frames_that_may_not_come_end_the_connection() {
    let check = |bytes: Vec<u8>, expected: Reason| {
        let (time, fault) = flood(1, |_| bytes.clone());
        assert_eq!((time, fault.reason), (0, expected), "{bytes:?}");
    };
    let protocol = Reason::PROTOCOL_ERROR;
    let size = Reason::FRAME_SIZE_ERROR;
    let no_end = frame(wire::HEADERS, 0, 1, &block(&request()));
    check(frame(wire::DATA, 0, 1, b"x"), protocol);
    check(frame(wire::HEADERS, wire::END_HEADERS, 0, b""), protocol);
    check(whole_request(2), protocol);
    check(frame(wire::HEADERS, wire::END_HEADERS | wire::PADDED, 1, b""), size);
    check(frame(wire::HEADERS, wire::END_HEADERS | wire::PADDED, 1, b"\x01"), protocol);
    check(frame(wire::HEADERS, wire::END_HEADERS | wire::WITH_PRIORITY, 1, b"1234"), size);
    check(frame(wire::HEADERS, wire::END_HEADERS, 1, b"\x80"), Reason::COMPRESSION_ERROR);
    check(frame(wire::CONTINUATION, 0, 1, b""), protocol);
    check([no_end.clone(), frame(wire::CONTINUATION, 0, 3, b"")].concat(), protocol);
    check([no_end.clone(), frame(wire::PING, 0, 0, b"12345678")].concat(), protocol);
    check([no_end.clone(), frame(wire::DATA, 0, 1, b"")].concat(), protocol);
    check([no_end, whole_request(3)].concat(), protocol);
    check(frame(wire::RST_STREAM, 0, 1, &[0; 4]), protocol);
    check(frame(wire::RST_STREAM, 0, 0, &[0; 4]), protocol);
    check(frame(wire::RST_STREAM, 0, 1, &[0; 3]), size);
    check(frame(wire::SETTINGS, 0, 1, b""), protocol);
    check(frame(wire::SETTINGS, 0, 0, &[0; 5]), size);
    check(frame(wire::SETTINGS, wire::ACK, 0, &[0; 6]), size);
    check(frame(wire::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]), protocol);
    check(frame(wire::SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]), Reason::FLOW_CONTROL_ERROR);
    check(frame(wire::SETTINGS, 0, 0, &[0, 5, 0, 0, 0x3f, 0xff]), protocol);
    check(frame(wire::PUSH_PROMISE, 0, 1, &[0; 4]), protocol);
    check(frame(wire::PING, 0, 0, &[0; 7]), size);
    check(frame(wire::PING, 0, 1, &[0; 8]), protocol);
    check(frame(wire::GOAWAY, 0, 0, &[0; 7]), size);
    check(frame(wire::GOAWAY, 0, 1, &[0; 8]), protocol);
    check(frame(wire::WINDOW_UPDATE, 0, 0, &[0; 4]), protocol);
    check(frame(wire::WINDOW_UPDATE, 0, 0, &[0; 5]), size);
    check(frame(wire::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]), protocol);
    check(frame(wire::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]), Reason::FLOW_CONTROL_ERROR);
    check(frame(wire::PRIORITY, 0, 0, &[0; 5]), protocol);
    check(frame(wire::PRIORITY, 0, 1, &[0; 4]), size);
}

#[test]
fn settings_come_first() {
    for first in [frame(wire::PING, 0, 0, &[0; 8]), whole_request(1), frame(wire::DATA, 0, 1, b"")] {
        let mut server = Connection::server(&small());
        let fault = server.receive(&[wire::PREFACE, &first].concat()).unwrap_err();
        assert_eq!(fault.reason, Reason::PROTOCOL_ERROR);
    }
    // A client learns it in the same way, and takes no push.
    let mut client = Connection::client(&small());
    assert!(client.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n").is_err());
    let mut client = Connection::client(&small());
    assert!(client.receive(&frame(wire::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 1])).is_err());
    let mut client = Connection::client(&small());
    client.receive(&frame(wire::SETTINGS, 0, 0, b"")).unwrap();
    assert!(client.receive(&frame(wire::HEADERS, wire::END_HEADERS, 1, &block(&ok()))).is_err());
}

#[test]
fn frames_that_bring_nothing_are_counted() {
    for bytes in [
        frame(wire::PING, 0, 0, &[0; 8]),
        frame(wire::PING, wire::ACK, 0, &[0; 8]),
        frame(wire::SETTINGS, 0, 0, b""),
        frame(wire::SETTINGS, wire::ACK, 0, b""),
        frame(wire::PRIORITY, 0, 1, &[0; 5]),
        frame(wire::GOAWAY, 0, 0, &[0; 8]),
        frame(0xbb, 0, 0, b""),
    ] {
        let (time, fault) = flood(IDLE_FRAMES as usize + 2, |_| bytes.clone());
        assert_eq!(fault.reason, Reason::ENHANCE_YOUR_CALM);
        assert!(time >= IDLE_FRAMES as usize - 1, "{time}");
    }
    let open = frame(wire::HEADERS, wire::END_HEADERS, 1, &block(&request()));
    for (first, empty) in [
        (open.clone(), frame(wire::DATA, 0, 1, b"")),
        (open, frame(wire::DATA, wire::PADDED, 1, b"\x00")),
        (frame(wire::HEADERS, 0, 1, &block(&request())), frame(wire::CONTINUATION, 0, 1, b"")),
    ] {
        let mut server = server();
        server.receive(&first).unwrap();
        let (_, fault) = flood_on(server, IDLE_FRAMES as usize + 2, |_| empty.clone());
        assert_eq!(fault.reason, Reason::ENHANCE_YOUR_CALM);
    }
}

#[test]
fn a_peer_that_keeps_to_its_allowance_is_served_for_ever() {
    let mut server = server();
    for _ in 0..5 {
        server.receive(&frame(wire::PING, 0, 0, &[0; 8]).repeat(3000)).unwrap();
        server.output(&mut Vec::new(), 0);
        server.receive(&frame(wire::PING, 0, 0, &[0; 8]).repeat(3000)).unwrap();
        assert_eq!(sent(&mut server).len(), 3000);
        server.replenish();
    }
}

#[test]
fn answers_that_nobody_reads_are_bounded() {
    let mut server = server();
    let ping = frame(wire::PING, 0, 0, &[0; 8]);
    let fault = (0..IDLE_FRAMES).find_map(|_| server.receive(&ping).err()).unwrap();
    assert_eq!(fault.reason, Reason::ENHANCE_YOUR_CALM);
    let mut out = Vec::new();
    server.output(&mut out, 0);
    assert!(out.len() < 200, "{} bytes", out.len());
}

#[test]
fn requests_given_up_at_once_are_counted() {
    let reset = |time: usize| {
        let id = 2 * time as u32 + 1;
        [whole_request(id), frame(wire::RST_STREAM, 0, id, &[0, 0, 0, 8])].concat()
    };
    let (time, fault) = flood(EARLY_RESETS as usize + 2, reset);
    assert_eq!((time, fault.reason), (EARLY_RESETS as usize, Reason::ENHANCE_YOUR_CALM));
    // So are those that are refused, malformed ones and those above the limit.
    let malformed = |time: usize| frame(wire::HEADERS, wire::END_HEADERS, 2 * time as u32 + 1, &block(&ok()));
    assert_eq!(flood(EARLY_RESETS as usize + 2, malformed).0, EARLY_RESETS as usize);
    let unended = |time: usize| whole_request(2 * time as u32 + 1);
    let (time, fault) = flood(EARLY_RESETS as usize + 20, unended);
    assert_eq!((time, fault.reason), (EARLY_RESETS as usize + 10, Reason::ENHANCE_YOUR_CALM));
}

#[test]
fn a_header_block_without_an_end_is_cut_off() {
    let mut server = server();
    server.receive(&frame(wire::HEADERS, 0, 1, &block(&request()))).unwrap();
    let (time, fault) = flood_on(server, 10_000, |_| frame(wire::CONTINUATION, 0, 1, &[0; 100]));
    assert_eq!(fault.reason, Reason::ENHANCE_YOUR_CALM);
    assert!(time <= small().header_list / 100, "{time}");
}

#[test]
fn a_hundred_thousand_streams_wait_at_once() {
    let mut server = Connection::server(&Options::default());
    let mut client = Connection::client(&Options::default());
    carry(&mut client, &mut server);
    carry(&mut server, &mut client);
    carry(&mut client, &mut server);
    let ids: Vec<_> = (0..100_000).map(|_| client.open(&request(), false).unwrap()).collect();
    assert_eq!(client.open(&request(), false), Err(Unopened::Full));
    carry(&mut client, &mut server);
    assert_eq!((server.open_streams(), events(&mut server).len()), (100_000, 100_000));
    for id in &ids {
        server.answer(*id, &ok(), false);
        server.send(*id, b"x".as_slice());
        server.end(*id, None);
    }
    while carry(&mut server, &mut client) > 0 {}
    assert_eq!(server.open_streams(), 0);
    events(&mut client);
    assert!(ids.iter().all(|id| drain(&mut client, *id) == (b"x".to_vec(), Read::End(None))));
    assert_eq!(client.open_streams(), 0);
}
