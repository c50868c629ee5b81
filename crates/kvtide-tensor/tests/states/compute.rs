//! States that a run computes one by one, in place or apart, compared with the same states written as a whole.

use std::collections::BTreeMap;

use half::{bf16, f16};
use kvtide_core::Code;
use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription, StateDType, StateTensor};
use kvtide_tensor::runtime::{Kernels, with_kernels};
use kvtide_tensor::states::StepState;
use kvtide_tensor::{Error, PagedKvCache, PagedModelOptions, PagedStep, PoolRoom, Result, StepRun, StepTokens};

use crate::world::{BLOCK_SIZE, hybrid, mamba};

/// A state after one more token: small whole numbers, which every element type has.
fn advance(index: usize, state: &mut [f32], token: u32) {
    for (at, value) in state.iter_mut().enumerate() {
        *value = (*value * 3.0 + token as f32 + (at + index) as f32) % 61.0;
    }
}

fn elements(of: &StateTensor) -> usize {
    of.shape.iter().product::<u32>() as usize
}

/// The states after these tokens.
fn states_after(model: &ModelDescription, tokens: &[u32]) -> Vec<Vec<f32>> {
    let state = |(index, of): (usize, &StateTensor)| {
        let mut state = vec![0.0; elements(of)];
        tokens.iter().for_each(|&token| advance(index, &mut state, token));
        state
    };
    model.states().iter().enumerate().map(state).collect()
}

/// The bytes of all states after these tokens, with zeros between them.
fn bytes_after(model: &ModelDescription, tokens: &[u32]) -> Vec<u8> {
    let layout = model.state_layout();
    let mut bytes = vec![0; layout.bytes as usize];
    for ((of, state), &offset) in model.states().iter().zip(states_after(model, tokens)).zip(&layout.offsets) {
        for (at, value) in state.into_iter().enumerate() {
            let to = &mut bytes[offset as usize + at * of.dtype.bytes() as usize..];
            match of.dtype {
                StateDType::F32 => to[..4].copy_from_slice(&value.to_le_bytes()),
                StateDType::F16 => to[..2].copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                StateDType::BF16 => to[..2].copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            }
        }
    }
    bytes
}

struct Sums {
    cache: PagedKvCache,
    model: ModelDescription,
    tokens: BTreeMap<u64, Vec<u32>>,
}

impl Sums {
    fn new(model: ModelDescription, blocks: u32) -> Self {
        let room = PoolRoom::Blocks(vec![blocks; model.groups().len()]);
        Sums::on(PagedModelOptions::new(model, room))
    }

    fn on(options: PagedModelOptions) -> Self {
        let model = options.model.clone();
        let cache = PagedKvCache::of_model(PagedModelOptions { block_size: BLOCK_SIZE, ..options }).unwrap();
        Sums { cache, model, tokens: BTreeMap::new() }
    }

    fn create(&mut self) -> u64 {
        let id = self.cache.create_sequence().unwrap();
        self.tokens.insert(id, Vec::new());
        id
    }

    fn begin(&mut self, of: &[(u64, Vec<u32>)]) -> PagedStep {
        let sequences: Vec<u64> = of.iter().map(|(id, _)| *id).collect();
        let mut offsets = vec![0];
        of.iter().for_each(|(_, tokens)| offsets.push(offsets.last().unwrap() + tokens.len() as u32));
        let tokens = StepTokens { sequences: &sequences, offsets: Some(&offsets), parents: None };
        let mut step = self.cache.begin_step(tokens).unwrap();
        let count = *offsets.last().unwrap() as usize;
        let kv = candle_core::Tensor::ones((1, count, 2), candle_core::DType::F32, &candle_core::Device::Cpu).unwrap();
        for layer in 0..self.model.layers().len() as u32 {
            if self.model.place(layer).is_some() {
                self.cache.write_layer(&mut step, layer, &kv, &kv).unwrap();
            }
        }
        step
    }

