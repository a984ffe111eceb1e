//! The life of a stream, in order and out of order.

use super::*;

#[test]
fn a_request_and_its_answer() {
    let mut pair = Pair::new(&small());
    assert!(pair.client.is_greeted() && pair.server.is_greeted());
    let id = pair.open();
    pair.client.send(id, b"ques".as_slice());
    pair.client.send(id, b"tion".as_slice());
    pair.client.end(id, None);
    pair.exchange();
    assert_eq!(events(&mut pair.server), [Event::Readable(id)]);
    assert_eq!(drain(&mut pair.server, id), (b"question".to_vec(), Read::End(None)));
    pair.server.answer(id, &ok(), false);
    pair.server.send(id, b"answer".as_slice());
    let trailers = Headers::new().with("grpc-status", "0");
    pair.server.end(id, Some(trailers.clone()));
    pair.exchange();
    assert_eq!(events(&mut pair.client), [Event::Headers(id, ok()), Event::Readable(id)]);
    assert_eq!(drain(&mut pair.client, id), (b"answer".to_vec(), Read::End(Some(Box::new(trailers)))));
    assert_eq!((pair.client.read(id), pair.server.read(id)), (Read::Gone, Read::Gone));
    assert_eq!((pair.client.open_streams(), pair.server.open_streams()), (0, 0));
}

#[test]
fn an_answer_may_be_a_head_alone_and_come_early() {
    let mut pair = Pair::new(&small());
    let id = pair.open();
    pair.client.send(id, vec![0; 1000]);
    pair.server.answer(id, &ok(), true);
    pair.exchange();
    // The server wants no more of the request, and the whole answer is to be had all the same.
    assert_eq!(events(&mut pair.client), [Event::Headers(id, ok()), Event::Readable(id)]);
    assert_eq!(pair.client.read(id), Read::End(None));
    assert_eq!((pair.client.open_streams(), pair.server.open_streams()), (0, 0));
    // Later calls on it do nothing.
    pair.client.send(id, vec![0; 10]);
    pair.client.end(id, None);
    pair.server.reset(id, Reason::CANCEL);
    pair.server.answer(id, &ok(), false);
    assert!(!pair.server.has_room(id));
    assert_eq!(pair.exchange(), 0);
}

#[test]
fn a_reset_ends_both_sides_and_frees_what_was_queued() {
    let mut pair = Pair::new(&small());
    for by_client in [true, false] {
        let id = pair.open();
        pair.server.answer(id, &ok(), false);
        pair.exchange();
        pair.client.send(id, vec![1; 70_000]);
        pair.server.send(id, vec![2; 70_000]);
        pair.exchange();
        let (one, other) =
            if by_client { (&mut pair.client, &mut pair.server) } else { (&mut pair.server, &mut pair.client) };
        events(one);
        events(other);
        one.reset(id, Reason::CANCEL);
        carry(one, other);
        assert_eq!(events(other), [Event::Reset(id, Reason::CANCEL)]);
        assert_eq!((one.read(id), other.read(id)), (Read::Gone, Read::Gone));
        pair.exchange();
    }
    // What was not read has not cost the connection its window.
    let id = pair.open();
    pair.client.send(id, vec![3; 60_000]);
    pair.exchange();
    assert_eq!(drain(&mut pair.server, id).0.len(), 60_000);
}

#[test]
fn bytes_of_a_frame_whose_stream_is_reset_meanwhile_are_given_back() {
    let mut server = server();
    server.receive(&frame(wire::HEADERS, wire::END_HEADERS, 1, &block(&request()))).unwrap();
    let data = frame(wire::DATA, 0, 1, &[0; 16_000]);
    server.receive(&data[..5000]).unwrap();
    server.reset(StreamId(1), Reason::CANCEL);
    server.receive(&data[5000..]).unwrap();
    assert_eq!(server.owed, 16_000);
    // More of it, sent before the peer knew, is no fault either; and is not answered.
    server.output(&mut Vec::new(), 0);
    server.receive(&frame(wire::DATA, wire::PADDED, 1, b"\x02abcXX")).unwrap();
    assert_eq!((server.owed, sent(&mut server)), (16_006, vec![]));
}

#[test]
fn streams_above_the_limit_are_not_opened() {
    let mut pair = Pair::new(&Options { streams: 2, ..small() });
    let first = pair.open();
    pair.open();
    assert_eq!(pair.client.open(&request(), true), Err(Unopened::Full));
    pair.client.reset(first, Reason::CANCEL);
    pair.exchange();
    events(&mut pair.server);
    pair.open();
}

