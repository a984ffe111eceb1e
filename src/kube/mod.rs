//! The Kubernetes API, blocking: client and reflectors.