    /// Computes a state, and checks the states before it.
    fn compute(&self, run: &mut StepRun, index: usize, of: &[(u64, Vec<u32>)]) -> Result<()> {
        let with_tokens: Vec<_> = of.iter().filter(|(_, tokens)| !tokens.is_empty()).collect();
        run.compute_state(index as u32, |offsets: &[usize], states: &mut [StepState<'_>]| {
            assert_eq!((offsets.len(), states.len()), (with_tokens.len() + 1, with_tokens.len()));
            for (at, (id, tokens)) in with_tokens.iter().enumerate() {
                assert_eq!(offsets[at + 1] - offsets[at], tokens.len());
                let StepState { source, target, drafted } = &mut states[at];
                let before = states_after(&self.model, &self.tokens[id]).swap_remove(index);
                assert_eq!(source.is_none(), self.tokens[id].is_empty(), "sequence {id} has a state before the step");
                let mut state = source.map_or_else(|| vec![0.0; before.len()], <[f32]>::to_vec);
                assert_eq!(state, before, "state {index} of sequence {id} before the step");
                assert!(drafted.is_empty() || drafted.len() + 1 == tokens.len());
                for (place, &token) in tokens.iter().enumerate() {
                    advance(index, &mut state, token);
                    if let Some(drafted) = drafted.get_mut(place) {
                        drafted.copy_from_slice(&state);
                    }
                }
                target.copy_from_slice(&state);
            }
            Ok::<_, Error>(())
        })
    }

    fn commit(&mut self, mut step: PagedStep, of: &[(u64, Vec<u32>)]) -> Result<()> {
        let ids: Vec<u32> = of.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
        self.cache.commit_step(&mut step, Some(&ids))?;
        of.iter().for_each(|(id, tokens)| self.tokens.get_mut(id).unwrap().extend(tokens));
        self.check();
        Ok(())
    }

    /// A step that computes the states from the last one to the first.
    fn step(&mut self, of: &[(u64, Vec<u32>)]) {
        let mut step = self.begin(of);
        let mut run = self.cache.run_step(&mut step).unwrap();
        (0..self.model.states().len()).rev().for_each(|index| self.compute(&mut run, index, of).unwrap());
        self.cache.end_run(&mut step, run).unwrap();
        self.commit(step, of).unwrap();
    }

    /// A step that writes the states as a whole.
    fn write(&mut self, of: &[(u64, Vec<u32>)]) {
        let mut step = self.begin(of);
        for (index, (id, tokens)) in of.iter().enumerate().filter(|(_, (_, tokens))| !tokens.is_empty()) {
            let all = [&self.tokens[id][..], tokens].concat();
            self.cache.write_states(&mut step, index, &bytes_after(&self.model, &all)).unwrap();
        }
        self.commit(step, of).unwrap();
    }

    fn check(&mut self) {
        self.cache.check_invariants().unwrap();
        for (&id, tokens) in &self.tokens {
            let expected = bytes_after(&self.model, tokens);
            assert!(self.cache.states_of(id).unwrap() == expected, "the states of sequence {id}, {tokens:?}");
        }
    }

    /// The bytes of its pages as they are saved.
    fn saved(&mut self, id: u64) -> Vec<Vec<u8>> {
        let saved = self.cache.saved_sequence(id).unwrap();
        let rows = saved.iter().flat_map(|of| (0..of.pages.rows()).map(move |row| (of, row)));
        let read = rows.map(|(of, row)| {
            let mut bytes = vec![0; of.pages.row_bytes()];
            of.pages.read(row, &mut bytes).unwrap();
            bytes
        });
        read.collect()
    }
}

fn ids(first: u32, count: u32) -> Vec<u32> {
    (first..first + count).collect()
}

