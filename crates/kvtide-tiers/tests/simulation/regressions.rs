//! Traces that failed once, or would fail if a line were missing, in the form that a failing run prints.

use super::calls::Call::*;
use super::calls::Fate::*;
use super::calls::Shape;
use super::replay;

const SMALL: Shape = Shape { form: 0, blocks: 8, memory: None, policy: 0, envelope: (false, false), digits: None };

/// Entries of another prompt under the requested keys are misses.
#[test]
fn entries_that_were_exchanged() {
    let prompt = |token| Prompt(vec![token; 5], 0, false);
    let offload = [HandDown(usize::MAX), Write, Finish(0)];
    let ask = [Kill, Ask(vec![1; 5], 0), Finish(0), prompt(1)];
    replay((SMALL, [&[prompt(1), prompt(0)][..], &offload, &[Damage(3, 0)], &ask].concat()));
}

/// A worker is killed while its writer waits for the store, and the next one begins anew.
#[test]
fn a_kill_during_a_write() {
    let begin = vec![Prompt(vec![1; 7], 0, false), HandDown(usize::MAX), Write, Step(0, Answers), Step(0, Fails(true))];
    replay((SMALL, [begin, vec![Kill, Prompt(vec![1; 7], 0, false)]].concat()));
}
