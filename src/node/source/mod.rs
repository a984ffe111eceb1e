//! Where pods come from, and where it is written what became of them: the API server, or a directory and a file.

mod cluster;
mod directory;
mod files;
mod store;

use super::event::Event;
use super::publish::annotator::Annotator;
use super::publish::event_recorder::{EventRecorder, PodEvent};
use super::publish::remedies::Remedies;
use super::publish::state_file::{self, Change};
use super::publish::writer::Writer;
use super::records::{Published, read_published};
use super::upgrade_check::{self, Verdict};
use super::{Options, PodSource};
use crate::error::Result;
use crate::kube::client::Client;
use crate::kube::config::Config;
use crate::pod::types::PodName;
use crate::repair::order::Order;
use crate::sys::thread;
use cluster::Cluster;
use directory::Directory;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

/// A running source. Dropped, it writes what it can at once and ends.
#[derive(Debug)]
pub enum Source {
    /// The API server.
    Cluster {
        /// The client for questions of our own.
        client: Client,
        /// Our node's name.
        node: String,
        /// Pods and namespaces.
        cluster: Cluster,
        /// Annotations.
        annotator: Annotator,
        /// Events.
        recorder: EventRecorder,
        /// Changes of broken pods.
        remedies: Remedies,
    },
    /// Standalone mode.
    Directory(Directory, Writer<Published>),
}

impl Source {
    /// Starts it; news go to `inbox`. Also what an earlier run published, where nobody else tells that.
    pub fn start(options: &Options, inbox: &Sender<Event>) -> Result<(Self, Published)> {
        match &options.source {
            PodSource::Kubernetes { api, node } => {
                let client = Client::new(Config::load(api)?);
                let annotator = Annotator::start(&client, inbox.clone())?;
                log::info!(node = node.as_str(); "asking the API server at {}", client.server());
                let recorder = EventRecorder::start(&client, node)?;
                let remedies = Remedies::start(&client, inbox.clone())?;
                let cluster = Cluster::start(&client, node, inbox.clone())?;
                let node = node.clone();
                Ok((Source::Cluster { client, node, cluster, annotator, recorder, remedies }, Published::new()))
            }
            PodSource::Directory(path) => {
                let published = read_published(&options.site.run_dir.published()).unwrap_or_else(|e| {
                    log::error!("what an earlier run published is not known: {e}");
                    Default::default()
                });
                let publisher = state_file::start(&options.site.run_dir, published.clone())?;
                Ok((Source::Directory(Directory::start(path, inbox.clone())?, publisher), published))
            }
        }
    }

    /// Looks a pod up and answers with [`super::event::Notice::LookedUp`].
    pub fn look_up(&self, name: PodName) {
        match self {
            Source::Cluster { cluster, .. } => cluster.look_up(name),
            Source::Directory(directory, _) => directory.look_up(name),
        }
    }

    /// Tells people what is wrong with a pod, where there is a place for that; never blocks.
    pub fn announce(&self, pod_event: PodEvent) {
        if let Source::Cluster { recorder, .. } = self {
            recorder.announce(pod_event);
        }
    }

    /// Changes a broken pod, and answers with [`Event::Remedied`]; never blocks.
    pub fn remedy(&self, order: Order) {
        if let Source::Cluster { remedies, .. } = self {
            remedies.push(order);
        }
    }

    /// Starts to find out whether our stop is an upgrade; `None` where nobody can tell.
    pub fn check_for_upgrade(&self, namespace: &str) -> Option<JoinHandle<Verdict>> {
        let Source::Cluster { client, node, .. } = self else { return None };
        let (client, node, namespace) = (client.sibling(), node.clone(), namespace.to_owned());
        let checking = thread::spawn("upgrade-check", move || upgrade_check::run(&client, &namespace, &node));
        checking.inspect_err(|e| log::error!("{e}")).ok()
    }

    /// Writes what a pod is published as; never blocks.
    pub fn publish(&self, change: Change) {
        match self {
            Source::Cluster { annotator, .. } => annotator.publish(change),
            Source::Directory(_, publisher) => publisher.tell(change),
        }
    }
}
