//! Memory that runs out in the middle of a call: the call returns an error, and the planner is unchanged.
//!
//! Each call of a scenario is repeated with the first allocation failing, then the second, and so on, until it
//! succeeds. A call that cannot handle the failure aborts the process, which fails the test too.

mod allocator;

use kvtide_core::paged::{
    Append, HeldContent, Identity, Keep, PagedPlanner, StepTableRows, StepTables, Window, WritePlan, WriteTarget,
    Writer, find_in_groups,
};
use kvtide_core::{Code, Error, Result, TransactionId};

/// Everything that can be seen of a planner.
fn seen(planner: &PagedPlanner, held: &[&HeldContent]) -> Vec<u64> {
    planner.check_invariants(held).unwrap();
    let mut seen = vec![u64::from(planner.free_count()), u64::from(planner.staged_count())];
    for id in planner.sequence_ids() {
        let length = planner.sequence_length(id);
        seen.extend([id, length.into(), planner.committed_length(id).into(), planner.sequence_capacity(id)]);
        for position in 0..length + 8 {
            for layer in 0..planner.num_layers() {
                let slot = planner.locate(id, layer, position).ok();
                seen.push(slot.map_or(u64::MAX, |slot| u64::from(slot.block) << 32 | u64::from(slot.index)));
            }
        }
    }
    seen
}

/// Tries a call with less memory than it needs, then a little more, and so on; gives what it gives at last.
fn tried<T>(
    planner: &mut PagedPlanner,
    held: &[&HeldContent],
    mut call: impl FnMut(&mut PagedPlanner) -> Result<T>,
) -> T {
    let before = seen(planner, held);
    for allowed in 0..1000 {
        match allocator::with(allowed, || call(planner)) {
            Ok(value) => return value,
            Err(error) => assert_eq!(error.code(), Code::OutOfMemory, "{error}"),
        }
        assert_eq!(seen(planner, held), before, "after {allowed} allocations");
    }
    panic!("it always needs more");
}

fn planner(low_bit: bool, window: Option<Window>) -> PagedPlanner {
    let planner = PagedPlanner::new(10_000, 4, 3).unwrap();
    let planner = if low_bit { planner.staging_pages() } else { planner };
    match window {
        Some(window) => planner.sliding(window),
        None => planner,
    }
}

fn planners() -> impl Iterator<Item = PagedPlanner> {
    let windows = [None, Some(Window::new(5, 3).unwrap())];
    [false, true].into_iter().flat_map(move |low_bit| windows.map(|window| planner(low_bit, window)))
}

/// A write and the copies before it: all that can be refused is refused before the first of them is committed.
fn plan(planner: &mut PagedPlanner, id: u64, tokens: u32, writer: Writer) -> WritePlan {
    plan_tree(planner, id, tokens, None, writer)
}

fn plan_tree(planner: &mut PagedPlanner, id: u64, tokens: u32, parents: Option<&[i32]>, writer: Writer) -> WritePlan {
    let target = WriteTarget { sequence: id, position: planner.sequence_length(id), tokens };
    let offsets = [0, tokens];
    let append = Append { sequences: &[id], offsets: Some(&offsets), parents, writer };
    let (copies, mut plan) = tried(planner, &[], |planner| {
        let planned = (planner.plan_copies(&[target])?, planner.plan_append(&append)?);
        planner.reserve_after(&planned.0, &planned.1)?;
        Ok(planned)
    });
    let in_one_go = tried(planner, &[], |planner| planner.plan_write(planner.check_append(&append)?));
    assert_eq!((&in_one_go.0, &in_one_go.1), (&copies, &plan));
    allocator::with(0, || planner.commit_copies_before(&copies, &mut plan)).unwrap();
    planner.check_invariants(&[]).unwrap();
    assert_eq!(planner.plan_append(&append).unwrap(), plan, "as it would have come out behind the copies");
    allocator::with(0, || planner.reserve(&plan)).unwrap();
    plan
}

fn append(planner: &mut PagedPlanner, id: u64, tokens: u32, writer: Writer) {
    let plan = plan(planner, id, tokens, writer);
    let ids: Vec<u32> = (0..tokens).collect();
    tried(planner, &[], |planner| planner.commit(&plan, Some(&ids)));
}

