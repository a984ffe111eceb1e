//! The verbs of the plugin (CNI specification 1.1): one run answers one call of a container runtime.
//!
//! Standard output carries the result or the error and nothing else. DEL always succeeds: nothing may block a pod's
//! teardown. An ADD succeeds only when it is known that the pod is as it should be.

use super::ask::{self, Reply, Request};
use super::conf::{NetConf, PodArgs};
use super::event::{AddEvent, AttachmentEvent, Failure, Health, code, ips_of_result};
pub use super::fallback::Doors;
use super::fallback::{self, Opinion, Undecided};
use super::version::{self, Version};
use super::{is_agent_pod, log, result};
use crate::error::Kind;
use crate::http::client::Response;
use crate::sys::clock;
use crate::sys::netns::Netns;
use ::log::{LevelFilter, debug, error, info, warn};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

/// From the start of an ADD to the agent's answer. The runtimes' own deadlines begin at 30 s for the whole call.
const ADD_TIME: Duration = Duration::from_secs(28);
/// How long an ADD waits for an agent that cannot be reached: long enough for a restart, short enough for the kubelet's
/// own retry (11 to 15 s) to see the reason soon.
const UNREACHABLE_PATIENCE: Duration = Duration::from_secs(10);
/// After this long without the agent the API server is asked: a pod outside the mesh need not wait for it.
const ALONE: Duration = Duration::from_secs(1);
/// How long an ADD waits for an agent that is starting.
const STARTING_PATIENCE: Duration = Duration::from_secs(25);
/// How long an ADD goes on asking whoever may know of the pod, where the configuration says so.
const DETECTION_PATIENCE: Duration = Duration::from_secs(20);
/// Between two tries, doubling.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A pod's teardown does not wait longer for the agent.
const DEL_TIME: Duration = Duration::from_secs(1);
/// CHECK, GC.
const CHECK_TIME: Duration = Duration::from_secs(5);
/// STATUS comes every 5 s.
const STATUS_TIME: Duration = Duration::from_secs(2);
/// Longest standard input, bytes. prevResult of a pod with very many routes is far below.
const MAX_STDIN: u64 = 16 << 20;

/// The variables of the CNI protocol; absent ones are empty.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `CNI_COMMAND`; `None` when a person runs the plugin by hand.
    pub command: Option<String>,
    /// `CNI_CONTAINERID`: the sandbox.
    pub container_id: String,
    /// `CNI_NETNS`: path of the namespace file on the host.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub interface: String,
    /// `CNI_ARGS`.
    pub args: String,
}

impl Environment {
    /// Fills it by a look-up of variables.
    pub fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> Self {
        let get = |name| get(name).map(|value| value.to_string_lossy().into_owned());
        Environment {
            command: get("CNI_COMMAND").filter(|command| !command.is_empty()),
            container_id: get("CNI_CONTAINERID").unwrap_or_default(),
            netns: get("CNI_NETNS").unwrap_or_default(),
            interface: get("CNI_IFNAME").unwrap_or_default(),
            args: get("CNI_ARGS").unwrap_or_default(),
        }
    }
}

/// Answers one call; returns the exit code of the process.
pub fn run(environment: &Environment, doors: Doors, stdin: &mut impl Read, stdout: &mut impl Write) -> u8 {
    let Some(command) = environment.command.as_deref() else {
        let about = format!("Ferrule CNI plugin {}\n{}\n", env!("CARGO_PKG_VERSION"), protocol_line());
        let _ = std::io::stderr().write_all(about.as_bytes());
        return 0;
    };
    log::start(LevelFilter::Info, None);
    let mut version = Version::NEWEST;
    let (output, exit) = match answer(command, environment, doors, stdin, &mut version) {
        Ok(output) => (output, 0),
        Err(failure) if command == "DEL" => {
            warn!(code = failure.code; "DEL is answered with success all the same: {} {}", failure.message, failure.details);
            (String::new(), 0)
        }
        Err(failure) => {
            error!(code = failure.code; "{command} failed: {} {}", failure.message, failure.details);
            (error_json(version, &failure), 1)
        }
    };
    let written = stdout.write_all(output.as_bytes()).and_then(|()| stdout.flush());
    // The runtime waits for the end of this process: what is still to be delivered has little time.
    log::hand_over();
    if written.is_err() && command != "DEL" { 1 } else { exit }
}

