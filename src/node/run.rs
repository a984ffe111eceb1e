//! Starting, running and stopping the agent.

use super::event::{Action, Event, Stop};
use super::execute::{Context as Workspace, Workers};
use super::publish::state_file;
use super::publish::writer::Writer;
use super::records::Records;
use super::source::Source;
use super::state::{Config, State};
use super::upgrade_check::Verdict;
use super::watchdog::{Heartbeat, Watchdog};
use super::{Options, PodSource, endpoints, removal};
use crate::cni::outside::Outside;
use crate::error::{Context, Result};
use crate::install::{self, Keeper};
use crate::logging::Repeat;
use crate::metrics;
use crate::sys::file::{self, Lock, Mode};
use crate::sys::run_dir::RunDir;
use crate::sys::{clock, random, thread};
use crate::zds::server::{self as zds, Server};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pause between tries to get what another agent still has, or what the kernel refuses.
const RETRY: Duration = Duration::from_millis(200);
/// Time between looks whether the ZDS socket is still ours.
const LOOK: Duration = Duration::from_secs(1);
/// The longest that a step of the main loop may take.
const STUCK: Duration = Duration::from_secs(15);
/// Time for the hello and each acknowledgement of a ztunnel.
const ZTUNNEL: Duration = Duration::from_secs(5);

/// Runs the agent until SIGTERM or SIGINT, or until another agent takes its place.
pub fn run(options: Options) -> Result<()> {
    thread::share_heaps();
    file::create_dir_all(options.site.run_dir.path(), Mode(0o755))?;
    let (inbox, events) = channel();
    watch_signals(&inbox)?;
    let watchdog = Watchdog::new();
    endpoints::ports::health(options.health_port, watchdog.clone(), inbox.clone())?;
    endpoints::ports::monitoring(options.monitoring_port, inbox.clone())?;
    // Served from the very start, with 503 until the stores are filled.
    let plugin_events = endpoints::plugin_events(&options.site.run_dir, options.site.host_root.clone(), inbox.clone())?;
    let plugin_logs = endpoints::plugin_logs(&options.site.run_dir)?;
    let Some(lock) = wait_for_lock(&options.site.run_dir, &inbox, &events)? else { return Ok(()) };

    let mut agent = Agent::start(&options, &watchdog, &inbox)?;
    let keeper = keep_installed(&options, &inbox)?;
    log::info!("the agent serves {}", options.site.run_dir);
    let taken_over = agent.serve(&events, keeper);

    // In this order: nobody can ask any more, nobody is told any more, then what is on the node.
    drop((plugin_events, plugin_logs));
    let (workspace, verdict) = (Arc::clone(&agent.workspace), agent.verdict.take());
    drop(agent);
    match decide(options.disable_safe_upgrade, taken_over, verdict) {
        Verdict::Stays(why) => log::info!("what was installed stays: {why}"),
        Verdict::Goes(why) => {
            log::info!("what was installed is removed: {why}");
            report(install::uninstall(&options.install, install::Run::Real));
            report(removal::host_side(&workspace, install::Run::Real));
        }
    }
    drop(lock);
    log::info!("stopped");
    Ok(())
}

fn watch_signals(inbox: &Sender<Event>) -> Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("handle SIGTERM and SIGINT")?;
    let inbox = inbox.clone();
    thread::spawn("signals", move || {
        for signal in signals.forever() {
            let name = if signal == SIGTERM { "SIGTERM" } else { "SIGINT" };
            if inbox.send(Event::Stop(Stop::Signal(name))).is_err() {
                return;
            }
        }
    })
    .map(drop)
}

