//! Metrics: what is counted, and the Prometheus text of it (text exposition format 0.0.4).
//!
//! Every metric is a static below, counted up where the thing happens and rendered on request. Label values come from
//! small closed sets, never from a pod's name, so the number of series is bounded.

use crate::sys::sync;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

/// Installer passes by result (`SUCCESS`, `COPY_BINARIES_FAILURE`, `CREATE_KUBECONFIG_FAILURE`,
/// `CREATE_CNI_CONFIG_FAILURE`).
pub(crate) static INSTALLS: Counter<1> =
    Counter::new("istio_cni_installs_total", "Installations of the CNI plugin by result.", ["result"]);
/// 1 while plugin, configuration and kubeconfig are right, else 0.
pub(crate) static INSTALL_READY: Gauge<0> =
    Gauge::new("istio_cni_install_ready", "Whether the CNI plugin is installed and configured.", []);
/// Repairs of race-broken sidecar pods by type (`delete`, `label`, `repair`) and result (`success`, `skip`, `fail`).
pub(crate) static REPAIRS: Counter<2> = Counter::new(
    "istio_cni_repair_pods_repaired_total",
    "Pods that started without redirection, by what was done and how it went.",
    ["type", "result"],
);
/// Pod events handled, by type (`add`, `update`, `delete`).
pub(crate) static RECONCILE_EVENTS: Counter<1> =
    Counter::new("nodeagent_reconcile_events_total", "Pod events handled by type.", ["type"]);
/// Connections of ztunnels that have said hello.
pub(crate) static ZTUNNEL_CONNECTED: Gauge<0> = Gauge::new("ztunnel_connected", "Connected ztunnels.", []);
/// Requests of CNI plugins by the HTTP status they were answered with.
pub(crate) static PLUGIN_REQUESTS: Counter<1> =
    Counter::new("istio_cni_plugin_requests_total", "Requests of CNI plugins by response code.", ["response_code"]);
/// Enrolments by state (`pending`, `enrolled`, `lost`).
pub(crate) static ENROLMENTS: Gauge<1> = Gauge::new("ferrule_enrolments", "Pods in the mesh by state.", ["state"]);
/// Seconds an enrolment took, by step (`rules`, `ztunnel`, `total`).
pub(crate) static ENROLMENT_SECONDS: Histogram<1> =
    Histogram::new("ferrule_enrolment_seconds", "Duration of enrolments by step.", ["step"]);
/// What verification found wrong and put right, by kind: `rules`, `routes` (with policy rules), `netns` (replaced),
/// `ztunnel` (it had to be told again of a pod it had acknowledged), `host`.
pub(crate) static VERIFICATION_REPAIRS: Counter<1> =
    Counter::new("ferrule_verification_repairs_total", "Differences found and repaired by kind.", ["kind"]);
/// Watches of the Kubernetes API that had to list again, by resource.
pub(crate) static WATCH_RESTARTS: Counter<1> =
    Counter::new("ferrule_watch_restarts_total", "Watches that started over with a list, by resource.", ["resource"]);
/// Seconds a request to the Kubernetes API took, by verb.
pub(crate) static API_REQUEST_SECONDS: Histogram<1> =
    Histogram::new("ferrule_api_request_seconds", "Duration of requests to the Kubernetes API by verb.", ["verb"]);
/// Times another writer was found to undo the CNI configuration again and again.
pub(crate) static CONF_FIGHTS: Counter<0> =
    Counter::new("ferrule_conf_fights_total", "Conflicts over the CNI configuration with another writer.", []);

/// Seconds until a certificate expires, by resource (`default`); negative once it has.
pub(crate) static CERT_EXPIRY: Countdown<1> = Countdown(Family::new(
    "istio_agent_cert_expiry_seconds",
    "Seconds until the certificate expires, by resource.",
    ["resource_name"],
));
/// Times that certificates in files could not be used.
pub(crate) static FILE_SECRET_FAILURES: Counter<0> = Counter::new(
    "istio_agent_num_file_secret_failures_total",
    "Times that certificates in files could not be used.",
    [],
);
/// Requests for a workload's certificate begun, by type (`csr`).
pub(crate) static CSR_REQUESTS: Counter<1> =
    Counter::new("istio_agent_num_outgoing_requests", "Certificate requests begun, by type.", ["request_type"]);
