//! Sockets that are slow, silent, or gone; and two connections on one thread.

use super::*;
use ferrule::h2::{Reason, wait};
use ferrule::sys::wakeup::Wakeup;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::Instant;

const MANY: usize = 20_000_000;

#[test]
fn much_goes_both_ways_at_once_although_nobody_reads_first() {
    let (mut client, server) = served(|mut server| {
        let (id, _) = opened(&mut server);
        server.answer(id, &ok(), false);
        // Everything is sent before anything is read: the windows stop the client, and that must not stop us.
        send_all(&mut server, id, MANY);
        let Read::Data(chunk) = server.read(id) else { panic!("nothing came") };
        ended(&mut server);
        chunk.len()
    });
    let id = client.open(&request("/both"), false).unwrap();
    let (mut left, mut got, mut ended) = (MANY, 0, false);
    while !ended {
        while left > 0 && client.has_room(id) {
            client.send(id, vec![b'y'; 10_000]);
            left -= 10_000;
        }
        match client.read(id) {
            Read::Data(chunk) => got += chunk.len(),
            Read::Empty => drop(event(&mut client)),
            Read::End(_) => ended = true,
            Read::Gone => panic!("gone after {got} bytes"),
        }
    }
    assert_eq!(got, MANY);
    drop(client);
    assert!(server.join().unwrap() > 0);
}

#[test]
fn a_slow_reader_holds_the_sender_and_nothing_piles_up() {
    let options = Options { stream_window: 65_535, window: 65_535, queue: 100_000, ..Options::default() };
    let (mut client, mut server) = pair(&options, &Deadlines::default());
    let id = client.open(&request("/slow"), false).unwrap();
    let (mut sent, mut read) = (0, 0);
    let mut at_the_server = None;
    while read < 5_000_000 {
        if client.has_room(id) && sent < 5_000_000 {
            client.send(id, vec![0; 10_000]);
            sent += 10_000;
        }
        wait(&mut [&mut client, &mut server], None, Duration::ZERO).unwrap();
        while client.event().is_some() {}
        while let Some(event) = server.event() {
            if let Event::Headers(id, _) = event {
                at_the_server = Some(id);
            }
        }
        // One chunk for many rounds of the sender.
        if let Some(id) = at_the_server
            && let Read::Data(chunk) = server.read(id)
        {
            read += chunk.len();
        }
        // Queue, windows, and what the kernel holds between the two.
        assert!(sent - read < 1_500_000, "{sent} bytes sent, {read} read");
    }
}

#[test]
fn peers_that_say_nothing_are_given_up() {
    let short = Deadlines { greeting: MOMENT, silence: LONG, sign: LONG };
    let options = Options::default();
    let (here, _there) = UnixStream::pair().unwrap();
    let mut server = Endpoint::server(here, &options, short.clone()).unwrap();
    let e = server.next(LONG).unwrap_err();
    assert_eq!((e.kind(), e.to_string()), (Kind::TimedOut, "the peer did not speak HTTP/2 within 200ms".to_owned()));
    // The end is told again to whoever asks again, and costs no time.
    assert_eq!(server.next(LONG).unwrap_err().kind(), Kind::TimedOut);

    // One that stops in the middle, like a stopped process.
    let deadlines = Deadlines { greeting: LONG, silence: MOMENT, sign: MOMENT };
    let (mut client, mut server) = pair(&options, &deadlines);
    client.open(&request("/"), false).unwrap();
    wait(&mut [&mut client, &mut server], None, LONG).unwrap();
    opened(&mut server);
    let begin = Instant::now();
    let e = client.next(LONG).unwrap_err();
    assert_eq!((e.kind(), e.to_string()), (Kind::TimedOut, "the peer did not answer a PING within 200ms".to_owned()));
    assert!(begin.elapsed() >= 2 * MOMENT && begin.elapsed() < LONG / 2);
}

#[test]
fn a_peer_that_is_silent_but_alive_is_kept() {
    let deadlines = Deadlines { greeting: LONG, silence: MOMENT / 4, sign: LONG };
    let (mut client, mut server) = pair(&Options::default(), &deadlines);
    client.open(&request("/"), false).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < 2 * MOMENT {
        wait(&mut [&mut client, &mut server], None, MOMENT).unwrap();
        while client.event().is_some() || server.event().is_some() {}
    }
    assert!(client.failure().is_none() && server.failure().is_none());
}

