//! An API server for the tests.
