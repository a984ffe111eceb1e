//! ZDS: handing pods' network namespaces to ztunnel over a Unix seqpacket socket.

pub mod server;
mod session;
mod wakeup;
pub mod wire;