#[test]
fn ends_are_told_apart() {
    let (here, there) = UnixStream::pair().unwrap();
    let mut client = Endpoint::client(here, &Options::default(), Deadlines::default()).unwrap();
    (&there).write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    let e = client.next(LONG).unwrap_err();
    assert_eq!(e.kind(), Kind::Invalid);
    // It was told why.
    drop(client);
    let mut said = Vec::new();
    (&there).read_to_end(&mut said).unwrap();
    assert!(said.windows(7).any(|part| part == [7, 0, 0, 0, 0, 0, 0]), "a GOAWAY");

    let (mut client, server) = pair(&Options::default(), &Deadlines::default());
    drop(server);
    assert_eq!(client.next(LONG).unwrap_err().kind(), Kind::PeerGone);

    // An orderly end: nothing new, what is open is finished, and then the connection is closed.
    let (mut client, server) = served(|mut server| {
        let (id, _) = opened(&mut server);
        server.shut_down();
        server.answer(id, &ok(), false);
        send_all(&mut server, id, 100_000);
        ended(&mut server)
    });
    let id = client.open(&request("/"), true).unwrap();
    let mut events = vec![event(&mut client), event(&mut client)];
    events.retain(|event| matches!(event, Event::GoAway(Reason::NO_ERROR, _)));
    assert_eq!(events.len(), 1);
    assert_eq!(read_all(&mut client, id), 100_000);
    assert_eq!(ended(&mut client), Kind::PeerGone);
    assert_eq!(server.join().unwrap(), Kind::PeerGone);
}

#[test]
fn other_threads_wake_who_waits() {
    let (mut client, mut server) = pair(&Options::default(), &Deadlines::default());
    while wait(&mut [&mut client, &mut server], None, MOMENT).unwrap() || !client.is_greeted() || !server.is_greeted() {
    }
    let wakeup = Arc::new(Wakeup::new().unwrap());
    let waker = {
        let wakeup = wakeup.clone();
        std::thread::spawn(move || {
            std::thread::sleep(MOMENT);
            wakeup.wake();
        })
    };
    let begin = Instant::now();
    assert!(wait(&mut [&mut client, &mut server], Some(&wakeup), LONG).unwrap());
    assert!(begin.elapsed() >= MOMENT && begin.elapsed() < LONG / 2);
    waker.join().unwrap();
    // It is taken by the wait; and one from before the wait is not lost.
    assert!(!wait(&mut [&mut client], Some(&wakeup), MOMENT).unwrap());
    wakeup.wake();
    assert!(wait(&mut [&mut client], Some(&wakeup), LONG).unwrap());
}

#[test]
fn a_peer_that_does_not_read_holds_nobody_else_up() {
    let (stalled, silent) = UnixStream::pair().unwrap();
    let deadlines = Deadlines { greeting: LONG, silence: LONG, sign: LONG };
    let mut stalled = Endpoint::client(stalled, &Options::default(), deadlines).unwrap();
    let id = stalled.open(&request("/stalled"), false).unwrap();
    // Its windows are large, and it reads nothing.
    let settings =
        [&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0x7f, 0xff, 0xff, 0xff][..], &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0x70, 0, 0, 0]];
    (&silent).write_all(&settings.concat()).unwrap();
    stalled.send(id, vec![0; 10_000_000]);
    let (mut client, server) = served(|mut server| {
        let (id, _) = opened(&mut server);
        server.answer(id, &ok(), false);
        send_all(&mut server, id, MANY);
        ended(&mut server);
    });
    let id = client.open(&request("/"), true).unwrap();
    let mut total = 0;
    loop {
        match client.read(id) {
            Read::Data(chunk) => total += chunk.len(),
            Read::Empty => drop(wait(&mut [&mut stalled, &mut client], None, LONG).unwrap()),
            _ => break,
        }
        while client.event().is_some() || stalled.event().is_some() {}
    }
    assert_eq!(total, MANY);
    assert!(stalled.failure().is_none());
    drop(client);
    server.join().unwrap();
}
