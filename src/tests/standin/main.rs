//! The ztunnel stand-in as a program.

fn main() {}
