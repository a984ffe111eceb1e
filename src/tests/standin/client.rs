//! The ZDS side: connects, keeps a proxy per pod as it is told, and answers.

use super::fault::{Approach, Fault, On};
use super::options::Options;
use super::proxy;
use super::proxy::{Mesh, Proxy, netns_id};
use super::stats::{Board, Event, PodStats};
use super::stop::Stop;
use ferrule::sys::fd::{recv_with_fds, send_with_fd};
use ferrule::zds::wire::{Ack, Answer, PACKET_LIMIT, Payload, Version, WorkloadInfo, WorkloadRequest};
use ferrule::zds::wire::{WorkloadResponse, ZdsHello};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use prost::Message as _;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Between two tries to connect: doubled from the first to the last. (ztunnel goes up to 15 s.)
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// Pods that failed to start are tried again this often.
const RETRY: Duration = Duration::from_secs(5);

/// Why a connection ended.
enum End {
    /// The stand-in is stopped.
    Stopped,
    /// ztunnel comes back.
    Reconnect(String),
    /// ztunnel exits.
    Exit(String),
}

/// What comes of a request.
enum Outcome {
    Done,
    /// The connection stays.
    Failed(String),
    /// Answered, and then ztunnel closes the connection or exits.
    Fatal(End),
}

pub struct Client {
    options: Options,
    stop: Stop,
    board: Arc<Board>,
    faults: Arc<Mutex<Vec<(On, Fault)>>>,
    mesh: Mesh,
    proxies: HashMap<String, Proxy>,
    /// Could not be started, and are tried again.
    pending: HashMap<String, OwnedFd>,
    named: HashSet<String>,
    snapshot_received: bool,
    requests: u64,
}

impl Client {
    pub fn new(options: Options, stop: Stop, board: Arc<Board>, faults: Arc<Mutex<Vec<(On, Fault)>>>) -> Self {
        Client {
            options,
            stop,
            board,
            faults,
            mesh: Mesh::default(),
            proxies: HashMap::new(),
            pending: HashMap::new(),
            named: HashSet::new(),
            snapshot_received: false,
            requests: 0,
        }
    }

    pub fn run(mut self) {
        let mut backoff = BACKOFF.0;
        while !self.stop.stopped() {
            let socket = match connect_to(&self.options.socket) {
                Ok(socket) => socket,
                Err(_) => {
                    self.stop.sleep(backoff);
                    backoff = (backoff * 2).min(BACKOFF.1);
                    continue;
                }
            };
            backoff = BACKOFF.0;
            self.board.event(Event::Connected);
            match self.session(&socket) {
                End::Stopped => return,
                End::Reconnect(reason) => self.board.event(Event::Disconnected(reason)),
                End::Exit(reason) => {
                    self.board.event(Event::Exited(reason));
                    return;
                }
            }
        }
    }

    fn session(&mut self, socket: &OwnedFd) -> End {
        self.named.clear();
        self.pending.clear();
        self.snapshot_received = false;
        match self.options.approach {
            Approach::Hello => {
                let _ = send(socket, &ZdsHello { version: Version::V1 as i32 }.encode_to_vec());
            }
            Approach::Garbage => {
                let _ = send(socket, b"\xff\xff\xff");
            }
            Approach::Silent => {}
            Approach::Storm => return End::Reconnect("storm".into()),
        }
        loop {
            let timeout = (!self.pending.is_empty()).then_some(RETRY);
            match self.stop.wait(&[socket.as_fd()], timeout) {
                None => return End::Stopped,
                Some(ready) if ready.is_empty() => self.retry_pending(),
                Some(_) => {
                    if let Err(end) = self.request(socket) {
                        return end;
                    }
                }
            }
        }
    }

