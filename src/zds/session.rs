//! One connection: hello, snapshot, then requests one by one, each acknowledged before the next is sent.
//!
//! One thread does all the I/O; others only put requests into the bounded queue and wake it up. The lock guards the
//! queue alone and is never held across I/O or a notice.

use super::message::{ConnectionId, Notice, Request};
use super::wire;
use crate::error::{Context, Error, Kind, Result};
use crate::invalid;
use crate::sys::unix::Connection;
use crate::sys::wakeup::{Wakeup, Woken};
use crate::sys::{clock, fd, sync};
use nix::poll::PollFlags;
use std::collections::VecDeque;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Requests that may wait on one connection besides its snapshot. A node has a few hundred pods; a ztunnel with
/// thousands of requests unanswered will not recover by being sent more.
const QUEUE_LIMIT: usize = 4096;

/// How often an idle connection is checked. A peer that closes is seen at once; this is for one that just vanished.
const IDLE_CHECK: Duration = Duration::from_secs(5);

/// A connection as seen by everyone.
#[derive(Debug)]
pub(super) struct Session {
    socket: Connection,
    /// Time for the hello and each ack.
    timeout: Duration,
    wakeup: Wakeup,
    waiting: Mutex<Waiting>,
}

/// What others want of the connection's thread.
#[derive(Debug, Default)]
struct Waiting {
    snapshot: Snapshot,
    queue: VecDeque<Request>,
    closing: Option<&'static str>,
}

#[derive(Debug, Default)]
enum Snapshot {
    #[default]
    Awaited,
    Given(Vec<Request>),
    /// `snapshot_sent` goes out once and never again: ztunnel exits on a second one.
    Taken,
}

enum Next {
    Snapshot(Vec<Request>),
    Request(Request),
    Nothing,
}

impl Session {
    pub(super) fn new(socket: Connection, timeout: Duration) -> Result<Self> {
        socket.set_timeouts(timeout, timeout)?;
        Ok(Session { socket, timeout, wakeup: Wakeup::new()?, waiting: Mutex::default() })
    }

    /// Gives the snapshot; only the first one counts.
    pub(super) fn give_snapshot(&self, items: Vec<Request>) {
        let mut waiting = self.lock();
        if matches!(waiting.snapshot, Snapshot::Awaited) {
            waiting.snapshot = Snapshot::Given(items);
        }
        drop(waiting);
        self.wakeup.wake();
    }

    /// Queues a request behind the snapshot; a full queue ends the connection.
    pub(super) fn enqueue(&self, request: Request) {
        let mut waiting = self.lock();
        if waiting.queue.len() >= QUEUE_LIMIT {
            drop(waiting);
            self.close("too many requests wait for an answer");
            return;
        }
        waiting.queue.push_back(request);
        drop(waiting);
        self.wakeup.wake();
    }

    /// Ends the connection, whatever its thread waits for; the first reason stays.
    pub(super) fn close(&self, reason: &'static str) {
        self.lock().closing.get_or_insert(reason);
        self.wakeup.wake();
        self.socket.shutdown();
    }

    /// Waits for the hello and returns the version it announces.
    pub(super) fn hello(&self) -> Result<i32> {
        wire::decode_hello(&self.receive("hello")?)
    }