/// Requests for a workload's certificate that failed, all attempts of one included, by type (`csr`).
pub(crate) static CSR_FAILURES: Counter<1> = Counter::new(
    "istio_agent_num_failed_outgoing_requests",
    "Certificate requests that failed, by type.",
    ["request_type"],
);
/// Attempts after the first of a request, by type (`csr`).
pub(crate) static CSR_RETRIES: Counter<1> = Counter::new(
    "istio_agent_num_outgoing_retries",
    "Attempts after the first of a certificate request, by type.",
    ["request_type"],
);
/// Milliseconds that requests took, pauses included, by type (`csr`).
pub(crate) static CSR_LATENCY: Counter<1> = Counter::new(
    "istio_agent_outgoing_latency",
    "Milliseconds that certificate requests took, by type.",
    ["request_type"],
);

static ALL: [&dyn Metric; 18] = [
    &INSTALLS,
    &INSTALL_READY,
    &REPAIRS,
    &RECONCILE_EVENTS,
    &ZTUNNEL_CONNECTED,
    &PLUGIN_REQUESTS,
    &ENROLMENTS,
    &ENROLMENT_SECONDS,
    &VERIFICATION_REPAIRS,
    &WATCH_RESTARTS,
    &API_REQUEST_SECONDS,
    &CONF_FIGHTS,
    &CERT_EXPIRY,
    &FILE_SECRET_FAILURES,
    &CSR_REQUESTS,
    &CSR_FAILURES,
    &CSR_RETRIES,
    &CSR_LATENCY,
];

/// Everything as Prometheus text, with the process's own numbers as they are now.
pub fn render() -> String {
    let mut out = String::new();
    for metric in ALL {
        metric.render(&mut out);
    }
    let build = Gauge::new("ferrule_build_info", "Version of the running executable.", ["version"]);
    build.set([env!("CARGO_PKG_VERSION")], 1);
    build.render(&mut out);
    if let Some(process) = Process::read() {
        process.render(&mut out);
    }
    out
}

trait Metric: Sync {
    fn render(&self, out: &mut String);
}

/// Name, help, and a value for each combination of label values.
struct Family<T, const N: usize> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; N],
    series: Mutex<BTreeMap<[String; N], T>>,
}