    fn request(&mut self, socket: &OwnedFd) -> Result<(), End> {
        let mut buffer = [0; PACKET_LIMIT];
        let got = recv_with_fds(socket.as_fd(), &mut buffer).map_err(|e| End::Reconnect(e.to_string()))?;
        if got.len == 0 {
            return Err(End::Reconnect("end of stream".into()));
        }
        self.requests += 1;
        let (payload, netns) = match read(&buffer[..got.len], got.truncated || got.fds_lost, got.fds) {
            Ok(request) => request,
            Err(reason) => {
                let reason = format!("failure to read message : {reason}");
                let _ = answer(socket, &reason);
                return Err(End::Reconnect(reason));
            }
        };
        let fault = self.fault(&payload);
        match &fault {
            Some(Fault::Close) => return Err(End::Reconnect("told to close".into())),
            Some(Fault::Nack(text)) => {
                return answer(socket, text).map_err(|e| End::Reconnect(e.to_string()));
            }
            Some(Fault::Stall) => {
                self.stop.wait(&[], None);
                return Err(End::Stopped);
            }
            _ => {}
        }
        let outcome = self.handle(payload, netns);
        let error = match &outcome {
            Outcome::Done => "",
            Outcome::Failed(text) => text,
            Outcome::Fatal(End::Exit(text) | End::Reconnect(text)) => text,
            Outcome::Fatal(End::Stopped) => "",
        };
        let sent = match fault {
            Some(Fault::NoAck) => Ok(()),
            Some(Fault::LateAck(time)) if !self.stop.sleep(time) => return Err(End::Stopped),
            Some(Fault::Garbage) => send(socket, b"\xff\xff\xff"),
            Some(Fault::Oversized) => answer(socket, &"x".repeat(PACKET_LIMIT)),
            Some(Fault::Descriptor) => send_with_fd(socket.as_fd(), &ack(error), Some(socket.as_fd())).map(drop),
            Some(Fault::TwoAcks) => answer(socket, error).and_then(|()| answer(socket, error)),
            _ => answer(socket, error),
        };
        sent.map_err(|e| End::Reconnect(e.to_string()))?;
        match outcome {
            Outcome::Fatal(end) => Err(end),
            _ => Ok(()),
        }
    }

    fn fault(&self, payload: &Payload) -> Option<Fault> {
        let uid = match payload {
            Payload::Add(add) => &add.uid,
            Payload::Keep(keep) => &keep.uid,
            Payload::Del(del) => &del.uid,
            Payload::SnapshotSent(_) => "",
        };
        let faults = self.faults.lock().unwrap();
        let concerns = |on: &On| match on {
            On::All => true,
            On::Nth(n) => *n == self.requests,
            On::Uid(u) => u == uid,
        };
        faults.iter().find(|(on, _)| concerns(on)).map(|(_, fault)| fault.clone())
    }

    fn handle(&mut self, payload: Payload, netns: Option<OwnedFd>) -> Outcome {
        match (payload, netns) {
            (Payload::Add(add), Some(netns)) => {
                let Some(info) = add.workload_info else {
                    return exit("workload_info is required but not present");
                };
                if !self.snapshot_received {
                    self.named.insert(add.uid.clone());
                }
                match self.add(&add.uid, info, netns) {
                    Ok(()) => Outcome::Done,
                    Err(e) => Outcome::Failed(format!("failure to start proxy : {e}")),
                }
            }
            (Payload::Keep(keep), _) => {
                self.board.event(Event::Keep { uid: keep.uid.clone() });
                if self.snapshot_received {
                    return exit("pod keep received after snapshot");
                }
                self.named.insert(keep.uid);
                Outcome::Done
            }
            (Payload::Del(del), _) => {
                self.board.event(Event::Del { uid: del.uid.clone() });
                self.pending.remove(&del.uid);
                if self.snapshot_received {
                    self.drop_pods(|uid| *uid == del.uid);
                } else {
                    self.named.remove(&del.uid);
                }
                Outcome::Done
            }
            (Payload::SnapshotSent(_), _) => {
                if self.snapshot_received {
                    return exit("pod snapshot received already");
                }
                self.board.event(Event::SnapshotSent);
                let named = std::mem::take(&mut self.named);
                self.drop_pods(|uid| !named.contains(uid));
                self.snapshot_received = true;
                self.show_ready();
                Outcome::Done
            }
            (Payload::Add(_), None) => unreachable!("read() demands the descriptor"),
        }
    }