/// Two agents may run for a moment during an update; the one with the lock works. Until it is ours, requests are
/// answered with "starting"; `None` when we are told to stop meanwhile.
fn wait_for_lock(run_dir: &RunDir, inbox: &Sender<Event>, events: &Receiver<Event>) -> Result<Option<Lock>> {
    let path = run_dir.lock();
    let (mut said, mut conditions) = (false, Vec::new());
    loop {
        if let Some(lock) = Lock::try_take(&path)? {
            for condition in conditions {
                let _ = inbox.send(condition);
            }
            return Ok(Some(lock));
        }
        if !std::mem::replace(&mut said, true) {
            log::info!("another agent still holds {}; waiting for it to leave", path.display());
        }
        let until = clock::now() + RETRY;
        while let Some(left) = until.checked_duration_since(clock::now()) {
            match events.recv_timeout(left) {
                Ok(Event::Stop(why)) => {
                    log::info!("stopping: {why}");
                    return Ok(None);
                }
                Ok(condition @ Event::Condition(..)) => conditions.push(condition),
                // A request: it is answered with "starting" because nobody keeps its channel.
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }
}

fn keep_installed(options: &Options, inbox: &Sender<Event>) -> Result<Keeper> {
    let inbox = inbox.clone();
    let _ = inbox.send(Event::Condition("installation", Some("it has not been looked at yet".to_owned())));
    Keeper::start(options.install.clone(), move |notice| match notice {
        install::Notice::Readiness(missing) => {
            metrics::INSTALL_READY.set([], i64::from(missing.is_empty()));
            let problem = (!missing.is_empty()).then(|| missing.join("; "));
            let _ = inbox.send(Event::Condition("installation", problem));
        }
        install::Notice::Installed(outcome) => metrics::INSTALLS.inc([outcome.label()]),
        install::Notice::Conflict => metrics::CONF_FIGHTS.inc([]),
    })
}

fn decide(always_remove: bool, taken_over: bool, verdict: Option<JoinHandle<Verdict>>) -> Verdict {
    if taken_over {
        return Verdict::Stays("another agent works here now".to_owned());
    }
    if always_remove {
        return Verdict::Goes("--ambient-disable-safe-upgrade".to_owned());
    }
    let told = verdict.and_then(|thread| thread.join().ok());
    told.unwrap_or_else(|| Verdict::Stays("there is nobody to ask whether a successor comes".to_owned()))
}

fn report(removal: install::Removal) {
    for step in removal.steps {
        log::info!("{step}");
    }
    for failure in removal.failures {
        log::error!("removal: {failure}");
    }
}

/// The state and everything that carries out its actions.
struct Agent {
    state: State,
    workers: Workers,
    source: Source,
    outside: Writer<Option<Outside>>,
    workspace: Arc<Workspace>,
    heartbeat: Heartbeat,
    own_namespace: String,
    /// Whether the stop is an upgrade is being found out.
    verdict: Option<JoinHandle<Verdict>>,
    ztunnels: Option<Server>,
    zds: zds::Options,
    ambient: bool,
    inbox: Sender<Event>,
    /// When the ZDS socket is looked after again.
    look: Instant,
    trouble: Repeat,
}

impl Agent {
    fn start(options: &Options, watchdog: &Watchdog, inbox: &Sender<Event>) -> Result<Self> {
        let records = Records::new(&options.site.run_dir)?;
        let earlier = records.recall()?;
        let ambient = options.policy.ambient_enabled;
        if ambient && options.policy.selectors.is_empty() {
            log::warn!(
                "no pod will be in the ambient mesh: --ambient-enabled is set, and no --ambient-enablement-selector"
            );
        }
        let workspace = Arc::new(Workspace::at(&options.site, records)?);
        let config = Config {
            policy: options.policy.clone(),
            settings: options.settings,
            host: workspace.host.id(),
            host_side: ambient,
            verify_interval: options.verify_interval,
            reconcile_on_startup: options.reconcile_on_startup,
            source: match &options.source {
                PodSource::Kubernetes { .. } => "the API server".to_owned(),
                PodSource::Directory(path) => format!("the directory {}", path.display()),
            },
            cluster: matches!(options.source, PodSource::Kubernetes { .. }),
            repair: options.repair.clone().filter(|_| matches!(options.source, PodSource::Kubernetes { .. })),
            native_nftables: options.site.native_nftables,
            ztunnel_socket: options.ztunnel_socket.display().to_string(),
        };
        let workers = Workers::start(&workspace, watchdog, inbox)?;
        let (source, published) = Source::start(options, inbox)?;
        let usual = config.settings.usual();
        let state = State::new(config, earlier, published, Box::new(random::fraction), clock::now());
        let warm = Arc::clone(&workspace);
        thread::spawn("warm-up", move || {
            if let Err(e) = warm.warm_up(&usual) {
                log::warn!("no pod can be enrolled yet: {e}");
            }
        })?;
        Ok(Agent {
            state,
            workers,
            source,
            outside: state_file::start_outside(&options.site.run_dir)?,
            workspace,
            heartbeat: watchdog.watch("the main loop", STUCK),
            own_namespace: options.own_namespace.clone(),
            verdict: None,
            ztunnels: None,
            zds: zds::Options { socket: options.ztunnel_socket.clone(), timeout: ZTUNNEL },
            ambient,
            inbox: inbox.clone(),
            look: clock::now(),
            trouble: Repeat::once(),
        })
    }

    /// Runs until there is nothing left to finish; whether another agent has taken our place. Nothing is installed any
    /// more once a stop has begun: what somebody removes meanwhile must not come back.
    fn serve(&mut self, events: &Receiver<Event>, keeper: Keeper) -> bool {
        let mut keeper = Some(keeper);
        let mut taken_over = false;
        loop {
            self.look_around();
            let due = self.state.deadline().map_or(self.look, |deadline| deadline.min(self.look));
            let event = match events.recv_timeout(due.saturating_duration_since(clock::now())) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => Event::Tick,
                Err(RecvTimeoutError::Disconnected) => return taken_over,
            };
            self.heartbeat.begin();
            if matches!(event, Event::Stop(_)) {
                drop(keeper.take());
            }
            if matches!(event, Event::Stop(Stop::Signal(_))) && self.verdict.is_none() {
                // While what runs is finished.
                self.verdict = self.source.check_for_upgrade(&self.own_namespace);
            }
            taken_over |= matches!(event, Event::Stop(Stop::TakenOver(_)));
            if let Event::Done(id, _) = event {
                self.workers.ended(id);
            }
            for action in self.state.step(event, clock::now()) {
                if matches!(action, Action::Exit) {
                    return taken_over;
                }
                self.perform(action);
            }
            self.workers.renew();
            self.heartbeat.end();
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Work(id, work) => self.workers.push(id, work),
            Action::LookUp(name) => self.source.look_up(name),
            Action::Publish(uid, name, redirection) => self.source.publish((uid, name, redirection)),
            Action::Outside(outside) => self.outside.tell(outside),
            Action::Announce(pod_event) => self.source.announce(pod_event),
            Action::Remedy(order) => self.source.remedy(order),
            Action::Snapshot(connection, items) => {
                if let Some(server) = &self.ztunnels {
                    server.snapshot(connection, items);
                }
            }
            Action::Send(connection, request) => {
                if let Some(server) = &self.ztunnels {
                    server.send(connection, request);
                }
            }
            // Whoever asked may be gone.
            Action::Reply(to, answer) => drop(to.channel.send(answer)),
            Action::Exit => {}
        }
    }

    /// What is done now and then: shows how many pods there are, serves the ZDS socket, and notices when somebody else does.
    fn look_around(&mut self) {
        if clock::now() < self.look {
            return;
        }
        self.look = clock::now() + LOOK;
        for (state, count) in self.state.enrolments() {
            metrics::ENROLMENTS.set([state], count);
        }
        if !self.ambient {
            return;
        }
        match &self.ztunnels {
            Some(server) if server.still_ours() => {}
            Some(_) if self.zds.socket.exists() => {
                let _ = self.inbox.send(Event::Stop(Stop::TakenOver(self.zds.socket.clone())));
            }
            _ => {
                self.ztunnels = None;
                let inbox = self.inbox.clone();
                let served = Server::start(self.zds.clone(), move |notice| {
                    let _ = inbox.send(Event::Ztunnel(notice));
                });
                let problem = served.as_ref().err().map(ToString::to_string);
                if let Some(e) = &problem
                    && self.trouble.failed(e, clock::now()).is_some()
                {
                    log::error!("ztunnel cannot be served; trying again: {e}");
                }
                self.ztunnels = served.ok();
                let _ = self.inbox.send(Event::Condition("ztunnel socket", problem));
            }
        }
    }
}
