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
use serde_json::json;
use sizes::Sizes;
use workloads::Bench;

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

/// Measures, and writes every round where `npm run bench:cuda` reads it. False where a workload has failed; the others have run all the same.
fn run(arguments: &Arguments) -> Result<bool> {
    let rounds = arguments.rounds;
    let wanted = workloads::ALL.iter().filter(|(id, _)| id.starts_with(&arguments.only));
    let (mut machine, mut measured, mut skipped, mut failed) = (None, vec![], vec![], vec![]);
    match Place::open(arguments.is_emulated) {
        Err(reason) => {
            println!("SKIPPED: {reason}");
            skipped.extend(wanted.map(|(id, _)| json!({ "id": id, "skipped": reason })));
        }
        Ok(place) => {
            let sizes = if arguments.is_emulated { Sizes::SMALL } else { Sizes::FULL };
            machine = Some(place.machine());
            for (id, measure) in wanted {
                match measure(&Bench { place: &place, sizes: &sizes, rounds }) {
                    Ok((title, lanes)) => {
                        lanes.iter().for_each(|lane| println!("{id}: {}: {:.3} us", lane.name, middle(lane) / 1000.0));
                        measured.push(json!({ "id": id, "title": title, "lanes": lanes }));
                    }
                    Err(error) => {
                        eprintln!("FAILED: {id}: {error}");
                        failed.push(json!({ "id": id, "error": error.to_string() }));
                    }
                }
            }
        }
    }
    let report = json!({
        "suite": "cuda", "rounds": rounds, "machine": machine, "workloads": measured, "skipped": skipped, "failed": failed,
    });
    if let Some(out) = &arguments.out {
        std::fs::write(out, report.to_string()).map_err(|error| format!("{}: {error}", out.display()))?;
    }
    Ok(failed.is_empty())
}

fn middle(lane: &Measured) -> f64 {
    let mut sorted = lane.nanoseconds.clone();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
