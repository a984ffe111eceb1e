//! ZDS: handing pods' network namespaces to ztunnel over a Unix seqpacket socket.

mod accept;
mod connections;
mod message;
pub mod server;
mod session;
pub mod wire;
