//! Runs the lanes of a workload in turn, round by round, so that whatever slows the machine down slows each of them.
//!
//! ```text
//! round 0   ours  peer  limit
//! round 1   peer  limit ours      each round starts with another lane: none is always the one after the cold caches
//! ```
//!
//! A lane times what counts of its round and nothing else: making its state and dropping it are not in the number unless
//! they are the work. The first rounds are thrown away. Where rounds take long, there are fewer of them.

use std::error::Error;
use std::time::{Duration, Instant};

use crate::waiting::waited;

/// What a measurement can fail with: it ends the run.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Rounds that warm up and are not counted.
const WARM_UP: usize = 2;

/// When no more rounds are begun, once there are enough.
const TIME_MAX: Duration = Duration::from_secs(12);

/// Rounds that are enough for a median and a spread.
const ROUNDS_MIN: usize = 9;

/// What a lane is in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A cache of this repository.
    Ours,
    /// A cache that someone would otherwise take.
    Peer,
    /// What is written when no cache is taken.
    Baseline,
    /// The least that the same bytes cost on this machine.
    Limit,
}

/// One round of a lane.
type Round<'a> = dyn FnMut(&mut Stopwatch) -> Result<()> + 'a;

/// One way to do a workload.
pub struct Lane<'a> {
    pub name: String,
    pub role: Role,
    /// Operations of one round: what its time is divided by.
    pub operations: u32,
    round: Box<Round<'a>>,
}

impl<'a> Lane<'a> {
    pub fn new(
        role: Role,
        name: impl Into<String>,
        operations: u32,
        round: impl FnMut(&mut Stopwatch) -> Result<()> + 'a,
    ) -> Self {
        Lane { name: name.into(), role, operations, round: Box::new(round) }
    }
}

/// Adds up the time of what counts in a round.
#[derive(Debug, Default)]
pub struct Stopwatch {
    elapsed: Duration,
}

impl Stopwatch {
    /// Runs `work` and counts its time, less what the thread waited for a processor. What it returns is dropped by the
    /// caller, after the time was taken.
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = waited();
        let start = Instant::now();
        let result = work();
        let elapsed = start.elapsed();
        self.add(elapsed.saturating_sub(waited().saturating_sub(before)));
        std::hint::black_box(result)
    }

    /// As [`time`](Self::time), for work of so many threads. Where there are several, what this one waited is counted: the
    /// others went on meanwhile.
    pub fn time_on<T>(&mut self, threads: usize, work: impl FnOnce() -> T) -> T {
        if threads == 1 {
            return self.time(work);
        }
        let start = Instant::now();
        let result = work();
        self.add(start.elapsed());
        std::hint::black_box(result)
    }

    /// What it has counted.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Counts time that was measured elsewhere.
    pub fn add(&mut self, elapsed: Duration) {
        self.elapsed += elapsed;
    }
}

/// A lane and its nanoseconds per operation, one number a round.
#[derive(Clone, Debug)]
pub struct Measured {
    pub name: String,
    pub role: Role,
    pub nanoseconds: Vec<f64>,
}

/// Runs every lane in turn, `rounds` times or as often as there is time for.
pub fn measure(mut lanes: Vec<Lane<'_>>, rounds: usize) -> Result<Vec<Measured>> {
    let mut measured: Vec<Measured> = lanes
        .iter()
        .map(|lane| Measured { name: lane.name.clone(), role: lane.role, nanoseconds: Vec::with_capacity(rounds) })
        .collect();
    let warm_up = WARM_UP.min(rounds);
    let start = Instant::now();
    for round in 0..warm_up + rounds {
        if round >= warm_up + ROUNDS_MIN && start.elapsed() > TIME_MAX {
            break;
        }
        for turn in 0..lanes.len() {
            let index = (round + turn) % lanes.len();
            let lane = &mut lanes[index];
            let mut stopwatch = Stopwatch::default();
            (lane.round)(&mut stopwatch).map_err(|error| format!("{}: {error}", lane.name))?;
            if round >= warm_up {
                let nanoseconds = stopwatch.elapsed.as_nanos() as f64 / f64::from(lane.operations);
                measured[index].nanoseconds.push(nanoseconds);
            }
        }
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn lanes_run_in_turn_and_each_round_starts_with_another() {
        let seen = RefCell::new(String::new());
        let lane = |name: &'static str| {
            let seen = &seen;
            Lane::new(Role::Ours, name, 1, move |_| {
                seen.borrow_mut().push_str(name);
                Ok(())
            })
        };
        measure(vec![lane("a"), lane("b"), lane("c")], 2).unwrap();
        assert_eq!(*seen.borrow(), "abcbcacababc");
    }

    #[test]
    fn a_time_is_per_operation_and_warm_up_does_not_count() {
        let mut round = 0;
        let lane = Lane::new(Role::Limit, "clockwork", 4, |stopwatch: &mut Stopwatch| {
            round += 1;
            stopwatch.add(Duration::from_nanos(round * 100));
            stopwatch.add(Duration::from_nanos(round * 100));
            Ok(())
        });
        let measured = measure(vec![lane], 3).unwrap();
        assert_eq!(measured[0].nanoseconds, [150., 200., 250.]);
    }

    #[test]
    fn a_lane_that_fails_is_named() {
        let lane = Lane::new(Role::Peer, "broken", 1, |_| Err("no room".into()));
        assert_eq!(measure(vec![lane], 1).unwrap_err().to_string(), "broken: no room");
    }
}
