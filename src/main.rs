//! The one front door: what is this process to be, what was it told, and what is its exit code.
//!
//! Only this file reads the environment and writes to standard output. A plugin run does nothing before it is known to
//! be one.

use ferrule::cli::columns::Colour;
use ferrule::cli::page::Request;
use ferrule::cli::{self, Personality, agent, doctor, explain, iptables, rules, status, uninstall, wait};
use ferrule::cni::plugin::{self, Environment};
use ferrule::config::option::{Remark, Variables};
use ferrule::config::{self, Config};
use ferrule::dataplane::counters;
use ferrule::error::{Context, Result};
use ferrule::install;
use ferrule::logging;
use ferrule::node::removal;
use ferrule::pod::object::{self, Objects};
use ferrule::sys::clock;
use ferrule::sys::file::{self, Lock};
use ferrule::sys::netns::Netns;
use ferrule::sys::run_dir::RunDir;
use nix::unistd::geteuid;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Largest file with a pod that is read, bytes: more than the API server accepts for an object.
const POD_FILE_LIMIT: usize = 16 << 20;

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    run(&argv).unwrap_or_else(|error| {
        let refused = matches!(error.errno(), Some(libc::EACCES | libc::EPERM));
        let remedy = if refused && !geteuid().is_root() { "; run ferrule as root" } else { "" };
        say(format_args!("ferrule: {error}{remedy}"));
        ExitCode::from(error.kind().exit_code())
    })
}

fn run(argv: &[OsString]) -> Result<ExitCode> {
    let (personality, args) = cli::personality(argv, variable("CNI_COMMAND").is_some_and(|value| !value.is_empty()))?;
    match personality {
        Personality::Plugin if args.first().is_some_and(|arg| arg == "--help") => {
            done(print(&cli::plugin::page().usage()))
        }
        Personality::Plugin => Ok(plugin()),
        Personality::Agent => answer(agent::parse(args, &variables())?, agent),
        Personality::Status => answer(status::parse(args, &variables())?, status),
        Personality::Explain => answer(explain::parse(args, &variables())?, explain),
        Personality::Doctor => answer(doctor::parse(args, &variables())?, doctor),
        Personality::Rules => answer(rules::parse(args, &variables())?, rules),
        Personality::Iptables => answer(iptables::parse(args, &variables())?, iptables),
        Personality::Wait => answer(wait::parse(args, &variables())?, |wait| done(wait.run())),
        Personality::Uninstall => answer(uninstall::parse(args, &variables())?, uninstall),
        Personality::Completion => answer(cli::completion(args)?, |text| done(print(&text))),
        Personality::Man => answer(cli::man(args)?, |text| done(print(&text))),
        Personality::Version => answer(cli::version(args)?, |text| done(print(&text))),
        Personality::Help => answer(cli::help(args)?, |text| done(print(&text))),
    }
}

/// Prints the usage text if that was asked for, else runs the command.
fn answer<T>(request: Request<T>, run: impl FnOnce(T) -> Result<ExitCode>) -> Result<ExitCode> {
    match request {
        Request::Help(text) => done(print(&text)),
        Request::Run(command) => run(command),
    }
}

/// The exit code of a command that can only fail by an error.
fn done(result: Result<()>) -> Result<ExitCode> {
    result.map(|()| ExitCode::SUCCESS)
}

/// Answers one call of a container runtime; the error JSON, if any, is the plugin's own affair.
fn plugin() -> ExitCode {
    let environment = Environment::from_variables(variable);
    plugin::answer_panics(&environment);
    ExitCode::from(plugin::run(
        &environment,
        cli::plugin::DOORS,
        &mut std::io::stdin().lock(),
        &mut std::io::stdout().lock(),
    ))
}

fn agent((config, remarks): (Config, Vec<Remark>)) -> Result<ExitCode> {
    logging::start(config.logging())?;
    logging::tell(&remarks);
    done(ferrule::node::run(config.agent()?))
}

fn rules(rules: rules::Rules) -> Result<ExitCode> {
    let answer = match rules.subject() {
        rules::Subject::Counters(path) => {
            let netns = path.as_ref().map_or_else(Netns::own, |path| Netns::open(path))?;
            return done(print(&counters::read(&netns, None)?));
        }
        rules::Subject::Host => rules.of_host()?,
        rules::Subject::PodFile(path) => rules.of_pod(&objects(path)?).with_context(|| path.display().to_string())?,
    };
    for warning in answer.warnings {
        say(format_args!("ferrule: warning: {warning}"));
    }
    done(print(&answer.text))
}

