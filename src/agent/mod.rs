//! The agent: decides, and owns all mutable state.