fn begin(planner: &mut PagedPlanner, id: u64) -> TransactionId {
    tried(planner, &[], |planner| planner.begin(id, None))
}

fn end(planner: &mut PagedPlanner, id: u64, transaction: TransactionId, keep: Keep<'_>) {
    let (copies, mut plan) = tried(planner, &[], |planner| {
        let targets = match keep {
            Keep::Path(path) => vec_of(planner.path_target(id, transaction, path)?)?,
            _ => Vec::new(),
        };
        let copies = planner.plan_copies(&targets)?;
        let mut plan = planner.plan_end(id, transaction, keep)?;
        planner.reserve_end(&copies, &mut plan)?;
        Ok((copies, plan))
    });
    allocator::with(0, || planner.commit_copies_before_end(&copies, &mut plan)).unwrap();
    planner.check_invariants(&[]).unwrap();
    assert_eq!(planner.plan_end(id, transaction, keep).unwrap(), plan, "as it would have come out behind the copies");
    allocator::with(0, || planner.end(&plan)).unwrap();
    planner.check_invariants(&[]).unwrap();
}

fn vec_of(target: WriteTarget) -> Result<Vec<WriteTarget>> {
    let mut targets = Vec::new();
    targets.try_reserve(1).map_err(|_| Error::OutOfMemory { count: 1, what: "targets" })?;
    targets.push(target);
    Ok(targets)
}

#[test]
fn sequences_and_writes() {
    for mut planner in planners() {
        let identity = Identity::default();
        let id = tried(&mut planner, &[], |planner| planner.create_sequence_of(identity.clone()));
        for tokens in [1, 3, 300, 6, 1] {
            append(&mut planner, id, tokens, Writer::Direct);
        }
        let fork = tried(&mut planner, &[], |planner| planner.fork(id));
        append(&mut planner, fork, 2, Writer::Direct);
        append(&mut planner, id, 9, Writer::Direct);
        let length = planner.sequence_length(fork) - 1;
        tried(&mut planner, &[], |planner| planner.truncate(fork, length));
        tried(&mut planner, &[], |planner| planner.ensure_capacity(&[(fork, 900), (id, 500)]));
        append(&mut planner, fork, 7, Writer::Direct);
        planner.drop_sequence(id).unwrap();
        planner.check_invariants(&[]).unwrap();
    }
}

#[test]
fn drafts_whose_end_clears_a_window_of_shared_chunks() {
    for mut planner in planners() {
        let id = planner.create_sequence().unwrap();
        append(&mut planner, id, 6, Writer::Direct);
        let transaction = begin(&mut planner, id);
        append(&mut planner, id, 7000, Writer::Draft(transaction));
        let fork = tried(&mut planner, &[], |planner| planner.fork(id));
        end(&mut planner, id, transaction, Keep::First(6990));
        let transaction = begin(&mut planner, fork);
        append(&mut planner, fork, 9, Writer::Draft(transaction));
        end(&mut planner, fork, transaction, Keep::Path(&[0, 1]));
        let transaction = begin(&mut planner, fork);
        append(&mut planner, fork, 9, Writer::Draft(transaction));
        tried(&mut planner, &[], |planner| planner.undo(fork, transaction));
    }
}

#[test]
fn copies_of_many_blocks_and_a_path_that_writes_over_shared_ones() {
    for mut planner in planners() {
        let id = planner.create_sequence().unwrap();
        append(&mut planner, id, 7, Writer::Direct);
        let forks: Vec<u64> = (0..3).map(|_| planner.fork(id).unwrap()).collect();
        for &fork in forks.iter().chain([&id]) {
            let transaction = begin(&mut planner, fork);
            tried(&mut planner, &[], |planner| planner.reserve_draft(fork, 60));
            let parents: Vec<i32> = (0..13).map(|node| [node - 1, 1][usize::from(node == 3)]).collect();
            let plan = plan_tree(&mut planner, fork, 13, Some(&parents), Writer::Draft(transaction));
            tried(&mut planner, &[], |planner| planner.commit(&plan, None));
            let other = planner.fork(fork).unwrap();
            end(&mut planner, fork, transaction, Keep::Path(&[0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11]));
            append(&mut planner, other, 2, Writer::Direct);
            planner.drop_sequence(other).unwrap();
        }
    }
}

