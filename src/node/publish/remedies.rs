//! What race repair does about pods through the API server: they are deleted, or labelled.
//!
//! One thread, off the path of everything else. It tries each thing once: what becomes of a pod that could not be
//! changed is decided by whoever ordered it, who is told.

use crate::error::{Error, Kind, Result};
use crate::kube::api::PodPatch;
use crate::kube::client::{Client, Patience};
use crate::node::event::Event;
use crate::repair::order::{End, Order};
use crate::sys::thread;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

const ASK: Patience = Patience::once(Duration::from_secs(10));

/// The running thread; it ends after this value is dropped.
#[derive(Debug)]
pub struct Remedies {
    orders: Sender<Order>,
    client: Client,
}

impl Remedies {
    /// Starts it; what comes of orders goes to `inbox`.
    pub fn start(client: &Client, inbox: Sender<Event>) -> Result<Self> {
        let (orders, receiver) = channel::<Order>();
        let client = client.sibling();
        let ours = client.clone();
        thread::spawn("repair", move || {
            for order in receiver {
                let end = carry_out(&ours, &order);
                if inbox.send(Event::Remedied(order.uid().to_owned(), end)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Remedies { orders, client })
    }

    /// Takes it; never blocks. There is at most one for each broken pod.
    pub fn push(&self, order: Order) {
        // The thread ends only after this value.
        let _ = self.orders.send(order);
    }
}

impl Drop for Remedies {
    fn drop(&mut self) {
        self.client.close();
    }
}

fn carry_out(client: &Client, order: &Order) -> End {
    let done = match order {
        Order::Delete { uid, pod, version } => client.delete_pod(pod, uid, version, ASK),
        Order::Label { uid, pod, key, value } => {
            let patch = PodPatch { labels: &[(key, Some(value))], ..PodPatch::default() };
            client.patch_pod(pod, Some(uid), patch, ASK)
        }
        Order::Repair(_) => Err(Error::new("the API server redirects nothing")),
    };
    match done {
        Ok(()) => End::Done,
        Err(e) if matches!(e.kind(), Kind::Conflict | Kind::NotFound) => End::Outdated,
        Err(e) => End::Failed(e.to_string()),
    }
}
