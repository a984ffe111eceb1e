//! The ztunnel stand-in as a program, with what else a demonstration needs and a bare machine may not have: a server
//! and a client for the pods, and the CNI side of a container runtime.
#![expect(clippy::disallowed_methods, clippy::print_stdout, clippy::print_stderr, reason = "a tool for tests")]

#[path = "mod.rs"]
mod standin;

mod runtime;

use lexopt::{Arg, Parser, ValueExt as _};
use standin::{Options, Standin};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

const USAGE: &str = "\
ztunnel-standin --socket PATH [--stats FILE] [--dns] [--fault WHEN=WHAT]...
    Serves the pods it is handed over the ZDS socket PATH until killed. FILE is replaced whenever something changed:
    `ztunnel connected 1`, `NAMESPACE/POD outbound CONNECTIONS BYTES` (inbound, hbone), `NAMESPACE/POD dns QUERIES`.
    WHEN: uid:UID, nth:N, all. WHAT: no-ack, late-ack:MS, nack:TEXT, close, stall, garbage, oversized, descriptor,
    two-acks.
ztunnel-standin --serve ADDRESS:PORT
    Tells every client the address it came from.
ztunnel-standin --get ADDRESS:PORT
    Prints what such a server says; fails after 3 s.
ztunnel-standin --cni ADD|DEL --conf-dir DIR --bin-dir DIR --cache FILE --netns PATH --pod NAMESPACE/NAME --uid UID
    Calls the plugins of the first configuration list in DIR as a container runtime does, and prints the result.";

/// How often the stats are looked at for a change.
const STATS_INTERVAL: Duration = Duration::from_millis(20);

const GET_TIMEOUT: Duration = Duration::from_secs(3);

fn main() {
    if let Err(e) = run() {
        eprintln!("ztunnel-standin: {e}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = Options::default();
    let mut stats = None;
    let mut call = runtime::Call::default();
    let mut args = Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("serve") => return serve(args.value()?.parse()?),
            Arg::Long("get") => return get(args.value()?.parse()?),
            Arg::Long("socket") => options.socket = args.value()?.into(),
            Arg::Long("stats") => stats = Some(PathBuf::from(args.value()?)),
            Arg::Long("dns") => options.dns = true,
            Arg::Long("fault") => options.faults.push(standin::parse_fault(&args.value()?.string()?)?),
            Arg::Long("cni") => call.verb = args.value()?.string()?,
            Arg::Long("conf-dir") => call.conf_dir = args.value()?.into(),
            Arg::Long("bin-dir") => call.bin_dir = args.value()?.into(),
            Arg::Long("cache") => call.cache = args.value()?.into(),
            Arg::Long("netns") => call.netns = args.value()?.into(),
            Arg::Long("pod") => call.pod = args.value()?.string()?,
            Arg::Long("uid") => call.uid = args.value()?.string()?,
            Arg::Long("help") => {
                println!("{USAGE}");
                return Ok(());
            }
            other => return Err(format!("{}\n{USAGE}", other.unexpected()).into()),
        }
    }
    if !call.verb.is_empty() {
        println!("{}", call.run()?);
        return Ok(());
    }
    let standin = Standin::start(options);
    let mut shown = String::new();
    loop {
        let lines = standin.stats().lines();
        if let Some(file) = stats.as_ref().filter(|_| lines != shown) {
            let new = file.with_extension("new");
            std::fs::write(&new, &lines)?;
            std::fs::rename(&new, file)?;
            shown = lines;
        }
        std::thread::sleep(STATS_INTERVAL);
    }
}

fn serve(address: SocketAddr) -> Result<(), Box<dyn std::error::Error>> {
    for client in TcpListener::bind(address)?.incoming() {
        let mut client = client?;
        let _ = writeln!(client, "hello {}", client.peer_addr()?.ip());
    }
    Ok(())
}

fn get(address: SocketAddr) -> Result<(), Box<dyn std::error::Error>> {
    let mut server = TcpStream::connect_timeout(&address, GET_TIMEOUT)?;
    server.set_read_timeout(Some(GET_TIMEOUT))?;
    let mut answer = String::new();
    server.read_to_string(&mut answer)?;
    if answer.is_empty() {
        return Err("no answer".into());
    }
    print!("{answer}");
    Ok(())
}
