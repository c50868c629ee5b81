//! Random calls on layers with states, with few blocks, so that calls are refused and checkpoints evicted.

use kvtide_core::Code;
use kvtide_tensor::runtime::{Kernels, with_kernels};
use kvtide_tensor::{Error, PagedSnapshot, PromptOptions};
use proptest::prelude::*;

use crate::support;
use crate::world::{World, hybrid, mamba};

/// A call. A `usize` picks one of the sequences.
#[derive(Clone, Debug)]
enum Call {
    Create,
    Drop(usize),
    Fork(usize),
    Truncate(usize, u32),
    Step(usize, usize, Vec<u32>, Vec<u32>, End),
    Snapshot(usize),
    Restore(usize),
    Find(usize, Vec<u32>),
    Resume(usize, Vec<u32>),
    Draft(usize, Vec<u32>, bool),
}

#[derive(Clone, Copy, Debug)]
enum End {
    Commit,
    Undo,
    Drop,
}

fn call() -> impl Strategy<Value = Call> {
    let of = || 0..6usize;
    let ids = || prop_oneof![2 => prop::collection::vec(0..2u32, 1..2), 2 => prop::collection::vec(0..2u32, 0..14)];
    let end = prop_oneof![6 => Just(End::Commit), 1 => Just(End::Undo), 1 => Just(End::Drop)];
    prop_oneof![
        2 => Just(Call::Create),
        2 => of().prop_map(Call::Drop),
        2 => of().prop_map(Call::Fork),
        3 => (of(), 0..30u32).prop_map(|(of, length)| Call::Truncate(of, length)),
        12 => (of(), of(), ids(), ids(), end).prop_map(|(a, b, c, d, end)| Call::Step(a, b, c, d, end)),
        1 => of().prop_map(Call::Snapshot),
        1 => of().prop_map(Call::Restore),
        4 => (of(), ids()).prop_map(|(of, more)| Call::Find(of, more)),
        2 => (of(), ids()).prop_map(|(of, more)| Call::Resume(of, more)),
        3 => (of(), ids(), any::<bool>()).prop_map(|(of, ids, keep)| Call::Draft(of, ids, keep)),
    ]
}

struct Walk {
    world: World,
    snapshot: Option<(PagedSnapshot, Vec<u32>)>,
}

impl Walk {
    fn pick(&self, of: usize) -> Option<u64> {
        self.world.tokens.keys().nth(of.checked_rem(self.world.tokens.len())?).copied()
    }

    fn call(&mut self, call: &Call) -> Option<()> {
        match call {
            Call::Create => {
                if self.world.tokens.len() < 6 {
                    self.world.create();
                }
            }
            Call::Drop(of) => {
                let id = self.pick(*of)?;
                self.world.drop(id);
            }
            Call::Fork(of) => {
                let id = self.pick(*of)?;
                self.world.fork(id);
            }
            Call::Truncate(of, length) => {
                let id = self.pick(*of)?;
                let length = (*length).min(self.world.tokens[&id].len() as u32);
                if let Err(refusal) = self.world.truncate(id, length) {
                    assert_eq!(refusal.code(), Code::CannotRollBack, "{refusal}");
                    if let Error::Plan(kvtide_core::Error::NoStateHere { below, .. }) = refusal {
                        self.world.truncate(id, below as u32).unwrap();
                    }
                }
            }
            Call::Step(one, other, of_one, of_other, end) => self.step([*one, *other], [of_one, of_other], *end)?,
            Call::Snapshot(of) => {
                let id = self.pick(*of)?;
                self.snapshot = Some((self.world.cache.snapshot(id).unwrap(), self.world.tokens[&id].clone()));
            }
            Call::Restore(of) => {
                let id = self.pick(*of)?;
                let (snapshot, tokens) = self.snapshot.as_ref()?;
                self.world.cache.restore(id, snapshot).unwrap();
                self.world.tokens.insert(id, tokens.clone());
            }
            Call::Find(of, more) => {
                let prompt = [&self.world.tokens[&self.pick(*of)?][..], more].concat();
                self.world.find(&prompt);
            }
            Call::Resume(of, more) => {
                let id = self.pick(*of)?;
                let tokens = &self.world.tokens[&id];
                let prompt = [&tokens[..tokens.len() / 2], more].concat();
                let kept = self.world.cache.resume(id, &prompt).unwrap() as usize;
                assert!(kept < prompt.len().max(1));
                self.world.tokens.insert(id, prompt[..kept].to_vec());
            }
            Call::Draft(of, ids, keep) => {
                let id = self.pick(*of)?;
                let before = self.world.tokens[&id].clone();
                let draft = self.world.cache.begin(id, None, Default::default()).unwrap();
                let _ = ran_out(self.world.step(&[(id, ids)]));
                self.world.check();
                if *keep {
                    self.world.cache.commit(id, draft, None).unwrap();
                } else {
                    self.world.cache.rollback(id, draft);
                    self.world.tokens.insert(id, before);
                }
            }
        }
        Some(())
    }

    fn step(&mut self, of: [usize; 2], ids: [&Vec<u32>; 2], end: End) -> Option<()> {
        let [one, other] = [self.pick(of[0])?, self.pick(of[1])?];
        let both: [(u64, &[u32]); 2] = [(one, ids[0]), (other, ids[1])];
        let of = if one == other { &both[..1] } else { &both[..] };
        let mut step = ran_out(self.world.begin(of))?;
        self.world.write(&mut step, of).unwrap();
        match end {
            End::Commit => self.world.commit(step, of).unwrap(),
            End::Undo => self.world.cache.undo_step(&mut step).unwrap(),
            End::Drop => drop(step),
        }
        Some(())
    }
}

/// The result, unless there were too few blocks.
fn ran_out<T>(result: kvtide_tensor::Result<T>) -> Option<T> {
    result.inspect_err(|refusal| assert_eq!(refusal.code(), Code::OutOfBlocks, "{refusal}")).ok()
}

#[test]
fn random_calls() {
    let calls = (any::<bool>(), any::<usize>(), 4..24u32, prop::collection::vec(call(), 0..50));
    support::run("states", 1_500, calls, |(is_mamba, kernels, blocks, calls)| {
        let all: Vec<Kernels> = Kernels::supported().collect();
        let kernels = all[kernels % all.len()];
        with_kernels(kernels, || {
            let model = if is_mamba { mamba() } else { hybrid() };
            let mut walk = Walk { world: World::new(model, blocks), snapshot: None };
            for call in &calls {
                let _ = walk.call(call);
                walk.world.check();
            }
            for id in walk.world.cache.sequence_ids() {
                walk.world.drop(id);
            }
            walk.snapshot = None;
            walk.world.cache.find_prefix(&[], PromptOptions::default(), false).unwrap();
            let active = walk.world.cache.pools().unwrap().iter().map(|pool| pool.active).sum::<u32>();
            assert_eq!(active, 0, "blocks are held by no sequence");
        })
        .unwrap();
        Ok(())
    });
}