/// Short and long steps of several sequences, some of which share their states from before.
fn walk(model: ModelDescription) {
    let mut sums = Sums::new(model, 60);
    let (one, other, idle) = (sums.create(), sums.create(), sums.create());
    sums.step(&[(one, ids(3, 5)), (idle, vec![]), (other, ids(40, 1))]);
    sums.step(&[(other, ids(50, 2)), (one, vec![])]);
    let forks = [sums.cache.fork(one).unwrap(), sums.cache.fork(one).unwrap()];
    forks.iter().for_each(|&fork| drop(sums.tokens.insert(fork, ids(3, 5))));
    // The forks and their origin have one slot before the step.
    sums.step(&[(forks[0], ids(7, 3)), (one, ids(20, 1)), (forks[1], ids(9, 4)), (idle, ids(1, 1))]);
    // More tokens than a step computes in place.
    sums.step(&[(forks[1], ids(0, 66)), (other, ids(5, 3)), (idle, vec![])]);
    sums.step(&[(forks[1], ids(11, 1)), (other, ids(5, 90))]);
    for id in [one, forks[0]] {
        sums.cache.drop_sequence(id).unwrap();
        sums.tokens.remove(&id);
    }
    sums.step(&[(other, ids(2, 2)), (idle, ids(30, 8))]);
    sums.step(&[]);
}

/// A draft whose last step kept the state after each token: any number of its tokens can be committed.
fn drafts(model: ModelDescription) {
    for (count, kept) in [(3, 1u64), (5, 5), (5, 0), (6, 3), (70, 68), (70, 1)] {
        let mut sums = Sums::new(model.clone(), 200);
        sums.cache.keep_drafted_states(true);
        let (one, other) = (sums.create(), sums.create());
        sums.step(&[(one, ids(0, 7)), (other, ids(3, 2))]);
        let draft = sums.cache.begin(one, None, Default::default()).unwrap();
        // A step that is undone leaves nothing.
        let mut step = sums.begin(&[(one, ids(50, 4))]);
        sums.cache.undo_step(&mut step).unwrap();
        sums.step(&[(other, ids(9, 3)), (one, ids(20, count))]);
        sums.cache.commit(one, draft, Some(kept)).unwrap();
        sums.tokens.get_mut(&one).unwrap().truncate(7 + kept as usize);
        sums.check();
        sums.cache.check_invariants().unwrap();
        let fork = sums.cache.fork(one).unwrap();
        sums.tokens.insert(fork, sums.tokens[&one].clone());
        sums.step(&[(one, ids(1, 2)), (fork, ids(2, 1))]);
        for id in [one, other, fork] {
            sums.cache.drop_sequence(id).unwrap();
        }
        assert_eq!(sums.cache.pools().unwrap().iter().map(|pool| pool.active).sum::<u32>(), 0);
    }
}

#[test]
fn parts_of_drafts_with_every_implementation_of_the_kernels() {
    for kernels in Kernels::supported() {
        for model in [hybrid(), mamba()] {
            with_kernels(kernels, || drafts(model)).unwrap();
        }
    }
}

#[test]
fn a_part_of_a_draft_needs_the_states_between_its_tokens() {
    let refused = |sums: &mut Sums, one, draft| {
        let refusal = sums.cache.commit(one, draft, Some(2)).unwrap_err();
        assert_eq!(refusal.code(), Code::CannotRollBack, "{refusal}");
        sums.check();
        sums.cache.rollback(one, draft);
    };
    // By default, with states that were written whole, with too few slots, and with an earlier step.
    for case in 0..4 {
        let mut sums = Sums::new(mamba(), if case == 2 { 3 } else { 40 });
        sums.cache.keep_drafted_states(case > 0);
        let one = sums.create();
        sums.step(&[(one, ids(0, 2))]);
        let draft = sums.cache.begin(one, None, Default::default()).unwrap();
        match case {
            1 => sums.write(&[(one, ids(5, 5))]),
            3 => (0..2).for_each(|_| sums.step(&[(one, ids(5, 3))])),
            _ => sums.step(&[(one, ids(5, 5))]),
        }
        refused(&mut sums, one, draft);
        let all = sums.cache.pools().unwrap().iter().map(|pool| pool.active).sum::<u32>();
        assert_eq!(all, 1, "case {case}");
    }
}