#[test]
fn who_leaves_takes_no_new_streams_and_finishes_the_old_ones() {
    let mut pair = Pair::new(&small());
    let id = pair.open();
    pair.server.shut_down();
    pair.server.shut_down();
    // Sent before the client has heard of it.
    let late = pair.client.open(&request(), true).unwrap();
    let mut on_the_way = Vec::new();
    pair.client.output(&mut on_the_way, 1000);
    pair.exchange();
    let expected = [Event::Reset(late, Reason::REFUSED_STREAM), Event::GoAway(Reason::NO_ERROR, [].into())];
    assert_eq!(events(&mut pair.client), expected);
    assert_eq!(pair.client.open(&request(), true), Err(Unopened::Closing));
    pair.server.receive(&on_the_way).unwrap();
    pair.exchange();
    assert_eq!((events(&mut pair.server), events(&mut pair.client)), (vec![], vec![]));
    // The one that was open goes on to its end, and then all is over.
    assert!(!pair.client.is_over() && !pair.server.is_over());
    pair.server.answer(id, &ok(), true);
    pair.exchange();
    assert_eq!(pair.client.read(id), Read::End(None));
    assert!(pair.client.is_over() && pair.server.is_over());
}

#[test]
fn what_a_peer_may_not_send_on_a_stream_resets_it_alone() {
    let trailers = Headers::new().with("x", "y");
    let with_length = request().with("content-length", "5");
    let head = |headers: &Headers| frame(wire::HEADERS, wire::END_HEADERS, 1, &block(headers));
    let data = |end: bool, bytes: &[u8]| frame(wire::DATA, u8::from(end), 1, bytes);
    let window = |more: u32| frame(wire::WINDOW_UPDATE, 0, 1, &more.to_be_bytes());
    let check = |frames: &[Vec<u8>], expected: Reason| {
        let mut server = server();
        server.receive(&frames.concat()).unwrap();
        let frames = sent(&mut server);
        let reset: Vec<_> = frames.iter().filter(|frame| frame.0 == wire::RST_STREAM).map(reason).collect();
        assert_eq!(reset, [expected], "{frames:?}");
        assert_eq!(server.open_streams(), 0);
        // The connection serves the next one.
        server.receive(&whole_request(3)).unwrap();
        assert!(events(&mut server).contains(&Event::Headers(StreamId(3), request())));
    };
    check(&[head(&ok())], Reason::PROTOCOL_ERROR);
    check(&[head(&Headers::new())], Reason::PROTOCOL_ERROR);
    check(&[head(&request().with("Upper", ""))], Reason::PROTOCOL_ERROR);
    check(&[head(&request().with("long", "x".repeat(9000)))], Reason::ENHANCE_YOUR_CALM);
    check(&[head(&request()), head(&trailers)], Reason::PROTOCOL_ERROR);
    check(&[head(&with_length), data(false, b"123456")], Reason::PROTOCOL_ERROR);
    check(&[head(&with_length), data(true, b"1234")], Reason::PROTOCOL_ERROR);
    check(&[whole_request(1), data(false, b"late")], Reason::STREAM_CLOSED);
    check(&[whole_request(1), whole_request(1)], Reason::STREAM_CLOSED);
    check(&[head(&request()), window(0)], Reason::PROTOCOL_ERROR);
    check(&[head(&request()), window(wire::MAX_31)], Reason::FLOW_CONTROL_ERROR);
    check(&[head(&request()), frame(wire::PRIORITY, 0, 1, b"1234")], Reason::FRAME_SIZE_ERROR);
}

#[test]
fn an_announced_length_that_is_kept_is_taken() {
    let mut server = server();
    let with_length = request().with("content-length", "5");
    server.receive(&frame(wire::HEADERS, wire::END_HEADERS, 1, &block(&with_length))).unwrap();
    server.receive(&frame(wire::DATA, wire::END_STREAM | wire::PADDED, 1, b"\x0212345XX")).unwrap();
    assert_eq!(drain(&mut server, StreamId(1)), (b"12345".to_vec(), Read::End(None)));
}

#[test]
fn interim_answers_are_skipped() {
    let mut pair = Pair::new(&small());
    let interim = block(&Headers::new().with(":status", "103"));
    let id = pair.open();
    let mut frames = frame(wire::HEADERS, wire::END_HEADERS, id.0, &interim);
    frames.extend(frame(wire::HEADERS, wire::END_HEADERS, id.0, &block(&ok())));
    pair.client.receive(&frames).unwrap();
    assert_eq!(events(&mut pair.client), [Event::Headers(id, ok())]);
    // One that ends the stream is no answer.
    let id = pair.client.open(&request(), true).unwrap();
    pair.client.receive(&frame(wire::HEADERS, wire::END_HEADERS | wire::END_STREAM, id.0, &interim)).unwrap();
    assert_eq!(events(&mut pair.client), [Event::Reset(id, Reason::PROTOCOL_ERROR)]);
}

#[test]
fn pings_are_answered_and_ours_come_back() {
    let mut pair = Pair::new(&small());
    pair.client.ping(*b"12345678");
    pair.exchange();
    assert_eq!(events(&mut pair.client), [Event::Pong(*b"12345678")]);
    assert_eq!(events(&mut pair.server), []);
}