/// Makes a panic of this process an answer too: a runtime shows a riddle for anything but JSON, and a DEL that fails
/// keeps the pod for ever. For main, before [`run`].
pub fn answer_panics(environment: &Environment) {
    let command = environment.command.clone().unwrap_or_default();
    std::panic::set_hook(Box::new(move |panic| {
        let _ = writeln!(std::io::stderr(), "{panic}");
        if command == "DEL" {
            std::process::exit(0);
        }
        let failure =
            Failure { details: panic.to_string(), ..Failure::new(code::IO, "the plugin failed: this is a defect") };
        let _ = std::io::stdout().write_all(error_json(Version::NEWEST, &failure).as_bytes());
        std::process::exit(1);
    }));
}

/// `CNI protocol versions supported: …`, as a person who runs the plugin by hand expects it.
fn protocol_line() -> String {
    format!("CNI protocol versions supported: {}", version::supported())
}

fn error_json(version: Version, failure: &Failure) -> String {
    json!({
        "cniVersion": version.as_str(),
        "code": failure.code,
        "msg": failure.message,
        "details": failure.details,
    })
    .to_string()
}

/// What goes to standard output. `version` becomes that of the configuration as soon as it is known.
fn answer(
    command: &str,
    environment: &Environment,
    doors: Doors,
    stdin: &mut impl Read,
    version: &mut Version,
) -> Result<String, Failure> {
    let verb = match command {
        // Needs nothing: podman passes "dummy" in every variable.
        "VERSION" => {
            let supported = Version::ALL.map(Version::as_str);
            return Ok(json!({"cniVersion": Version::NEWEST.as_str(), "supportedVersions": supported}).to_string());
        }
        "ADD" => Verb::Add,
        "DEL" => Verb::Del,
        "CHECK" => Verb::Check,
        "GC" => Verb::Gc,
        "STATUS" => Verb::Status,
        other => {
            return Err(Failure::new(
                code::INVALID_ENVIRONMENT,
                format_args!("CNI_COMMAND is {other:?}; known are ADD, DEL, CHECK, GC, STATUS and VERSION"),
            ));
        }
    };
    if matches!(verb, Verb::Add | Verb::Check) {
        environment.require_attachment()?;
    }
    let conf = NetConf::parse(&read_stdin(stdin)?)?;
    *version = conf.version;
    let call = Call { environment, doors, pod: PodArgs::parse(&environment.args), conf: &conf };
    log::start(conf.log_level, (!call.is_own_pod()).then_some(&conf.run_dir));
    match verb {
        Verb::Add => call.add(),
        Verb::Del => call.del().map(|()| String::new()),
        Verb::Check => {
            call.require_version(Version::V0_4_0, "CHECK").and_then(|()| call.check()).map(|()| String::new())
        }
        Verb::Gc => call.require_version(Version::V1_1_0, "GC").and_then(|()| call.gc()).map(|()| String::new()),
        Verb::Status => {
            call.require_version(Version::V1_1_0, "STATUS").and_then(|()| call.status()).map(|()| String::new())
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Add,
    Del,
    Check,
    Gc,
    Status,
}

impl Environment {
    /// Fails naming the variables that ADD and CHECK cannot do without.
    fn require_attachment(&self) -> Result<(), Failure> {
        let needed =
            [("CNI_CONTAINERID", &self.container_id), ("CNI_NETNS", &self.netns), ("CNI_IFNAME", &self.interface)];
        let missing: Vec<&str> = needed.iter().filter(|(_, value)| value.is_empty()).map(|(name, _)| *name).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Failure::new(
            code::INVALID_ENVIRONMENT,
            format_args!("required environment variables are missing: {}", missing.join(", ")),
        ))
    }
}

fn read_stdin(stdin: &mut impl Read) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    stdin.take(MAX_STDIN + 1).read_to_end(&mut bytes).map_err(|e| {
        Failure::new(code::IO, format_args!("the network configuration cannot be read from standard input: {e}"))
    })?;
    if bytes.len() as u64 > MAX_STDIN {
        return Err(Failure::new(
            code::DECODE,
            format_args!("the network configuration on standard input is longer than {MAX_STDIN} bytes"),
        ));
    }
    Ok(bytes)
}

/// One call with everything that was passed along.
struct Call<'a> {
    environment: &'a Environment,
    doors: Doors,
    pod: PodArgs,
    conf: &'a NetConf,
}