#[test]
fn a_step_that_is_refused_keeps_the_states_of_a_draft() {
    let state = StateTensor { layer: 0, name: "ssm".into(), shape: vec![33], dtype: StateDType::F32 };
    let with = |layers| ModelDescription::new(layers).unwrap().with_states(vec![state.clone()]).unwrap();
    let alone = with(vec![LayerDescription::state()]);
    let beside = with(vec![LayerDescription::state(), LayerDescription::full(1, 2)]);
    // The draft has six slots, the state before it included, and two blocks for its tokens; two slots are free.
    for (model, blocks, others, unknown, code) in [
        (&alone, 0, 3, Some(999), Some(Code::SequenceNotFound)),
        (&alone, 0, 8, None, Some(Code::OutOfBlocks)),
        (&beside, 4, 3, None, Some(Code::OutOfBlocks)),
        (&beside, 20, 3, None, None),
    ] {
        let room = model.groups().iter().map(|of| if of.kind == LayerKind::State { 8 } else { blocks }).collect();
        let mut sums = Sums::on(PagedModelOptions::new(model.clone(), PoolRoom::Blocks(room)));
        sums.cache.keep_drafted_states(true);
        let one = sums.create();
        sums.step(&[(one, ids(0, 2))]);
        let draft = sums.cache.begin(one, None, Default::default()).unwrap();
        sums.step(&[(one, ids(5, 5))]);
        let others: Vec<u64> = (0..others).map(|_| sums.create()).collect();
        let sequences: Vec<u64> = others.into_iter().chain(unknown).collect();
        let tokens = StepTokens { sequences: &sequences, ..StepTokens::default() };
        let refusal = sums.cache.begin_step(tokens).err();
        assert_eq!(refusal.as_ref().map(Error::code), code, "{refusal:?}");
        let part = sums.cache.commit(one, draft, Some(2));
        assert_eq!(part.is_ok(), refusal.is_some(), "the states of the draft gave way to a step, or were kept");
        sums.cache.check_invariants().unwrap();
    }
}

#[test]
fn in_place_and_apart_with_every_implementation_of_the_kernels() {
    for kernels in Kernels::supported() {
        for model in [hybrid(), mamba()] {
            with_kernels(kernels, || walk(model)).unwrap();
        }
    }
}

#[test]
fn states_on_two_devices() {
    let model = hybrid().split(&[0, 0, 1]).unwrap();
    let room = PoolRoom::Blocks(vec![40; model.groups().len()]);
    let devices = vec![candle_core::Device::Cpu; 2];
    let mut sums = Sums::on(PagedModelOptions { devices, ..PagedModelOptions::new(model, room) });
    let one = sums.create();
    sums.step(&[(one, ids(0, 9))]);
    sums.step(&[(one, ids(9, 80))]);
}

#[test]
fn pages_are_those_of_states_that_are_written_whole() {
    for count in [5, 80] {
        for model in [hybrid(), mamba()] {
            let [mut computed, mut written] = [0, 1].map(|_| Sums::new(model.clone(), 40));
            for sums in [&mut computed, &mut written] {
                // Slots that were used before: what is not written is seen.
                let used: Vec<u64> = (0..4).map(|_| sums.create()).collect();
                for &id in &used {
                    let mut step = sums.begin(&[(id, ids(0, 4))]);
                    let bytes = vec![0xff; sums.cache.state_bytes() as usize];
                    sums.cache.write_states(&mut step, 0, &bytes).unwrap();
                    sums.cache.commit_step(&mut step, None).unwrap();
                }
                used.into_iter().for_each(|id| sums.cache.drop_sequence(id).unwrap());
                sums.tokens.clear();
            }
            let (one, other) = (computed.create(), written.create());
            computed.step(&[(one, ids(0, count))]);
            written.write(&[(other, ids(0, count))]);
            assert!(computed.saved(one) == written.saved(other), "{count} tokens");
        }
    }
}

