//! What the stand-in can be made to do wrong.

use std::time::Duration;

/// Which requests are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum On {
    /// Every request about this pod.
    Uid(String),
    /// The nth request since the start, `snapshot_sent` included; the first is 1.
    Nth(u64),
    /// Every request.
    All,
}

/// What is done instead of the right thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Handle it, and never answer.
    NoAck,
    /// Handle it, and answer after this time.
    LateAck(Duration),
    /// Refuse it with this text.
    Nack(String),
    /// Close the connection without an answer.
    Close,
    /// Read nothing any more, and keep the connection open.
    Stall,
    /// Answer with bytes that are no message.
    Garbage,
    /// Answer with a packet of more than 1024 bytes.
    Oversized,
    /// Answer with a descriptor in the packet.
    Descriptor,
    /// Handle it, and answer twice.
    TwoAcks,
}

/// How the stand-in connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Approach {
    /// Nothing is wrong: ztunnel's own way.
    #[default]
    Hello,
    /// Connects and says nothing.
    Silent,
    /// Connects and closes, again and again, as fast as it can.
    Storm,
    /// Greets with bytes that are no hello.
    Garbage,
}

/// Reads `uid:UID=FAULT`, `nth:N=FAULT` or `all=FAULT`, where FAULT is `no-ack`, `late-ack:MILLISECONDS`, `nack:TEXT`,
/// `close`, `stall`, `garbage`, `oversized`, `descriptor` or `two-acks`.
pub fn parse(text: &str) -> Result<(On, Fault), String> {
    let (on, fault) = text.split_once('=').ok_or(format!("{text}: not WHEN=WHAT"))?;
    let on = match on.split_once(':') {
        Some(("uid", uid)) => On::Uid(uid.to_owned()),
        Some(("nth", n)) => On::Nth(n.parse().map_err(|_| format!("{n}: not a number"))?),
        None if on == "all" => On::All,
        _ => return Err(format!("{on}: not uid:UID, nth:N or all")),
    };
    let fault = match fault.split_once(':').unwrap_or((fault, "")) {
        ("no-ack", _) => Fault::NoAck,
        ("late-ack", ms) => {
            Fault::LateAck(Duration::from_millis(ms.parse().map_err(|_| format!("{ms}: not milliseconds"))?))
        }
        ("nack", text) => Fault::Nack(text.to_owned()),
        ("close", _) => Fault::Close,
        ("stall", _) => Fault::Stall,
        ("garbage", _) => Fault::Garbage,
        ("oversized", _) => Fault::Oversized,
        ("descriptor", _) => Fault::Descriptor,
        ("two-acks", _) => Fault::TwoAcks,
        _ => return Err(format!("{fault}: not a fault")),
    };
    Ok((on, fault))
}
