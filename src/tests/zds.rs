//! The ZDS server against raw peers, byte by byte, and against the ztunnel stand-in.

mod lifecycle;
mod own_process;
mod protocol;
mod proxy;
mod standin;

use crate::support::eventually;
use ferrule::sys::fd::{recv_with_fds, send_with_fd, wait};
use ferrule::sys::netlink::set_link_up;
use ferrule::sys::netns::Netns;
use ferrule::sys::unix::{Connection, SocketType};
use ferrule::zds::server::{ConnectionId, Notice, Options, Request, Server, WorkloadInfo};
use ferrule::zds::wire::{Payload, WorkloadRequest};
use nix::poll::PollFlags;
use prost::Message as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;

/// Long enough never to pass by accident.
const LONG: Duration = Duration::from_secs(10);
/// Long enough for something that must not happen to happen.
const MOMENT: Duration = Duration::from_millis(100);

const HELLO: &[u8] = b"\x08\x01";
const ACK: &[u8] = b"\x0a\x00";

/// A server and what it reports.
struct Agent {
    server: Server,
    notices: Receiver<Notice>,
    dir: TempDir,
}

impl Agent {
    fn start(timeout: Duration) -> Self {
        Self::start_in(TempDir::new().unwrap(), timeout)
    }

    fn start_in(dir: TempDir, timeout: Duration) -> Self {
        let (send, notices) = channel();
        let options = Options { socket: dir.path().join("run/ztunnel.sock"), timeout };
        let server = Server::start(options, move |notice| drop(send.send(notice))).unwrap();
        Agent { server, notices, dir }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("run/ztunnel.sock")
    }

    fn notice(&self) -> Notice {
        self.notices.recv_timeout(LONG).expect("a notice within 10 s")
    }

    fn no_notice(&self) {
        if let Ok(notice) = self.notices.recv_timeout(MOMENT) {
            panic!("unexpected: {notice:?}");
        }
    }

    fn connected(&self) -> ConnectionId {
        match self.notice() {
            Notice::Connected(id) => id,
            other => panic!("not Connected: {other:?}"),
        }
    }

    fn snapshot_done(&self, id: ConnectionId) {
        match self.notice() {
            Notice::SnapshotDone(done) if done == id => {}
            other => panic!("not SnapshotDone of {id:?}: {other:?}"),
        }
    }

    /// The uid of the request that was answered, and the answer.
    fn answered(&self, id: ConnectionId) -> (String, ferrule::error::Result<()>) {
        match self.notice() {
            Notice::Answered { connection, request, result } if connection == id => (uid_of(&request), result),
            other => panic!("not Answered by {id:?}: {other:?}"),
        }
    }

    fn acked(&self, id: ConnectionId, uid: &str) {
        let (of, result) = self.answered(id);
        assert_eq!(of, uid);
        result.unwrap();
    }

    fn disconnected(&self, id: ConnectionId) -> String {
        match self.notice() {
            Notice::Disconnected(of, why) if of == id => why,
            other => panic!("not Disconnected of {id:?}: {other:?}"),
        }
    }

    /// A raw peer that said hello.
    fn raw(&self) -> (Raw, ConnectionId) {
        let raw = Raw::connect(self);
        raw.send(HELLO);
        (raw, self.connected())
    }

    /// A raw peer past an empty snapshot.
    fn raw_ready(&self) -> (Raw, ConnectionId) {
        let (raw, id) = self.raw();
        self.server.snapshot(id, Vec::new());
        assert!(matches!(raw.request(), (Payload::SnapshotSent(_), None)));
        raw.send(ACK);
        self.snapshot_done(id);
        (raw, id)
    }

    /// A request and its answer take their usual time.
    fn serves(&self, raw: &Raw, id: ConnectionId) {
        let begin = std::time::Instant::now();
        self.server.send(id, del("probe"));
        assert_eq!(raw.uid(), "probe");
        raw.send(ACK);
        self.acked(id, "probe");
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(1), "took {took:?}");
    }
}

/// A peer that says exactly what it is told to.
struct Raw(Connection);

impl Raw {
    fn connect(agent: &Agent) -> Self {
        Raw(Connection::connect(&agent.socket(), SocketType::SeqPacket, LONG).unwrap())
    }

    fn send(&self, packet: &[u8]) {
        self.send_with(packet, None);
    }

    fn send_with(&self, packet: &[u8], fd: Option<BorrowedFd<'_>>) {
        send_with_fd(self.0.as_fd(), packet, fd).unwrap();
    }

    /// The next packet and its descriptor.
    fn request(&self) -> (Payload, Option<OwnedFd>) {
        assert!(wait(self.0.as_fd(), PollFlags::POLLIN, LONG).unwrap(), "no request within 10 s");
        let mut buffer = [0; 1024];
        let mut got = recv_with_fds(self.0.as_fd(), &mut buffer).unwrap();
        assert!(got.len > 0, "closed instead of a request");
        assert!(!got.truncated && !got.fds_lost && got.fds.len() <= 1);
        (WorkloadRequest::decode(&buffer[..got.len]).unwrap().payload.unwrap(), got.fds.pop())
    }

    /// The pod the next request is about.
    fn uid(&self) -> String {
        match self.request().0 {
            Payload::Add(add) => add.uid,
            Payload::Keep(keep) => keep.uid,
            Payload::Del(del) => del.uid,
            Payload::SnapshotSent(_) => "snapshot_sent".into(),
        }
    }

    fn nothing_comes(&self) {
        assert!(!wait(self.0.as_fd(), PollFlags::POLLIN, MOMENT).unwrap(), "something was sent too early");
    }

    fn is_closed(&self) {
        assert!(wait(self.0.as_fd(), PollFlags::POLLIN, LONG).unwrap(), "not closed within 10 s");
        match recv_with_fds(self.0.as_fd(), &mut [0; 1024]) {
            Ok(got) => assert_eq!(got.len, 0, "a packet instead of the end"),
            Err(e) => assert_eq!(e.kind(), ferrule::error::Kind::PeerGone, "{e}"),
        }
    }
}

fn uid_of(request: &Request) -> String {
    match request {
        Request::Add { uid, .. } | Request::Keep { uid } | Request::Del { uid } => uid.clone(),
    }
}

fn info(name: &str) -> WorkloadInfo {
    WorkloadInfo { name: name.into(), namespace: "shop".into(), service_account: "sa".into() }
}

fn add(uid: &str, netns: &Arc<Netns>) -> Request {
    Request::Add { uid: uid.into(), info: info(&format!("pod-{uid}")), netns: netns.clone() }
}

fn keep(uid: &str) -> Request {
    Request::Keep { uid: uid.into() }
}

fn del(uid: &str) -> Request {
    Request::Del { uid: uid.into() }
}

/// A namespace of its own, its loopback interface up, as a runtime hands it over.
fn pod_netns() -> Arc<Netns> {
    let netns = Netns::scratch().unwrap();
    netns.enter(|| set_link_up("lo").unwrap()).unwrap();
    Arc::new(netns)
}
