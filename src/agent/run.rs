//! Starting, running and stopping the agent.

use super::Options;
use crate::error::Result;

/// Runs the agent until SIGTERM or SIGINT.
pub fn run(_options: Options) -> Result<()> {
    todo!()
}
