//! The measurements as a program; `scripts/bench` starts it.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a tool for tests"
)]

#[path = "../apiserver/mod.rs"]
mod apiserver;

#[path = "mod.rs"]
mod bench;

#[path = "../standin/mod.rs"]
mod standin;

use lexopt::{Arg, Parser, ValueExt as _};

const USAGE: &str = "\
bench --ferrule PATH [--quick] [--only plugin|rules|add|memory|cluster|size]
    Measures the executable PATH and prints a table: what, how much, the goal, and whether it is met.
    --quick: a few runs only, to see that everything can be measured.
    --only: one part of it.";

fn main() {
    match options() {
        Ok(options) => print!("{}", bench::table(&bench::run(&options))),
        Err(e) => {
            eprintln!("bench: {e}\n{USAGE}");
            std::process::exit(2);
        }
    }
}

fn options() -> Result<bench::Options, lexopt::Error> {
    let mut options = bench::Options { ferrule: "target/release/ferrule".into(), quick: false, only: None };
    let mut args = Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("ferrule") => options.ferrule = args.value()?.into(),
            Arg::Long("quick") => options.quick = true,
            Arg::Long("only") => options.only = Some(args.value()?.string()?),
            other => return Err(other.unexpected()),
        }
    }
    Ok(options)
}