impl Call<'_> {
    fn require_version(&self, oldest: Version, verb: &str) -> Result<(), Failure> {
        if self.conf.version >= oldest {
            return Ok(());
        }
        Err(Failure::new(
            code::INCOMPATIBLE_VERSION,
            format_args!("{verb} needs cniVersion {oldest} or newer, the configuration has {}", self.conf.version),
        ))
    }

    /// The agent's own pod: a node must be able to start it from nothing.
    fn is_own_pod(&self) -> bool {
        is_agent_pod(&self.pod.name) && !self.pod.namespace.is_empty() && self.pod.namespace == self.conf.pod_namespace
    }

    /// Why nothing is to be done for this pod, whatever the agent thinks.
    fn nothing_to_do(&self) -> Option<&'static str> {
        if self.pod.name.is_empty() {
            Some("not a pod: CNI_ARGS has no K8S_POD_NAME")
        } else if self.conf.exclude_namespaces.contains(&self.pod.namespace) {
            Some("its namespace is excluded")
        } else if self.is_own_pod() {
            Some("the agent's own pod")
        } else {
            None
        }
    }

    fn attachment(&self) -> AttachmentEvent {
        AttachmentEvent {
            pod_name: self.pod.name.clone(),
            pod_namespace: self.pod.namespace.clone(),
            pod_uid: self.pod.uid.clone(),
            container_id: self.environment.container_id.clone(),
            interface: self.environment.interface.clone(),
            netns: self.environment.netns.clone(),
        }
    }

    /// `namespace/name` for log lines.
    fn pod_name(&self) -> String {
        format!("{}/{}", self.pod.namespace, self.pod.name)
    }

    fn add(&self) -> Result<String, Failure> {
        // First, so that a result that cannot be expressed fails before anything is done.
        let result = result::express(self.conf.prev_result.as_deref(), self.conf.version)?;
        if let Some(why) = self.nothing_to_do() {
            debug!(pod = self.pod_name(); "ADD passes through: {why}");
            return Ok(result);
        }
        let netns = Netns::open(Path::new(&self.environment.netns)).map_err(|e| {
            let code = match e.kind() {
                Kind::NotFound | Kind::Invalid => code::INVALID_ENVIRONMENT,
                _ => code::IO,
            };
            Failure::new(code, format_args!("the pod's network namespace (CNI_NETNS) cannot be opened: {e}"))
        })?;
        // The runtime starts us in the host's; the agent may be where it cannot tell.
        if Netns::own().is_ok_and(|own| own.id() == netns.id()) {
            let path = &self.environment.netns;
            let message = format_args!("{path} (CNI_NETNS) is the network namespace of the host, not of a pod");
            return Err(Failure::new(code::INVALID_ENVIRONMENT, message));
        }
        self.enrol(&netns)?;
        Ok(result)
    }

    /// Has the agent decide about the pod and do what is to do.
    fn enrol(&self, netns: &Netns) -> Result<(), Failure> {
        let prev: Option<Value> = self.conf.prev_result.as_ref().and_then(|raw| serde_json::from_str(raw.get()).ok());
        let attachment = self.attachment();
        let event = AddEvent {
            netns: attachment.netns,
            pod_name: attachment.pod_name,
            pod_namespace: attachment.pod_namespace,
            ips: ips_of_result(prev.as_ref()),
            pod_uid: attachment.pod_uid,
            container_id: attachment.container_id,
            interface: attachment.interface,
            decide: true,
        };
        let request = Request::post("/cmdadd", &event).map_err(|e| Failure::new(code::IO, e))?;
        let socket = self.conf.run_dir.plugin_events();
        let start = clock::now();
        let mut pause = FIRST_PAUSE;
        let mut opinion = None;
        loop {
            let (undecided, patience) = match ask::ask(&socket, &request, Some(netns.as_fd()), start + ADD_TIME) {
                Err(e) => (Undecided::Unreachable(e), UNREACHABLE_PATIENCE),
                Ok(response) => match Reply::read(&response) {
                    Reply::Done(answer) => {
                        info!(pod = self.pod_name(), action = answer.action.word(); "ADD done: {}", answer.reason);
                        return Ok(());
                    }
                    Reply::Refused(failure) => return Err(failure),
                    Reply::Starting => (Undecided::Starting(ask::words(&response)), STARTING_PATIENCE),
                    Reply::Foreign => {
                        let words = ask::words(&response);
                        (Undecided::Foreign { status: response.status, words }, Duration::ZERO)
                    }
                },
            };
            let unknown = matches!(opinion, None | Some(Opinion::Unknown(_)));
            let insists = self.conf.enable_ambient_detection_retry && unknown;
            let patience = if insists { patience.max(DETECTION_PATIENCE) } else { patience };
            let over = clock::now() - start + pause > patience;
            if (opinion.is_none() || insists) && (over || clock::now() - start > ALONE) {
                let mut formed = fallback::opinion(self.conf, &self.pod, self.doors.api);
                debug!(pod = self.pod_name(); "without the agent: {formed:?}");
                if fallback::redirect(&mut formed, netns, &event.addresses(), self.conf, self.doors.redirect)? {
                    info!(pod = self.pod_name(); "ADD without the node agent: redirected to its sidecar");
                    return Ok(());
                }
                opinion = Some(formed);
            }
            if let Some(opinion) = &opinion
                && (over || matches!(opinion, Opinion::Outside(_)))
            {
                fallback::decide(&socket, &undecided, opinion)?;
                info!(pod = self.pod_name(); "ADD without the node agent: {opinion:?}");
                return Ok(());
            }
            debug!(pod = self.pod_name(); "ADD asks again: {undecided:?}");
            clock::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Tells the agent, so that it can let go early. It finds out by itself as well.
    fn del(&self) -> Result<(), Failure> {
        if self.nothing_to_do().is_none() {
            match self.tell("/cmddel", &self.attachment(), None, DEL_TIME) {
                Ok(response) => {
                    debug!(pod = self.pod_name(), status = response.status; "DEL told the agent")
                }
                Err(e) => debug!(pod = self.pod_name(); "DEL without the agent: {e}"),
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        if self.nothing_to_do().is_some() {
            return Ok(());
        }
        // The agent may not see the path. It says what it thinks of a namespace that is not there.
        let netns = Netns::open(Path::new(&self.environment.netns)).ok();
        match self.tell("/cmdcheck", &self.attachment(), netns.as_ref(), CHECK_TIME) {
            Ok(response) if response.status == 200 => Ok(()),
            // Only our agent knows this question, and only once it has started.
            Ok(response) if response.status != 503 => ask::failure(&response).map_or(Ok(()), Err),
            Ok(_) => Ok(()),
            Err(e) => {
                debug!(pod = self.pod_name(); "CHECK without the agent: {e}");
                Ok(())
            }
        }
    }

    fn gc(&self) -> Result<(), Failure> {
        let event = self.conf.valid_attachments()?;
        match self.tell("/gc", &event, None, CHECK_TIME) {
            Ok(response) if response.status == 200 => {}
            Ok(response) => {
                warn!(status = response.status; "GC: the agent did not take the list: {}", ask::words(&response));
            }
            Err(e) => warn!("GC without the agent, which finds by itself what is gone: {e}"),
        }
        Ok(())
    }

    fn status(&self) -> Result<(), Failure> {
        if !self.conf.status_gate {
            return Ok(());
        }
        let socket = self.conf.run_dir.plugin_events();
        let response = ask::ask(&socket, &Request::get("/status"), None, clock::now() + STATUS_TIME)
            .map_err(|e| Failure::new(code::NOT_AVAILABLE, fallback::not_ready(&socket, &ask::cause(&e))))?;
        let health: Health = serde_json::from_slice(&response.body)
            .map_err(|_| Failure::new(code::NOT_AVAILABLE, fallback::not_ready(&socket, &ask::words(&response))))?;
        let mut reasons = health.reasons;
        if health.ready && self.conf.ambient_enabled && health.ztunnels.is_empty() {
            reasons.push("no ztunnel is connected".to_owned());
        } else if health.ready {
            return Ok(());
        }
        Err(Failure {
            details: reasons.join("; "),
            ..Failure::new(
                code::NOT_AVAILABLE,
                format_args!("pods cannot join the mesh: {}", reasons.first().map_or("node agent not ready", |r| r)),
            )
        })
    }

    fn tell(
        &self,
        path: &str,
        event: &impl serde::Serialize,
        netns: Option<&Netns>,
        time: Duration,
    ) -> crate::error::Result<Response> {
        let request = Request::post(path, event)?;
        ask::ask(&self.conf.run_dir.plugin_events(), &request, netns.map(AsFd::as_fd), clock::now() + time)
    }
}
