//! What the kernels for NVIDIA GPUs reach, beside copies of the same bytes in the same run.
//!
//! ```text
//! arguments   what is measured, how often, where the report goes
//! place       a GPU, or the CPU that stands in for one: memory, copies, and how long work takes there
//! workloads   their memory, a check of what they answer, and their lanes, which bench/harness runs in turn
//! ```
//!
//! Nothing is measured before its answer was looked at. Without a GPU every workload is named as skipped, and that is no failure.

mod arguments;
mod check;
mod numbers;
mod pages;
mod place;
mod sizes;
mod workloads;

use std::process::ExitCode;

use arguments::Arguments;
use kvtide_bench::{Measured, Result};
use place::Place;
use serde::Serialize;
use sizes::Sizes;
use workloads::Bench;

/// What a run has measured: every round, which `npm run bench:cuda` reads.
#[derive(Serialize)]
struct Report {
    suite: &'static str,
    rounds: usize,
    /// Nothing where there was no device.
    machine: Option<Machine>,
    workloads: Vec<Workload>,
    skipped: Vec<Skipped>,
    failed: Vec<Failed>,
}

#[derive(Serialize)]
struct Machine {
    device: String,
    details: Vec<String>,
}

#[derive(Serialize)]
struct Workload {
    id: &'static str,
    title: String,
    lanes: Vec<Measured>,
}

#[derive(Serialize)]
struct Skipped {
    id: &'static str,
    skipped: String,
}

#[derive(Serialize)]
struct Failed {
    id: &'static str,
    error: String,
}

fn main() -> ExitCode {
    match Arguments::read(std::env::args().skip(1)).map_err(Into::into).and_then(|arguments| run(&arguments)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("kvtide-bench-cuda: {error}");
            ExitCode::FAILURE
        }
    }
}

/// False where a workload has failed; the others have run all the same.
fn run(arguments: &Arguments) -> Result<bool> {
    let rounds = arguments.rounds;
    let wanted = workloads::ALL.iter().filter(|(id, _)| id.starts_with(&arguments.only));
    let mut report =
        Report { suite: "cuda", rounds, machine: None, workloads: vec![], skipped: vec![], failed: vec![] };
    match Place::open(arguments.is_emulated) {
        Err(reason) => {
            println!("SKIPPED: {reason}");
            report.skipped.extend(wanted.map(|&(id, _)| Skipped { id, skipped: reason.clone() }));
        }
        Ok(place) => {
            let sizes = if arguments.is_emulated { Sizes::SMALL } else { Sizes::FULL };
            report.machine = Some(place.machine());
            for &(id, measure) in wanted {
                match measure(&Bench { place: &place, sizes: &sizes, rounds }) {
                    Ok((title, lanes)) => {
                        lanes.iter().for_each(|lane| println!("{id}: {}: {:.3} us", lane.name, middle(lane) / 1000.0));
                        report.workloads.push(Workload { id, title, lanes });
                    }
                    Err(error) => {
                        eprintln!("FAILED: {id}: {error}");
                        report.failed.push(Failed { id, error: error.to_string() });
                    }
                }
            }
        }
    }
    if let Some(out) = &arguments.out {
        std::fs::write(out, serde_json::to_string(&report)?).map_err(|error| format!("{}: {error}", out.display()))?;
    }
    Ok(report.failed.is_empty())
}

fn middle(lane: &Measured) -> f64 {
    let mut sorted = lane.nanoseconds.clone();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
