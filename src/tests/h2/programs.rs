//! nghttp2's own client, load generator and server.

use super::*;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Serves so many connections one after the other: every request gets as many bytes as its path says.
fn serve(listener: TcpListener, connections: usize) {
    let threads: Vec<_> = (0..connections)
        .map(|_| {
            let (socket, _) = listener.accept().unwrap();
            socket.set_nodelay(true).unwrap();
            let mut server = Endpoint::server(socket, &Options::default(), Deadlines::default()).unwrap();
            std::thread::spawn(move || {
                let mut left = std::collections::HashMap::new();
                while let Ok(event) = server.next(LONG) {
                    let id = match event {
                        Some(Event::Headers(id, headers)) => {
                            let path = headers.text(":path").unwrap();
                            left.insert(id, path.trim_start_matches('/').parse::<usize>().unwrap());
                            server.answer(id, &ok(), false);
                            id
                        }
                        Some(Event::Readable(id)) => {
                            while let Read::Data(_) = server.read(id) {}
                            id
                        }
                        Some(Event::Writable(id)) => id,
                        _ => continue,
                    };
                    let Some(bytes) = left.get_mut(&id) else { continue };
                    while *bytes > 0 && server.has_room(id) {
                        let length = (*bytes).min(16 << 10);
                        server.send(id, vec![b'x'; length]);
                        *bytes -= length;
                    }
                    if *bytes == 0 {
                        server.end(id, None);
                        left.remove(&id);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// What a program says that is given the address of such a server.
fn against_us(program: &str, args: &[&str], path: &str, connections: usize) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}/{path}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || serve(listener, connections));
    let out = Command::new(program).args(args).arg(url).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    server.join().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn nghttp_takes_a_large_answer() {
    assert_eq!(against_us("nghttp", &[], "5000000", 1).len(), 5_000_000);
}

#[test]
fn h2load_finds_no_error() {
    let said = against_us("h2load", &["-n", "20000", "-c", "4", "-m", "100"], "100", 4);
    assert!(said.contains("20000 succeeded, 0 failed, 0 errored"), "{said}");
    // Requests with a body, and answers that are larger than any window.
    let body = tempfile::NamedTempFile::new().unwrap();
    body.as_file().set_len(100_000).unwrap();
    let args = ["-n", "200", "-c", "2", "-m", "10", "-d", body.path().to_str().unwrap()];
    let said = against_us("h2load", &args, "300000", 2);
    assert!(said.contains("200 succeeded, 0 failed, 0 errored"), "{said}");
}

/// Killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nghttpd_serves_us() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), vec![b'z'; 3_000_000]).unwrap();
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let args =
        ["--no-tls", "-a", "127.0.0.1", "-d", dir.path().to_str().unwrap(), &port.to_string()].map(str::to_owned);
    let _nghttpd = Running(Command::new("nghttpd").args(args).stdout(Stdio::null()).spawn().unwrap());
    let begin = Instant::now();
    let socket = loop {
        match TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))) {
            Ok(socket) => break socket,
            Err(e) => assert!(begin.elapsed() < LONG, "{e}"),
        }
    };
    let mut client = Endpoint::client(socket, &Options::default(), Deadlines::default()).unwrap();
    let get = |path: &str| {
        let start = Headers::new().with(":method", "GET").with(":scheme", "http").with(":path", path);
        start.with(":authority", "localhost")
    };
    // Many at once, and one that is not there.
    let ids: Vec<_> = (0..20).map(|_| client.open(&get("/file"), true).unwrap()).collect();
    let missing = client.open(&get("/missing"), true).unwrap();
    let (mut totals, mut statuses) = (std::collections::HashMap::new(), std::collections::HashMap::new());
    while client.open_streams() > 0 {
        match event(&mut client) {
            Event::Headers(id, headers) => drop(statuses.insert(id, headers.status().unwrap())),
            Event::Readable(id) => {
                while let Read::Data(chunk) = client.read(id) {
                    *totals.entry(id).or_insert(0) += chunk.len();
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(ids.iter().all(|id| totals[id] == 3_000_000 && statuses[id] == 200));
    assert_eq!(statuses[&missing], 404);
}