fn objects(path: &Path) -> Result<Objects> {
    let bytes = file::read_limited(path, POD_FILE_LIMIT)?;
    let about = || path.display().to_string();
    object::decode(&String::from_utf8(bytes).with_context(about)?).with_context(about)
}

fn explain(explain: explain::Explain) -> Result<ExitCode> {
    done(print(&match explain.subject() {
        explain::Subject::Pod(pod) => explain.of_pod(pod, colour())?,
        explain::Subject::PodFile(path) => {
            explain.of_objects(&objects(path)?, colour()).with_context(|| path.display().to_string())?
        }
    }))
}

/// Exit code 1 says that something is not as it should be.
fn status(status: status::Status) -> Result<ExitCode> {
    if status.watch {
        return watch(&status);
    }
    let look = status.look(colour())?;
    print(&look.text)?;
    Ok(if look.well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Exit code 1 says that a check failed.
fn doctor(doctor: doctor::Doctor) -> Result<ExitCode> {
    let report = doctor.examine()?;
    print(&doctor.text(&report, colour()))?;
    Ok(if report.is_healthy() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shows the status again and again: on a terminal in place, else whenever it changes. Ends with the reader.
fn watch(status: &status::Status) -> Result<ExitCode> {
    /// Between two looks.
    const PAUSE: Duration = Duration::from_secs(1);
    /// To the upper left corner, and nothing below (ECMA-48).
    const CLEAR: &str = "\x1b[H\x1b[2J";
    let terminal = std::io::stdout().is_terminal() && !status.json;
    let mut last = None;
    loop {
        let (text, essence) = match status.look(colour()) {
            Ok(look) => (look.text, Ok(look.essence)),
            Err(error) if status.json => (String::new(), Err(error.to_string())),
            Err(error) => (format!("{error}\n"), Err(error.to_string())),
        };
        if terminal || last.as_ref() != Some(&essence) {
            let text = if terminal { format!("{CLEAR}{text}") } else { text };
            if let Printed::NobodyReads = try_print(&text)? {
                return Ok(ExitCode::SUCCESS);
            }
        }
        last = Some(essence);
        clock::sleep(PAUSE);
    }
}

/// Colours are for terminals, and for people who want them (no-color.org).
fn colour() -> Colour {
    let refused = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    if std::io::stdout().is_terminal() && !refused { Colour::On } else { Colour::Off }
}

/// Exit code 126 says that validation failed, and is what repair looks for.
fn iptables((options, remarks): (config::iptables::Options, Vec<Remark>)) -> Result<ExitCode> {
    const NOT_REDIRECTED: u8 = 126;
    logging::start(options.logging.clone())?;
    logging::tell(&remarks);
    print(&iptables::program(&options)?)?;
    Ok(match iptables::validate(&options)? {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            say(format_args!("ferrule: {reason}"));
            ExitCode::from(NOT_REDIRECTED)
        }
    })
}

/// Prints what was done; exit code 1 if something was left undone.
fn uninstall(request: uninstall::Uninstall) -> Result<ExitCode> {
    install::directory::expect(&request.installed)?;
    let _lock = no_agent(&request.site.run_dir)?;
    let mut removal = install::uninstall(&request.installed, request.run);
    let of_filter = removal::remove(&request.site, request.pods, request.run);
    removal.steps.extend(of_filter.steps);
    removal.failures.extend(of_filter.failures);
    let steps = removal.steps.iter().map(|step| format!("{step}\n")).collect::<String>();
    let nothing = removal.steps.is_empty() && removal.failures.is_empty();
    print(if nothing { "nothing of ours is installed\n" } else { &steps })?;
    for failure in &removal.failures {
        say(format_args!("ferrule: {failure}"));
    }
    Ok(if removal.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A running agent would put everything back at once.
fn no_agent(run_dir: &RunDir) -> Result<Option<Lock>> {
    if !run_dir.path().is_dir() {
        return Ok(None);
    }
    let lock = Lock::try_take(&run_dir.lock())?;
    let running = || format!("an agent is running (it holds {}); stop it first", run_dir.lock().display());
    lock.map(Some).with_context(running)
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
fn variables() -> Variables {
    std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .collect()
}

/// What became of a text for standard output.
enum Printed {
    All,
    /// A reader that has seen enough (`| head`).
    NobodyReads,
}

/// Writes to standard output; it is no error when nobody reads any more.
fn print(text: &str) -> Result<()> {
    try_print(text).map(drop)
}

fn try_print(text: &str) -> Result<Printed> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(Printed::NobodyReads),
        written => written.context("write to standard output").map(|()| Printed::All),
    }
}

/// Writes a line to standard error, if anyone listens.
fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
