//! HTTP/1.1 over any `Read + Write`: one request, one answer, `Connection: close`. Heads are parsed by httparse; sizes
//! and times are bounded.

pub mod client;
pub mod server;
