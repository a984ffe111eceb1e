//! What goes into files for others: `RUN/state.json`, which is what would be the pods' annotations where there is no API
//! server to take them, and the pods outside the mesh, for a plugin that finds nobody to ask.

use super::writer::{Content, Writer};
use crate::cni::outside::Outside;
use crate::error::Result;
use crate::node::records::{Published, read_published, render};
use crate::node::redirection::Redirection;
use crate::pod::types::PodName;
use crate::sys::file::{self, Mode};
use crate::sys::run_dir::RunDir;
use std::collections::BTreeSet;

/// A change: uid, the pod's name, what is published now.
pub type Change = (String, PodName, Option<Redirection>);

impl Content for Published {
    type Change = Change;
    const WHAT: &'static str = "what is published about pods";

    fn change(&mut self, (uid, name, redirection): Change) {
        match redirection {
            Some(redirection) => self.insert(uid, (name, redirection)),
            None => self.remove(&uid),
        };
    }

    fn render(&self) -> Result<Option<Vec<u8>>> {
        render(self).map(Some)
    }
}

/// Starts the writer of the published state with what the file says now.
pub fn start(run_dir: &RunDir, published: Published) -> Result<Writer<Published>> {
    Writer::start("state-writer", run_dir.published(), published)
}

/// Takes pods out of the file while no writer runs.
pub fn withdraw(run_dir: &RunDir, uids: &BTreeSet<String>) -> Result<()> {
    let path = run_dir.published();
    let mut published = read_published(&path)?;
    if uids.is_disjoint(&published.keys().cloned().collect()) {
        return Ok(());
    }
    published.retain(|uid, _| !uids.contains(uid));
    file::write_if_changed(&path, &render(&published)?, Mode(0o600), false).map(drop)
}

/// What an earlier run decided stays until this one has.
impl Content for Option<Outside> {
    const PERISHABLE: bool = true;
    type Change = Outside;
    const WHAT: &'static str = "which pods are not in the mesh";

    fn change(&mut self, outside: Outside) {
        *self = Some(outside);
    }

    fn render(&self) -> Result<Option<Vec<u8>>> {
        self.as_ref().map(Outside::encode).transpose()
    }
}

/// Starts the writer of the pods outside the mesh.
pub fn start_outside(run_dir: &RunDir) -> Result<Writer<Option<Outside>>> {
    Writer::start("outside-writer", run_dir.outside(), None)
}