impl<T: Default, const N: usize> Family<T, N> {
    const fn new(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Family { name, help, labels, series: Mutex::new(BTreeMap::new()) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<[String; N], T>> {
        sync::lock(&self.series)
    }

    fn update(&self, values: [&str; N], f: impl FnOnce(&mut T)) {
        f(self.lock().entry(values.map(str::to_owned)).or_default());
    }

    /// The head, and then a line for each series. Without labels there is always one.
    fn render(&self, kind: &str, out: &mut String, line: impl Fn(&mut String, &[(&str, &str)], &T)) {
        let _ = writeln!(out, "# HELP {0} {1}\n# TYPE {0} {kind}", self.name, self.help);
        if N == 0 {
            self.update([""; N], |_| {});
        }
        for (values, value) in &*self.lock() {
            let pairs: Vec<_> = self.labels.into_iter().zip(values.iter().map(String::as_str)).collect();
            line(out, &pairs, value);
        }
    }
}

fn sample(out: &mut String, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
    out.push_str(name);
    for (i, (label, text)) in labels.iter().enumerate() {
        let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(out, "{}{label}=\"{text}\"", if i == 0 { '{' } else { ',' });
    }
    let _ = writeln!(out, "{} {value}", if labels.is_empty() { "" } else { "}" });
}

/// Counts up.
pub(crate) struct Counter<const N: usize>(Family<u64, N>);

impl<const N: usize> Counter<N> {
    const fn new(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Counter(Family::new(name, help, labels))
    }

    /// One more of the series with these label values.
    pub(crate) fn inc(&self, values: [&str; N]) {
        self.add(values, 1);
    }

    /// Several more of the series with these label values.
    pub(crate) fn add(&self, values: [&str; N], more: u64) {
        self.0.update(values, |count| *count += more);
    }
}

impl<const N: usize> Metric for Counter<N> {
    fn render(&self, out: &mut String) {
        self.0.render("counter", out, |out, labels, value| sample(out, self.0.name, labels, value));
    }
}

/// What is now.
pub(crate) struct Gauge<const N: usize>(Family<i64, N>);

impl<const N: usize> Gauge<N> {
    const fn new(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Gauge(Family::new(name, help, labels))
    }

    /// Sets the series with these label values.
    pub fn set(&self, values: [&str; N], value: i64) {
        self.0.update(values, |now| *now = value);
    }
}

impl<const N: usize> Metric for Gauge<N> {
    fn render(&self, out: &mut String) {
        self.0.render("gauge", out, |out, labels, value| sample(out, self.0.name, labels, value));
    }
}

/// How long it is until some time; computed when it is rendered.
pub(crate) struct Countdown<const N: usize>(Family<i64, N>);

impl<const N: usize> Countdown<N> {
    /// Sets the time of the series with these label values.
    pub(crate) fn set(&self, values: [&str; N], time: SystemTime) {
        self.0.update(values, |seconds| *seconds = since_1970(time));
    }
}

impl<const N: usize> Metric for Countdown<N> {
    fn render(&self, out: &mut String) {
        let now = since_1970(crate::sys::clock::wall());
        self.0.render("gauge", out, |out, labels, time| sample(out, self.0.name, labels, time - now));
    }
}

fn since_1970(time: SystemTime) -> i64 {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    time.duration_since(SystemTime::UNIX_EPOCH).map_or_else(|before| -seconds(before.duration()), seconds)
}

/// Upper bounds of the buckets, seconds: from a netlink dump to the longest time-out.
const BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

#[derive(Default)]
struct Durations {
    /// How many fell into each bucket and into none of those before it.
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

/// How long things took.
pub(crate) struct Histogram<const N: usize>(Family<Durations, N>);

impl<const N: usize> Histogram<N> {
    const fn new(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Histogram(Family::new(name, help, labels))
    }

    /// One more, that took this long.
    pub fn observe(&self, values: [&str; N], took: Duration) {
        let seconds = took.as_secs_f64();
        self.0.update(values, |durations| {
            durations.count += 1;
            durations.sum += seconds;
            if let Some(at) = BUCKETS.iter().position(|bound| seconds <= *bound) {
                durations.buckets[at] += 1;
            }
        });
    }
}

impl<const N: usize> Metric for Histogram<N> {
    fn render(&self, out: &mut String) {
        let name = self.0.name;
        self.0.render("histogram", out, |out, labels, durations| {
            let mut below = 0;
            let bucket = |out: &mut String, bound: &str, count: u64| {
                sample(out, &format!("{name}_bucket"), &[labels, &[("le", bound)]].concat(), count);
            };
            for (bound, count) in BUCKETS.iter().zip(durations.buckets) {
                below += count;
                bucket(out, &bound.to_string(), below);
            }
            bucket(out, "+Inf", durations.count);
            sample(out, &format!("{name}_sum"), labels, durations.sum);
            sample(out, &format!("{name}_count"), labels, durations.count);
        });
    }
}

/// What the kernel says of this process.
#[derive(Debug, PartialEq)]
struct Process {
    cpu_seconds: f64,
    threads: u64,
    resident_bytes: u64,
    open_fds: Option<usize>,
}

impl Process {
    fn read() -> Option<Self> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).ok();
        let process = Self::parse(&read("stat")?, &read("status")?)?;
        Some(Process { open_fds: crate::sys::fd::count_open().ok(), ..process })
    }

    /// Reads /proc/PID/stat and /proc/PID/status (proc_pid_stat(5), proc_pid_status(5)).
    fn parse(stat: &str, status: &str) -> Option<Self> {
        /// The unit of `utime` and `stime`, which every Linux has that this is built for (`USER_HZ`).
        const TICKS_PER_SECOND: f64 = 100.0;
        // The name in parentheses may itself have parentheses and blanks. What follows begins with field 3.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(14 - 3);
        let mut ticks = || fields.next()?.parse::<u64>().ok();
        let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        let number = |key: &str| line(key)?.split_ascii_whitespace().next()?.parse::<u64>().ok();
        Some(Process {
            cpu_seconds: (ticks()? + ticks()?) as f64 / TICKS_PER_SECOND,
            threads: number("Threads")?,
            // "kB" there means 1024 bytes.
            resident_bytes: number("VmRSS")? * 1024,
            open_fds: None,
        })
    }

    /// Under the names that Prometheus client libraries use.
    fn render(&self, out: &mut String) {
        let mut one = |name: &str, kind: &str, help: &str, value: &dyn std::fmt::Display| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        };
        one("process_cpu_seconds_total", "counter", "Processor time used, seconds.", &self.cpu_seconds);
        one("process_resident_memory_bytes", "gauge", "Resident memory, bytes.", &self.resident_bytes);
        one("process_threads", "gauge", "Threads.", &self.threads);
        if let Some(open_fds) = self.open_fds {
            one("process_open_fds", "gauge", "Open file descriptors.", &open_fds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(metric: &dyn Metric, expected: &str) {
        let mut out = String::new();
        metric.render(&mut out);
        assert_eq!(out, expected);
    }

    #[test]
    fn counters_and_gauges_render() {
        let counter = Counter::new("c_total", "Help.", ["a", "b"]);
        check(&counter, "# HELP c_total Help.\n# TYPE c_total counter\n");
        counter.inc(["x", "1"]);
        counter.inc(["x", "1"]);
        counter.inc(["q\"\\\n", ""]);
        check(
            &counter,
            "# HELP c_total Help.\n# TYPE c_total counter\nc_total{a=\"q\\\"\\\\\\n\",b=\"\"} 1\nc_total{a=\"x\",b=\"1\"} 2\n",
        );
        let gauge = Gauge::new("g", "Help.", []);
        check(&gauge, "# HELP g Help.\n# TYPE g gauge\ng 0\n");
        gauge.set([], -1);
        check(&gauge, "# HELP g Help.\n# TYPE g gauge\ng -1\n");
    }

    #[test]
    fn histograms_are_cumulative() {
        let histogram = Histogram::new("h", "Help.", ["step"]);
        for milliseconds in [1, 2, 2, 60_000] {
            histogram.observe(["s"], Duration::from_millis(milliseconds));
        }
        let mut out = String::new();
        histogram.render(&mut out);
        let value = |name: &str| out.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned();
        assert_eq!(value("h_bucket{step=\"s\",le=\"0.001\"} "), "1");
        assert_eq!(value("h_bucket{step=\"s\",le=\"0.0025\"} "), "3");
        assert_eq!(value("h_bucket{step=\"s\",le=\"30\"} "), "3");
        assert_eq!(value("h_bucket{step=\"s\",le=\"+Inf\"} "), "4");
        assert_eq!(value("h_count{step=\"s\"} "), "4");
        assert_eq!(value("h_sum{step=\"s\"} "), "60.005");
    }

    #[test]
    fn the_process_is_read() {
        let stat = "1 (a) b (c) S 0 1 1 0 -1 4194560 1 1 1 1 150 50 0 0 20 0 7 0 1 1000 25 184467";
        let status = "Name:\tx\nVmRSS:\t    100 kB\nThreads:\t7\n";
        let expected = Process { cpu_seconds: 2.0, threads: 7, resident_bytes: 102_400, open_fds: None };
        assert_eq!(Process::parse(stat, status), Some(expected));
        for end in 0..stat.len() {
            let _ = Process::parse(&stat[..end], status);
        }
        for end in 0..status.len() {
            let _ = Process::parse(stat, &status[..end]);
        }
        let text = render();
        assert!(text.contains("\nprocess_open_fds ") && text.contains("\nistio_cni_install_ready 0\n"), "{text}");
    }

    #[test]
    fn names_are_unique() {
        let text = render();
        let names: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!((unique.len(), names.len()), (names.len(), ALL.len() + 5));
    }
}
