//! The client and the reflectors against an API server that misbehaves.
