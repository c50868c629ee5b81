//! Runs the lanes of a workload in turn, round by round, so that a slow moment of the machine affects all of them.
//!
//! ```text
//! round 0   ours  peer  limit
//! round 1   peer  limit ours      each round starts with another lane, so none always meets the cold caches
//! ```
//!
//! A lane times only the counted part of its round: making its state and dropping it are not included, unless
//! they are the work. The first rounds are not counted. If rounds take long, there are fewer of them.
//!
//! This crate decides nothing: it returns every round of every lane, and bench/report computes medians, ratios and
//! targets.

use std::error::Error;
use std::time::{Duration, Instant};

use serde::Serialize;

mod stopwatch;

pub use stopwatch::{Stopwatch, waited};

/// The error of a measurement. It ends the run.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

const WARM_UP: usize = 2;

/// The time after which no more rounds are begun, if there are enough.
const TIME_MAX: Duration = Duration::from_secs(12);

/// The number of rounds that is enough for a median and a spread.
const ROUNDS_MIN: usize = 9;

/// The role of a lane in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A cache or a kernel of this repository.
    Ours,
    /// An alternative to kvtide.
    Peer,
    /// Code that uses no cache.
    Baseline,
    /// The least time for the same bytes on this machine, or its highest rate of computation.
    Limit,
}

/// The amount of work in one piece: bytes that must be read and written, multiplications and additions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    pub bytes: f64,
    pub flops: f64,
}

impl Amount {
    pub fn moved(read: usize, written: usize) -> Self {
        Amount { bytes: (read + written) as f64, flops: 0.0 }
    }
}

/// The nanoseconds of one piece of work: on the device that runs it, and on the host that enqueues it.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    pub device: f64,
    pub host: f64,
}

type Round<'a> = dyn FnMut(usize) -> Result<Took> + 'a;

pub struct Lane<'a> {
    name: String,
    role: Role,
    amount: Amount,
    times: usize,
    round: Box<Round<'a>>,
}

impl<'a> Lane<'a> {
    pub fn new(role: Role, name: impl Into<String>, round: impl FnMut(usize) -> Result<Took> + 'a) -> Self {
        Lane { name: name.into(), role, amount: Amount::default(), times: 1, round: Box::new(round) }
    }

    /// A lane that times the counted part of its round itself; a round has `operations` operations.
    pub fn timed(
        role: Role,
        name: impl Into<String>,
        operations: u32,
        mut round: impl FnMut(&mut Stopwatch) -> Result<()> + 'a,
    ) -> Self {
        Self::new(role, name, move |_| {
            let mut stopwatch = Stopwatch::default();
            round(&mut stopwatch)?;
            let device = stopwatch.elapsed().as_nanos() as f64 / f64::from(operations);
            Ok(Took { device, host: device })
        })
    }

    /// A lane whose round is `work`, `operations` times.
    pub fn repeated<T>(
        role: Role,
        name: impl Into<String>,
        operations: u32,
        mut work: impl FnMut() -> Result<T> + 'a,
    ) -> Self {
        let mut once = move || work().map(|result| _ = std::hint::black_box(result));
        Self::timed(role, name, operations, move |stopwatch| {
            stopwatch.time(|| (0..operations).try_for_each(|_| once()))
        })
    }

    /// A lane whose round makes something in `operations` operations. The result is dropped outside the counted time.
    pub fn making<T>(
        role: Role,
        name: impl Into<String>,
        operations: u32,
        mut make: impl FnMut() -> Result<T> + 'a,
    ) -> Self {
        Self::timed(role, name, operations, move |stopwatch| stopwatch.time(&mut make).map(drop))
    }

    /// Returns the lane with `times` pieces of work per round, for work that takes microseconds.
    pub fn times(self, times: usize) -> Self {
        Lane { times, ..self }
    }

    /// Returns the lane with the amount of work in one piece.
    pub fn of(self, amount: Amount) -> Self {
        Lane { amount, ..self }
    }
}

/// A lane and the nanoseconds of one piece of work, one number per round. Amounts are absent if the workload has no
/// rate.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub name: String,
    pub role: Role,
    pub bytes: Option<f64>,
    pub flops: Option<f64>,
    pub nanoseconds: Vec<f64>,
    pub host: Vec<f64>,
}

/// Runs every lane in turn, `rounds` times or as often as the time limit allows.
pub fn measure(mut lanes: Vec<Lane<'_>>, rounds: usize) -> Result<Vec<Measured>> {
    let some = |amount: f64| (amount > 0.0).then_some(amount);
    let measured = |Lane { name, role, amount, .. }: &Lane<'_>| Measured {
        name: name.clone(),
        role: *role,
        bytes: some(amount.bytes),
        flops: some(amount.flops),
        nanoseconds: Vec::with_capacity(rounds),
        host: Vec::with_capacity(rounds),
    };
    let mut measured: Vec<Measured> = lanes.iter().map(measured).collect();
    let start = Instant::now();
    for round in 0..WARM_UP + rounds {
        if round >= WARM_UP + ROUNDS_MIN && start.elapsed() > TIME_MAX {
            break;
        }
        for turn in 0..lanes.len() {
            let index = (round + turn) % lanes.len();
            let Lane { name, times, round: work, .. } = &mut lanes[index];
            let took = work(*times).map_err(|error| format!("{name}: {error}"))?;
            if round >= WARM_UP {
                measured[index].nanoseconds.push(took.device);
                measured[index].host.push(took.host);
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
            Lane::repeated(Role::Ours, name, 1, || {
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
        let lane = Lane::timed(Role::Limit, "clockwork", 4, |stopwatch| {
            round += 1;
            stopwatch.add(Duration::from_nanos(round * 100));
            stopwatch.add(Duration::from_nanos(round * 100));
            Ok(())
        });
        assert_eq!(measure(vec![lane], 3).unwrap()[0].nanoseconds, [150., 200., 250.]);
    }

    #[test]
    fn a_round_has_the_pieces_that_it_was_told_and_says_what_they_amount_to() {
        let lane = Lane::new(Role::Peer, "pieces", |times| Ok(Took { device: times as f64, host: 1. }));
        let measured = &measure(vec![lane.times(5).of(Amount::moved(3, 4))], 2).unwrap()[0];
        assert_eq!((&measured.nanoseconds[..], &measured.host[..]), (&[5., 5.][..], &[1., 1.][..]));
        assert_eq!((measured.bytes, measured.flops), (Some(7.), None));
    }

    #[test]
    fn a_lane_that_fails_is_named() {
        let lane = Lane::making(Role::Peer, "broken", 1, || Err::<(), _>("no room".into()));
        assert_eq!(measure(vec![lane], 1).unwrap_err().to_string(), "broken: no room");
    }
}
