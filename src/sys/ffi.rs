//! The only file with `unsafe`: system calls for which no crate here has a safe door, each behind a safe function.