    fn add(&mut self, uid: &str, info: WorkloadInfo, netns: OwnedFd) -> Result<(), String> {
        let id = netns_id(&netns)?;
        self.board.event(Event::Add {
            uid: uid.into(),
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            service_account: info.service_account.clone(),
            netns: id.1,
        });
        if self.proxies.get(uid).is_some_and(|proxy| proxy.netns == id) {
            return Ok(());
        }
        self.drop_pods(|u| u == uid);
        self.board.pod(uid, |pod| {
            let WorkloadInfo { name, namespace, service_account } = info;
            *pod = PodStats { name, namespace, service_account, ..pod.clone() };
        });
        let spare = netns.try_clone().map_err(|e| e.to_string())?;
        let started = self.start(uid, netns);
        match &started {
            Ok(()) => drop(self.pending.remove(uid)),
            Err(_) => drop(self.pending.insert(uid.to_owned(), spare)),
        }
        self.show_ready();
        started
    }

    fn start(&mut self, uid: &str, netns: OwnedFd) -> Result<(), String> {
        let proxy = proxy::Proxy::start(netns, uid, &self.board, &self.mesh, self.options.dns)?;
        self.board.pod(uid, |pod| pod.netns = proxy.netns.1);
        self.proxies.insert(uid.to_owned(), proxy);
        Ok(())
    }

    fn retry_pending(&mut self) {
        for (uid, netns) in std::mem::take(&mut self.pending) {
            let Ok(spare) = netns.try_clone() else { continue };
            if self.start(&uid, netns).is_err() {
                self.pending.insert(uid, spare);
            }
        }
        self.show_ready();
    }

    fn drop_pods(&mut self, which: impl Fn(&str) -> bool) {
        let uids: Vec<String> = self.proxies.keys().filter(|uid| which(uid)).cloned().collect();
        for uid in uids {
            self.proxies.remove(&uid);
            self.board.pod(&uid, |pod| pod.netns = 0);
        }
        self.show_ready();
    }

    fn show_ready(&self) {
        let ready = self.snapshot_received && self.pending.is_empty();
        self.board.change(|stats| stats.ready = ready);
    }
}

fn exit(reason: &str) -> Outcome {
    Outcome::Fatal(End::Exit(format!("failure to process message : {reason}")))
}

/// Reads a request as ztunnel does: whatever is wrong with a packet or its descriptors ends the connection.
fn read(packet: &[u8], truncated: bool, mut fds: Vec<OwnedFd>) -> Result<(Payload, Option<OwnedFd>), String> {
    if fds.len() > 1 {
        return Err(format!("Expected 1 FD, got {}", fds.len()));
    }
    if truncated {
        return Err("received truncated message".into());
    }
    let payload = WorkloadRequest::decode(packet).map_err(|e| e.to_string())?.payload.ok_or("no payload")?;
    match (payload, fds.pop()) {
        (Payload::Add(_), None) => Err("No control message".into()),
        (Payload::Add(add), fd) => Ok((Payload::Add(add), fd)),
        (_, Some(_)) => Err("Unexpected control message".into()),
        (payload, None) => Ok((payload, None)),
    }
}

fn ack(error: &str) -> Vec<u8> {
    WorkloadResponse { payload: Some(Answer::Ack(Ack { error: error.to_owned() })) }.encode_to_vec()
}

fn answer(socket: &OwnedFd, error: &str) -> ferrule::error::Result<()> {
    send(socket, &ack(error))
}

fn send(socket: &OwnedFd, packet: &[u8]) -> ferrule::error::Result<()> {
    send_with_fd(socket.as_fd(), packet, None).map(drop)
}

fn connect_to(path: &std::path::Path) -> nix::Result<OwnedFd> {
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(fd)
}