#[test]
fn a_step_counts_once_all_of_its_states_are_computed() {
    for count in [3, 70] {
        let mut sums = Sums::new(hybrid(), 60);
        let one = sums.create();
        let of = [(one, ids(0, count))];
        let incomplete = "the step cannot be committed: layers [1, 2] are not written";
        for order in [vec![0, 1], vec![2, 2], vec![]] {
            let mut step = sums.begin(&of);
            let mut run = sums.cache.run_step(&mut step).unwrap();
            order.iter().for_each(|&index| sums.compute(&mut run, index, &of).unwrap());
            sums.cache.end_run(&mut step, run).unwrap();
            assert_eq!(sums.cache.commit_step(&mut step, None).unwrap_err().to_string(), incomplete, "{order:?}");
        }
        let mut step = sums.begin(&of);
        let mut run = sums.cache.run_step(&mut step).unwrap();
        (0..2).for_each(|index| sums.compute(&mut run, index, &of).unwrap());
        sums.compute(&mut run, 2, &of).unwrap();
        drop(run);
        assert_eq!(sums.cache.commit_step(&mut step, None).unwrap_err().to_string(), incomplete, "a run was dropped");
        // The states of another run that wrote them whole, and computed one of them again.
        let mut run = sums.cache.run_step(&mut step).unwrap();
        run.write_states(0, &bytes_after(&sums.model, &of[0].1)).unwrap();
        sums.compute(&mut run, 1, &of).unwrap();
        sums.cache.end_run(&mut step, run).unwrap();
        sums.commit(step, &of).unwrap();
        sums.step(&[(one, ids(7, 1))]);
    }
}

#[test]
fn work_that_fails_leaves_its_state_unwritten() {
    for count in [3, 70] {
        let mut sums = Sums::new(hybrid(), 60);
        let one = sums.create();
        let of = [(one, ids(0, count))];
        let mut step = sums.begin(&of);
        let mut run = sums.cache.run_step(&mut step).unwrap();
        (0..2).for_each(|index| sums.compute(&mut run, index, &of).unwrap());
        let fail = |_: &[usize], states: &mut [StepState<'_>]| {
            states[0].target.fill(1.0);
            Err(Error::Aborted)
        };
        assert_eq!(run.compute_state(1, fail).unwrap_err().code(), Code::Aborted);
        sums.compute(&mut run, 2, &of).unwrap();
        let refusal = run.compute_state(3, |_, _| Ok::<_, Error>(())).unwrap_err();
        assert_eq!(refusal.to_string(), "state is 3, expected below 3, the number of states of the model");
        sums.cache.end_run(&mut step, run).unwrap();
        assert_eq!(sums.cache.commit_step(&mut step, None).unwrap_err().code(), Code::StepIncomplete);
        let mut run = sums.cache.run_step(&mut step).unwrap();
        (0..3).for_each(|index| sums.compute(&mut run, index, &of).unwrap());
        sums.cache.end_run(&mut step, run).unwrap();
        sums.commit(step, &of).unwrap();
    }
}

#[test]
fn a_panic_leaves_the_pages_usable() {
    for count in [3, 70] {
        let mut sums = Sums::new(hybrid(), 60);
        let one = sums.create();
        let of = [(one, ids(0, count))];
        let mut step = sums.begin(&of);
        let mut run = sums.cache.run_step(&mut step).unwrap();
        let panic = |_: &[usize], _: &mut [StepState<'_>]| -> Result<()> { panic!("in the middle") };
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.compute_state(1, panic)));
        assert!(caught.is_err());
        (0..3).for_each(|index| sums.compute(&mut run, index, &of).unwrap());
        sums.cache.end_run(&mut step, run).unwrap();
        sums.commit(step, &of).unwrap();
        sums.step(&[(one, ids(7, 2))]);
    }
}
