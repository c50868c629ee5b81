//! Calls on a planner that several of these tests make.

use kvtide_core::paged::{Append, Identity, PagedPlanner, Writer};

/// Writes tokens, and commits them.
pub fn write(planner: &mut PagedPlanner, append: &Append<'_>, ids: Option<&[u32]>) {
    let (copies, mut plan) = planner.plan_write(planner.check_append(append).unwrap()).unwrap();
    planner.commit_copies_before(&copies, &mut plan).unwrap();
    planner.commit(&plan, ids).unwrap();
}

/// Appends tokens with these ids to a sequence.
pub fn append(planner: &mut PagedPlanner, sequence: u64, ids: &[u32]) {
    let offsets = [0, ids.len() as u32];
    let append = Append { sequences: &[sequence], offsets: Some(&offsets), parents: None, writer: Writer::Direct };
    write(planner, &append, Some(ids));
}

/// The tokens of a prompt that are found.
pub fn found(planner: &mut PagedPlanner, tokens: &[u32]) -> u32 {
    let held = planner.find(tokens, &Identity::default(), false).unwrap();
    let length = held.length();
    planner.release(held);
    planner.check_invariants(&[]).unwrap();
    length
}
