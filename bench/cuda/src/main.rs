//! Measures the kernels for NVIDIA GPUs, next to copies of the same bytes in the same run.
//!
//! ```text
//! place       a GPU, or the CPU that emulates one: memory, copies, and times
//! workloads   their memory, a check of their results, and their lanes, which bench/harness runs in turn
//! ```
//!
//! Each result is checked before it is measured. Without a GPU every workload is reported as skipped, which isn't a
//! failure.

mod check;
mod numbers;
mod pages;
mod place;
mod sizes;
mod workloads;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use kvtide_bench::{Measured, Result};
use place::Place;
use serde_json::json;
use sizes::Sizes;
use typed_arena::Arena;
use workloads::Bench;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("kvtide-bench-cuda: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures all workloads, and writes every round for `npm run bench:cuda`. Returns false if a workload failed; the
/// others have still run.
fn run() -> Result<bool> {
    let mut given = pico_args::Arguments::from_env();
    let is_emulated = given.contains("--emulated");
    let only: String = given.opt_value_from_str("--only")?.unwrap_or_default();
    let rounds = given.opt_value_from_str::<_, NonZeroUsize>("--rounds")?.map_or(11, NonZeroUsize::get);
    let out: Option<PathBuf> = given.opt_value_from_str("--out")?;
    if let Some(unknown) = given.finish().first() {
        return Err(format!("{}: expected --only, --rounds, --out or --emulated", unknown.display()).into());
    }
    let wanted = workloads::ALL.iter().filter(|(id, _)| id.starts_with(&only));
    let (mut machine, mut measured, mut skipped, mut failed) = (None, vec![], vec![], vec![]);
    match Place::open(is_emulated) {
        Err(reason) => {
            println!("SKIPPED: {reason}");
            skipped.extend(wanted.map(|(id, _)| json!({ "id": id, "skipped": reason })));
        }
        Ok(place) => {
            let sizes = if is_emulated { Sizes::SMALL } else { Sizes::FULL };
            machine = Some(place.machine());
            for (id, measure) in wanted {
                match measure(&Bench { place: &place, sizes: &sizes, rounds, memory: &Arena::new() }) {
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
    if let Some(out) = &out {
        std::fs::write(out, report.to_string()).map_err(|error| format!("{}: {error}", out.display()))?;
    }
    Ok(failed.is_empty())
}

fn middle(lane: &Measured) -> f64 {
    let mut sorted = lane.nanoseconds.clone();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
