//! Runs the same work on kvtide, on what someone would otherwise take, and on bare memory, in one process and in turn.
//!
//! ```sh
//! cargo run --release -- [--only <start of an id>] [--rounds <n>] [--out <file>] [--list]
//! ```
//!
//! Prints a table, and writes the same numbers as JSON to `--out`. Each workload runs in a child process, with `--measure`, so
//! that none is served from memory that another one left. `--paged-step` is for the TypeScript suite.
#![deny(unsafe_code)]

mod allocation;
mod bare;
mod claim;
mod harness;
mod large;
mod machine;
mod memory;
mod multiply_add;
mod paged_step;
mod statistics;
mod sum;
mod table;
mod tokens;
mod waiting;
mod workloads;

use std::process::{Command, Stdio};

use serde::Serialize;

use crate::harness::Result;
use crate::machine::Machine;
use crate::workloads::{ALL, Outcome, Workload};

/// What is written as JSON.
#[derive(Serialize)]
struct Report {
    suite: &'static str,
    rounds: usize,
    machine: Machine,
    workloads: Vec<Outcome>,
}

/// What the command line asks for.
#[derive(Debug, PartialEq)]
struct Wanted {
    only: String,
    rounds: usize,
    out: Option<String>,
    list: bool,
    /// The workload to measure in this very process, its outcome to be printed as JSON.
    measure: Option<String>,
    /// Steps of a round, each round to be asked for by a line.
    paged_step: Option<u32>,
}

impl Wanted {
    fn read(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut wanted =
            Wanted { only: String::new(), rounds: 31, out: None, list: false, measure: None, paged_step: None };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--only" => wanted.only = value()?,
                "--rounds" => wanted.rounds = value()?.parse::<std::num::NonZeroUsize>()?.get(),
                "--out" => wanted.out = Some(value()?),
                "--measure" => wanted.measure = Some(value()?),
                "--paged-step" => wanted.paged_step = Some(value()?.parse()?),
                "--list" => wanted.list = true,
                _ => return Err(format!("unknown argument {arg}").into()),
            }
        }
        Ok(wanted)
    }
}

/// Measures a workload in a process of its own.
fn measure_apart(workload: &Workload, rounds: usize) -> Result<Outcome> {
    let (variable, value) = workload.memory.environment();
    let child = Command::new(std::env::current_exe()?)
        .args(["--measure", workload.id, "--rounds", &rounds.to_string()])
        .env(variable, value)
        // Lanes work on one thread, unless they say otherwise.
        .env("RAYON_NUM_THREADS", "1")
        .env("KVTIDE_THREADS", "1")
        .stderr(Stdio::inherit())
        .output()?;
    if !child.status.success() {
        return Err(format!("{}: {}", workload.id, child.status).into());
    }
    Ok(serde_json::from_slice(&child.stdout)?)
}

fn main() -> Result<()> {
    let wanted = Wanted::read(std::env::args().skip(1))?;
    if let Some(id) = wanted.measure {
        let workload =
            ALL.iter().find(|workload| workload.id == id).ok_or_else(|| format!("no workload is called {id}"))?;
        println!("{}", serde_json::to_string(&workload.measure(wanted.rounds)?)?);
        return Ok(());
    }
    if let Some(steps) = wanted.paged_step {
        return paged_step::serve(steps, std::io::stdin().lock(), std::io::stdout().lock());
    }
    let chosen = ALL.iter().filter(|workload| workload.id.starts_with(&wanted.only));
    if wanted.list {
        chosen.for_each(|workload| println!("{}", workload.id));
        return Ok(());
    }
    let mut report = Report { suite: "peers", rounds: wanted.rounds, machine: Machine::here(), workloads: Vec::new() };
    for workload in chosen {
        let outcome = measure_apart(workload, wanted.rounds)?;
        print!("{}", table::table(&outcome));
        report.workloads.push(outcome);
    }
    if let Some(out) = wanted.out {
        std::fs::write(out, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Wanted> {
        Wanted::read(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_command_line_is_read() {
        let wanted = read("--only rotating --rounds 3 --out file").unwrap();
        assert_eq!((wanted.only.as_str(), wanted.rounds, wanted.out.as_deref()), ("rotating", 3, Some("file")));
        for wrong in ["--rounds", "--rounds 0", "--rounds many", "--faster"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_two_workloads_share_an_id() {
        let ids: std::collections::BTreeSet<&str> = ALL.iter().map(|workload| workload.id).collect();
        assert_eq!(ids.len(), ALL.len());
    }
}