#[test]
fn steps_and_their_tables() {
    for mut planner in planners() {
        let id = planner.create_sequence().unwrap();
        append(&mut planner, id, 6, Writer::Direct);
        let mut rows = StepTableRows::new(64).unwrap();
        for undone in [true, false] {
            let plan = plan(&mut planner, id, 11, Writer::Step);
            tried(&mut planner, &[], |planner| planner.open_step(&plan));
            let mut arrays: [Vec<i32>; 5] = std::array::from_fn(|_| vec![0; 64]);
            let mut fill = |planner: &mut PagedPlanner| {
                let [block_tables, slot_mapping, positions, lengths, query_offsets] = &mut arrays;
                rows.fill(planner, &plan, StepTables { block_tables, slot_mapping, positions, lengths, query_offsets })
            };
            tried(&mut planner, &[], &mut fill);
            for layer in 0..3 {
                tried(&mut planner, &[], |planner| planner.mark_layer(&plan, layer));
            }
            match undone {
                true => tried(&mut planner, &[], |planner| planner.undo_step(&plan)),
                false => tried(&mut planner, &[], |planner| planner.close_step(&plan, None)),
            }
        }
    }
}

#[test]
fn what_is_held() {
    let (mut full, mut sliding) = (planner(false, None), planner(false, Some(Window::new(5, 3).unwrap())));
    let (tokens, identity): (Vec<u32>, _) = ((0..900).collect(), Identity::default());
    for planner in [&mut full, &mut sliding] {
        let id = planner.create_sequence().unwrap();
        append(planner, id, 900, Writer::Direct);
        let snapshot = planner.snapshot(id).unwrap();
        tried(planner, &[&snapshot], |planner| planner.restore(id, &snapshot));
        planner.release(snapshot);
    }
    let found = tried(&mut full, &[], |planner| planner.find(&tokens, &identity, true));
    assert_eq!(found.length(), 899);
    full.release(found);
    let mut kept: [Vec<HeldContent>; 2] = Default::default();
    let mut planners = [full, sliding];
    // Held ones are kept, so that now one planner has no room for another, now the other one.
    for _ in 0..40 {
        let [full, sliding] = &mut planners;
        let held = (0..1000).find_map(|allowed| {
            let found = allocator::with(allowed, || find_in_groups(&mut [full, sliding], &tokens, &identity, false));
            assert!(matches!(found, Ok(_) | Err(Error::OutOfMemory { .. })));
            for (planner, kept) in [&*full, &*sliding].into_iter().zip(&kept).filter(|_| found.is_err()) {
                planner.check_invariants(&kept.iter().collect::<Vec<_>>()).unwrap();
            }
            found.ok()
        });
        for (kept, held) in kept.iter_mut().zip(held.unwrap()) {
            assert_eq!(held.length(), 896);
            kept.push(held);
        }
    }
    for (planner, kept) in planners.iter_mut().zip(kept) {
        for held in kept {
            // One that finds no room for a sequence gives its blocks back.
            let _ = allocator::with(0, || planner.create_from(held));
        }
        planner.check_invariants(&[]).unwrap();
    }
}

#[test]
fn priorities_with_limits() {
    for mut planner in planners() {
        let ids: Vec<u64> = (0..4).map(|_| planner.create_sequence().unwrap()).collect();
        for &id in &ids {
            append(&mut planner, id, 90, Writer::Direct);
            tried(&mut planner, &[], |planner| planner.retain(id, 3..70, 90, Some(5 + id)));
        }
        // Without memory for a limit, the limit passes at once; releasing blocks never fails because of it.
        for (allowed, &id) in (0..).step_by(3).zip(&ids) {
            allocator::with(allowed, || planner.drop_sequence(id)).unwrap();
            planner.check_invariants(&[]).unwrap();
        }
        for now in 0..10 {
            allocator::with(0, || planner.advance_clock(now));
            planner.check_invariants(&[]).unwrap();
        }
    }
}
