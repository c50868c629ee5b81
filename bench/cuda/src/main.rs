//! What the kernels for NVIDIA GPUs reach, beside copies of the same bytes in the same run.
//!
//! ```text
//! arguments   what is measured, how often, where the report goes
//! place       a GPU, or the CPU that stands in for one: memory, copies, and how long work takes there
//! workloads   their memory, a check of what they answer, and their lanes
//! rounds      a round of one lane, a round of the next, again and again
//! report      the rounds as JSON, and their medians as tables
//! ```
//!
//! Nothing is measured before its answer was looked at. Without a GPU every workload is named as skipped, and that is no failure.

mod arguments;
mod check;
mod numbers;
mod pages;
mod place;
mod report;
mod rounds;
mod sizes;
#[path = "../../peers/src/statistics.rs"]
mod statistics;
mod workloads;

use std::error::Error;
use std::process::ExitCode;

use arguments::Arguments;
use place::Place;
use report::Report;
use sizes::Sizes;

/// What a measurement can fail with.
type Result<T> = std::result::Result<T, Box<dyn Error>>;

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
    let wanted = workloads::ALL.iter().filter(|workload| workload.id.starts_with(&arguments.only));
    let mut report = Report::new(arguments.rounds);
    match Place::open(arguments.is_emulated) {
        Err(reason) => {
            println!("SKIPPED: {reason}");
            wanted.for_each(|workload| report.skip(workload.id, &reason));
        }
        Ok(place) => {
            let sizes = if arguments.is_emulated { Sizes::SMALL } else { Sizes::FULL };
            report.machine = Some(place.machine());
            for workload in wanted {
                match workload.measure(&place, &sizes, arguments.rounds) {
                    Ok(measured) => {
                        println!("{}", report::table(&measured));
                        report.workloads.push(measured);
                    }
                    Err(error) => {
                        eprintln!("FAILED: {}: {error}", workload.id);
                        report.fail(workload.id, error.as_ref());
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