    /// Sends what there is to send until the connection ends, and returns why it did.
    pub(super) fn serve(&self, id: ConnectionId, notify: &dyn Fn(Notice)) -> Error {
        loop {
            let done = match self.next() {
                Ok(Next::Snapshot(items)) => self.send_snapshot(id, items, notify),
                Ok(Next::Request(Request::Keep { uid })) => {
                    let result = Err(invalid!("ztunnel takes a keep only before the end of the snapshot"));
                    notify(Notice::Answered { connection: id, request: Request::Keep { uid }, result });
                    Ok(())
                }
                Ok(Next::Request(request)) => self.send(id, request, notify),
                Ok(Next::Nothing) => self.idle(),
                Err(e) => Err(e),
            };
            if let Err(e) = done {
                return e;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        sync::lock(&self.waiting)
    }

    fn next(&self) -> Result<Next> {
        let mut waiting = self.lock();
        if let Some(reason) = waiting.closing {
            return Err(Error::new(reason));
        }
        match mem::replace(&mut waiting.snapshot, Snapshot::Taken) {
            Snapshot::Awaited => {
                waiting.snapshot = Snapshot::Awaited;
                Ok(Next::Nothing)
            }
            Snapshot::Given(items) => Ok(Next::Snapshot(items)),
            Snapshot::Taken => Ok(waiting.queue.pop_front().map_or(Next::Nothing, Next::Request)),
        }
    }

    fn send_snapshot(&self, id: ConnectionId, items: Vec<Request>, notify: &dyn Fn(Notice)) -> Result<()> {
        for item in items {
            self.send(id, item, notify)?;
        }
        self.exchange(&wire::snapshot_sent()?, None)?
            .map_err(|text| Error::of(Kind::Refused, text).context("ztunnel refused the end of the snapshot"))?;
        notify(Notice::SnapshotDone(id));
        Ok(())
    }

    /// Sends one request and reports its answer. Fails only when the connection is over.
    fn send(&self, connection: ConnectionId, request: Request, notify: &dyn Fn(Notice)) -> Result<()> {
        let (packet, netns) = match &request {
            Request::Add { uid, info, netns } => (wire::add(uid, info), Some(netns.as_fd())),
            Request::Keep { uid } => (wire::keep(uid), None),
            Request::Del { uid } => (wire::del(uid), None),
        };
        let result = match packet {
            Ok(packet) => self.exchange(&packet, netns)?.map_err(|text| Error::of(Kind::Refused, text)),
            Err(too_long) => Err(too_long),
        };
        notify(Notice::Answered { connection, request, result });
        Ok(())
    }

    /// One packet out, one acknowledgement back.
    fn exchange(&self, packet: &[u8], netns: Option<BorrowedFd<'_>>) -> Result<Result<(), String>> {
        if fd::wait(self.socket.as_fd(), PollFlags::POLLIN, Duration::ZERO)? {
            return Err(self.unasked());
        }
        let sent = fd::send_with_fd(self.socket.as_fd(), packet, netns).context("send to ztunnel")?;
        if sent != packet.len() {
            return Err(Error::of(Kind::PeerGone, "only a part of a packet could be sent to ztunnel"));
        }
        wire::decode_response(&self.receive("acknowledgement")?)
    }

    fn idle(&self) -> Result<()> {
        match self.wakeup.wait(Some(self.socket.as_fd()), IDLE_CHECK)? {
            Woken::Wakeup => Ok(()),
            Woken::Socket => Err(self.unasked()),
            Woken::Time if self.socket.peer_gone() => Err(gone()),
            Woken::Time => Ok(()),
        }
    }

    /// What it means that there is something to read while no answer is due: the end, or a packet that would be taken
    /// for the answer to the next request.
    fn unasked(&self) -> Error {
        match self.read_packet() {
            Ok(_) => invalid!("a packet that nobody asked for"),
            Err(e) => e,
        }
    }

    fn check_closing(&self) -> Result<()> {
        self.lock().closing.map_or(Ok(()), |reason| Err(Error::new(reason)))
    }

    /// Waits for a packet, at most the time-out.
    fn receive(&self, what: &str) -> Result<Vec<u8>> {
        let deadline = clock::now() + self.timeout;
        loop {
            let left = deadline.saturating_duration_since(clock::now());
            match self.wakeup.wait(Some(self.socket.as_fd()), left)? {
                Woken::Wakeup => self.check_closing()?,
                Woken::Socket => return self.read_packet(),
                Woken::Time => {
                    return Err(Error::of(Kind::TimedOut, format_args!("no {what} within {:?}", self.timeout)));
                }
            }
        }
    }

    fn read_packet(&self) -> Result<Vec<u8>> {
        let mut packet = vec![0; wire::PACKET_LIMIT];
        let got = fd::recv_with_fds(self.socket.as_fd(), &mut packet).context("read from ztunnel")?;
        // What the peer was told to stop for is the cause, not that it stopped.
        self.check_closing()?;
        if got.truncated {
            return Err(invalid!("a packet of more than {} bytes", wire::PACKET_LIMIT));
        }
        if !got.fds.is_empty() || got.fds_lost {
            return Err(invalid!("a packet with a descriptor"));
        }
        if got.len == 0 {
            return Err(gone());
        }
        packet.truncate(got.len);
        Ok(packet)
    }
}

fn gone() -> Error {
    Error::of(Kind::PeerGone, "closed by ztunnel")
}
