//! Where pods come from, and where it is written what became of them: the API server, or a directory and a file.

use super::annotate::Annotator;
use super::cluster::Cluster;
use super::directory::Directory;
use super::event::Event;
use super::memory::{Published, read_published};
use super::publish::{self, Change, Publisher};
use super::{Options, PodSource};
use crate::error::Result;
use crate::kube::client::Client;
use crate::kube::config::Config;
use crate::pod::types::PodName;
use std::sync::mpsc::Sender;

/// A running source. Dropped, it writes what it can at once and ends.
#[derive(Debug)]
pub enum Source {
    /// The API server.
    Cluster(Cluster, Annotator),
    /// Standalone mode.
    Directory(Directory, Publisher),
}

impl Source {
    /// Starts it; news go to `inbox`. Also what an earlier run published, where nobody else tells that.
    pub fn start(options: &Options, inbox: &Sender<Event>) -> Result<(Self, Published)> {
        match &options.source {
            PodSource::Kubernetes { api, node } => {
                let client = Client::new(Config::load(api)?);
                let annotator = Annotator::start(&client)?;
                log::info!(target: "cni-agent", node = node.as_str(); "asking the API server at {}", client.server());
                Ok((Source::Cluster(Cluster::start(&client, node, inbox.clone())?, annotator), Published::new()))
            }
            PodSource::Directory(path) => {
                let published = read_published(&options.run_dir.join(publish::FILE)).unwrap_or_else(|e| {
                    log::error!(target: "cni-agent", "what an earlier run published is not known: {e}");
                    Default::default()
                });
                let publisher = Publisher::start(&options.run_dir, published.clone())?;
                Ok((Source::Directory(Directory::start(path, inbox.clone())?, publisher), published))
            }
        }
    }

    /// Looks a pod up and answers with [`super::event::Notice::LookedUp`].
    pub fn look_up(&self, name: PodName) {
        match self {
            Source::Cluster(cluster, _) => cluster.look_up(name),
            Source::Directory(directory, _) => directory.look_up(name),
        }
    }

    /// Writes what a pod is published as; never blocks.
    pub fn publish(&self, change: Change) {
        match self {
            Source::Cluster(_, annotator) => annotator.publish(change),
            Source::Directory(_, publisher) => publisher.publish(change),
        }
    }
}
