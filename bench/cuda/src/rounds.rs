//! Runs the lanes of a workload in turn, round by round, so that whatever slows the device down slows each of them.
//!
//! ```text
//! round 0   ours  copy  peer
//! round 1   copy  peer  ours      each round starts with another lane
//! ```
//!
//! The first rounds load kernels and fill pools of memory, and are not counted.

use serde::Serialize;

use crate::Result;
use crate::place::{Place, Took};

/// Rounds that warm up.
const WARM_UP: usize = 2;

/// What a lane is in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A kernel or a cache of this repository.
    Ours,
    /// What someone would otherwise take.
    Peer,
    /// The least that the same bytes cost, or the most that the device computes.
    Limit,
}

/// What one piece of a lane's work amounts to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    /// Bytes that have to be read and written.
    pub bytes: f64,
    /// Multiplications and additions.
    pub flops: f64,
}

impl Amount {
    /// So many bytes that are read, and so many that are written.
    pub fn moved(read: usize, written: usize) -> Self {
        Amount { bytes: (read + written) as f64, flops: 0.0 }
    }
}

/// One piece of work.
type Work<'a> = dyn FnMut() -> Result<()> + 'a;

/// One way to do a workload.
pub struct Lane<'a> {
    name: String,
    role: Role,
    amount: Amount,
    /// Pieces of work of one round: what its time is divided by.
    times: usize,
    work: Box<Work<'a>>,
}

impl<'a> Lane<'a> {
    /// A lane whose round is one piece of work.
    pub fn new(role: Role, name: impl Into<String>, amount: Amount, work: impl FnMut() -> Result<()> + 'a) -> Self {
        Lane { name: name.into(), role, amount, times: 1, work: Box::new(work) }
    }

    /// The same with rounds of so many pieces, for work that is over in microseconds.
    pub fn times(self, times: usize) -> Self {
        Lane { times, ..self }
    }
}

/// A lane and what its rounds took, in nanoseconds of one piece of work.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Its name.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Bytes that have to be read and written; nothing where that is not the point.
    pub bytes: Option<f64>,
    /// Multiplications and additions; the same.
    pub flops: Option<f64>,
    /// Each round, on the device.
    pub nanoseconds: Vec<f64>,
    /// Each round, on the host until it was enqueued.
    pub host: Vec<f64>,
}

/// What times are taken with: a place, or a test's own clock.
pub trait Clock {
    /// How long one piece of `times` takes.
    fn time(&self, times: usize, work: &mut dyn FnMut() -> Result<()>) -> Result<Took>;
}

impl Clock for Place {
    fn time(&self, times: usize, work: &mut dyn FnMut() -> Result<()>) -> Result<Took> {
        Place::time(self, times, work)
    }
}

/// Runs every lane in turn, `rounds` times.
pub fn measure(clock: &impl Clock, mut lanes: Vec<Lane<'_>>, rounds: usize) -> Result<Vec<Measured>> {
    let some = |amount: f64| (amount > 0.0).then_some(amount);
    let measured = |lane: &Lane<'_>| Measured {
        name: lane.name.clone(),
        role: lane.role,
        bytes: some(lane.amount.bytes),
        flops: some(lane.amount.flops),
        nanoseconds: Vec::with_capacity(rounds),
        host: Vec::with_capacity(rounds),
    };
    let mut measured: Vec<Measured> = lanes.iter().map(measured).collect();
    for round in 0..WARM_UP + rounds {
        for turn in 0..lanes.len() {
            let index = (round + turn) % lanes.len();
            let lane = &mut lanes[index];
            let took = clock.time(lane.times, &mut *lane.work).map_err(|error| format!("{}: {error}", lane.name))?;
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
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A clock that counts pieces of work: each takes a nanosecond more than the one before.
    #[derive(Default)]
    struct Counting(Cell<f64>);

    impl Clock for Counting {
        fn time(&self, times: usize, work: &mut dyn FnMut() -> Result<()>) -> Result<Took> {
            for _ in 0..times {
                work()?;
                self.0.set(self.0.get() + 1.0);
            }
            Ok(Took { device: self.0.get(), host: times as f64 })
        }
    }

    #[test]
    fn lanes_run_in_turn_and_each_round_starts_with_another() {
        let seen = RefCell::new(String::new());
        let lane = |name: &'static str| {
            Lane::new(Role::Ours, name, Amount::default(), || {
                seen.borrow_mut().push_str(name);
                Ok(())
            })
        };
        measure(&Counting::default(), vec![lane("a"), lane("b").times(2), lane("c")], 1).unwrap();
        assert_eq!(*seen.borrow(), "abbcbbcacabb");
    }

    #[test]
    fn rounds_that_warm_up_do_not_count() {
        let lane = Lane::new(Role::Limit, "copy", Amount::moved(3, 4), || Ok(())).times(5);
        let measured = measure(&Counting::default(), vec![lane], 2).unwrap();
        assert_eq!(measured[0].nanoseconds, [15.0, 20.0]);
        assert_eq!((measured[0].host.len(), measured[0].bytes, measured[0].flops), (2, Some(7.0), None));
    }

    #[test]
    fn a_lane_that_fails_is_named() {
        let lane = Lane::new(Role::Peer, "broken", Amount::default(), || Err("no room".into()));
        assert_eq!(measure(&Counting::default(), vec![lane], 1).unwrap_err().to_string(), "broken: no room");
    }
}
