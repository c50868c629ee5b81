//! Compares `WriteLog` with a table of the time of each slot's last write.

use kvtide_core::{Run, Stamp, WriteLog};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::support;

const SLOTS: u32 = 24;

#[derive(Clone, Debug)]
enum Op {
    /// A write of any slots.
    Write(Run),
    /// A write that goes on where the last one ended.
    Next(u32),
    Stamp,
}

fn log_follows_the_table((ops, asked): (Vec<Op>, Vec<Run>)) -> Result<(), TestCaseError> {
    let mut log = WriteLog::default();
    let mut written = [0; SLOTS as usize];
    let mut stamps: Vec<(Stamp, usize)> = vec![(log.stamp(), 0)];
    let mut head = 0;
    for (time, op) in (1..).zip(&ops) {
        let run = match *op {
            Op::Write(run) => run,
            Op::Next(len) => Run::new(head, len.min(SLOTS - head)),
            Op::Stamp => {
                stamps.push((log.stamp(), time));
                continue;
            }
        };
        log.record(run);
        written[run.start as usize..run.end() as usize].fill(time);
        head = if run.is_empty() { head } else { run.end() };
        for &(stamp, made) in &stamps {
            for &run in &asked {
                let expected = written[run.start as usize..run.end() as usize].iter().any(|&at| at > made);
                prop_assert_eq!(log.written_since(stamp, run), expected, "{:?} since {:?}", run, stamp);
                let runs = log.written(stamp, run);
                prop_assert!(
                    runs.iter().all(|run| !run.is_empty()) && runs.is_sorted_by(|one, next| one.end() <= next.start)
                );
                let slots: Vec<u32> = runs.iter().flat_map(|run| run.start..run.end()).collect();
                let later = |slot: &u32| written[*slot as usize] > made;
                prop_assert_eq!(slots, (run.start..run.end()).filter(later).collect::<Vec<_>>());
            }
        }
    }
    Ok(())
}

fn run() -> impl Strategy<Value = Run> {
    (0..SLOTS, 0..9u32).prop_map(|(start, len)| Run::new(start, len.min(SLOTS - start)))
}

#[test]
fn random_writes_against_a_table() {
    let op = prop_oneof![
        3 => run().prop_map(Op::Write),
        2 => (0..6u32).prop_map(Op::Next),
        2 => Just(Op::Stamp),
    ];
    let writes = (prop::collection::vec(op, 0..40), prop::collection::vec(run(), 1..6));
    support::run("WriteLog", 100_000, writes, log_follows_the_table);
}
