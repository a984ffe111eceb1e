//! ZDS: handing pods' network namespaces to ztunnel over a Unix seqpacket socket.

pub mod server;
pub mod wire;
