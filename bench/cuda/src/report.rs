//! What a run has measured: every round as JSON, which `npm run bench:cuda` reads, and medians as tables.

use std::error::Error;

use serde::Serialize;

use crate::rounds::{Measured, Role};
use crate::statistics::Spread;

/// A run.
#[derive(Debug, Serialize)]
pub struct Report {
    suite: &'static str,
    rounds: usize,
    /// Nothing where there was no device.
    pub machine: Option<Machine>,
    /// What was measured.
    pub workloads: Vec<Workload>,
    skipped: Vec<Skipped>,
    /// What went wrong.
    pub failed: Vec<Failed>,
}

/// A device.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Its name.
    pub device: String,
    /// What else is known of it.
    pub details: Vec<String>,
}

/// A workload's lanes.
#[derive(Debug, Serialize)]
pub struct Workload {
    /// What `--only` names.
    pub id: &'static str,
    /// What it does, with its sizes.
    pub title: String,
    /// Each with its rounds.
    pub lanes: Vec<Measured>,
}

/// A workload that could not run, and why.
#[derive(Debug, Serialize)]
struct Skipped {
    id: &'static str,
    skipped: String,
}

/// A workload that went wrong.
#[derive(Debug, Serialize)]
pub struct Failed {
    id: &'static str,
    error: String,
}

impl Report {
    /// Of nothing yet.
    pub fn new(rounds: usize) -> Self {
        Report { suite: "cuda", rounds, machine: None, workloads: Vec::new(), skipped: Vec::new(), failed: Vec::new() }
    }

    /// Notes what could not run.
    pub fn skip(&mut self, id: &'static str, reason: &str) {
        self.skipped.push(Skipped { id, skipped: reason.to_owned() });
    }

    /// Notes what went wrong.
    pub fn fail(&mut self, id: &'static str, error: &dyn Error) {
        self.failed.push(Failed { id, error: error.to_string() });
    }
}

/// Three digits, or all of a whole number.
fn digits(value: f64) -> String {
    let decimals = if value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.decimals$}")
}

/// Rates of a lane: GB/s, or TFLOP/s.
fn rate(lane: &Measured, nanoseconds: f64) -> String {
    match (lane.bytes, lane.flops) {
        (_, Some(flops)) => format!("{} TFLOP/s", digits(flops / nanoseconds / 1000.0)),
        (Some(bytes), None) => format!("{} GB/s", digits(bytes / nanoseconds)),
        (None, None) => String::new(),
    }
}

/// A line for each lane: the median of a piece of work in microseconds, its spread, what the host takes to ask for it, its rate,
/// and what share that is of the first limit's.
pub fn table(workload: &Workload) -> String {
    let limit = workload.lanes.iter().find(|lane| lane.role == Role::Limit);
    let width = workload.lanes.iter().map(|lane| lane.name.len()).max().unwrap_or(0);
    let mut text = format!("{}: {}\n", workload.id, workload.title);
    for lane in &workload.lanes {
        let took = Spread::of(&lane.nanoseconds);
        let [median, low, high, host] =
            [took.median, took.p10, took.p90, Spread::of(&lane.host).median].map(|value| digits(value / 1000.0));
        let share = limit.filter(|_| lane.role != Role::Limit).and_then(|limit| share(lane, limit)).unwrap_or_default();
        let line = format!("  {:width$}  {median} us ({low} to {high}), host {host} us", lane.name);
        let line = [line, rate(lane, took.median), share].join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A lane's rate over the limit's, round by round.
fn share(lane: &Measured, limit: &Measured) -> Option<String> {
    let amounts = match (lane.flops, limit.flops) {
        (Some(own), Some(limits)) => own / limits,
        (None, None) => lane.bytes? / limit.bytes?,
        _ => return None,
    };
    let Spread { median, p10, p90 } = Spread::ratio(&limit.nanoseconds, &lane.nanoseconds);
    let [median, low, high] = [median, p10, p90].map(|ratio| digits(100.0 * ratio * amounts));
    Some(format!("{median} % of {} ({low} to {high})", limit.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(name: &str, role: Role, bytes: f64, nanoseconds: &[f64]) -> Measured {
        let nanoseconds = nanoseconds.to_vec();
        Measured {
            name: name.to_owned(),
            role,
            bytes: Some(bytes),
            flops: None,
            host: nanoseconds.clone(),
            nanoseconds,
        }
    }

    #[test]
    fn a_table_has_rates_and_shares_of_the_copy() {
        let lanes = vec![
            lane("kvtide", Role::Ours, 8e6, &[2000.0, 2000.0, 4000.0]),
            lane("copy", Role::Limit, 4e6, &[800.0, 800.0, 1600.0]),
        ];
        let text = table(&Workload { id: "moves", title: "rows".to_owned(), lanes });
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "moves: rows");
        assert_eq!(
            lines[1],
            "  kvtide  2.00 us (2.00 to 3.60), host 2.00 us  4000 GB/s  80.0 % of copy (80.0 to 80.0)"
        );
        assert_eq!(lines[2], "  copy    0.80 us (0.80 to 1.44), host 0.80 us  5000 GB/s");
    }

    #[test]
    fn what_computes_is_compared_with_what_computes() {
        let flops = |name, role, flops| Measured { flops: Some(flops), ..lane(name, role, 0.0, &[1000.0]) };
        let (ours, limit) = (flops("kvtide", Role::Ours, 3e8), flops("matmul", Role::Limit, 6e8));
        assert_eq!(share(&ours, &limit).unwrap(), "50.0 % of matmul (50.0 to 50.0)");
        assert_eq!(rate(&ours, 1000.0), "300 TFLOP/s");
        assert_eq!(share(&ours, &lane("copy", Role::Limit, 1.0, &[1.0])), None);
    }
}
