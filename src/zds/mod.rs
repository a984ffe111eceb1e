//! ZDS: handing pods' network namespaces to ztunnel over a Unix seqpacket socket.

mod bell;
pub mod server;
mod session;
pub mod wire;
