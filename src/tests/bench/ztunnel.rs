//! The least of a ztunnel: acknowledges everything at once, and tells when it was handed a pod. So what is measured is
//! the agent and not the stand-in.

use ferrule::sys::fd::{recv_with_fds, send_with_fd};
use ferrule::sys::unix::{Connection, SocketType};
use ferrule::zds::wire::{Ack, Answer, PACKET_LIMIT};
use ferrule::zds::wire::{Payload, Version, WorkloadRequest, WorkloadResponse, ZdsHello};
use prost::Message as _;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Far more than anything takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connected ztunnel; it ends with the agent.
pub struct Ztunnel {
    /// So many pods were in its snapshot.
    pub snapshot: usize,
    added: Receiver<Instant>,
}

impl Ztunnel {
    /// Connects, and returns when the agent has sent its snapshot.
    pub fn connect(socket: &Path) -> Self {
        let connection = Connection::connect(socket, SocketType::SeqPacket, PATIENCE).unwrap();
        let hello = ZdsHello { version: Version::V1 as i32 }.encode_to_vec();
        send_with_fd(connection.as_fd(), &hello, None).unwrap();
        let mut snapshot = 0;
        while !matches!(serve(&connection).expect("a snapshot"), Payload::SnapshotSent(_)) {
            snapshot += 1;
        }
        let (sender, added) = channel();
        std::thread::spawn(move || {
            while let Some(payload) = serve(&connection) {
                if matches!(payload, Payload::Add(_)) && sender.send(Instant::now()).is_err() {
                    return;
                }
            }
        });
        Ztunnel { snapshot, added }
    }

    /// When the next pod was handed over (and acknowledged).
    pub fn next(&self) -> Instant {
        self.added.recv_timeout(PATIENCE).expect("no pod was handed to ztunnel")
    }
}

/// Takes one request and acknowledges it; `None` at the end of the connection.
fn serve(connection: &Connection) -> Option<Payload> {
    let mut packet = [0; PACKET_LIMIT];
    let got = recv_with_fds(connection.as_fd(), &mut packet).ok().filter(|got| got.len > 0)?;
    let request = WorkloadRequest::decode(&packet[..got.len]).unwrap();
    let ack = WorkloadResponse { payload: Some(Answer::Ack(Ack::default())) }.encode_to_vec();
    send_with_fd(connection.as_fd(), &ack, None).ok()?;
    request.payload
}
