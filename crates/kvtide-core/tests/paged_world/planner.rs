//! The planner as a cache of values; maps that are never cleared simulate its memory.

use std::ops::Range;
use std::sync::Arc;

use kvtide_core::paged::{
    Append, BlockKey, CheckedWrite, EndPlan, HeldContent, Identity, Keep, PagedPlanner, PoolStats, Window, WritePlan,
    WriteTarget, Writer,
};
use kvtide_core::{Code, Error, TransactionId};
use proptest::prelude::*;

use super::calls::Shape;
use super::memory::Memory;
use super::model::Value;
use super::tables::Tables;
use super::world::{Answer, Cache, Done, Seen, SeenStep, Share};

pub struct PlayedCache {
    pub planner: PagedPlanner,
    memory: Memory,
    tables: Tables,
}

/// An open step: its plan, and which layers were written.
pub struct Step {
    pub plan: WritePlan,
    written: Vec<bool>,
}

impl PlayedCache {
    pub fn new(shape: &Shape) -> Self {
        let planner = PagedPlanner::new(shape.capacity, shape.block_size, shape.layers).unwrap();
        let planner = if shape.low_bit { planner.staging_pages() } else { planner };
        let planner = match shape.window {
            Some((tokens, sinks)) => planner.sliding(Window::new(tokens, sinks).unwrap()),
            None => planner,
        };
        let planner = match shape.policy.make() {
            Some(policy) => planner.evicting(policy),
            None => planner,
        };
        PlayedCache { planner, memory: Memory::default(), tables: Tables::new() }
    }

    /// A write and the copies before it are the same planned in one go and apart, and refused alike.
    fn check_one_go(
        &self,
        write: Result<CheckedWrite, Error>,
        targets: &[WriteTarget],
        plan: Result<WritePlan, Error>,
    ) {
        let apart = self.planner.plan_copies(targets).and_then(|copies| Ok((copies, plan?)));
        assert_eq!(write.and_then(|write| self.planner.plan_write(write)), apart);
    }

    /// Makes the copies that writes need.
    fn copy(&mut self, targets: &[WriteTarget]) -> Answer<()> {
        let plan = code(self.planner.plan_copies(targets))?;
        for copy in plan.copies() {
            self.memory.copy(&self.planner, copy);
        }
        self.planner.commit_copies(&plan).unwrap();
        Ok(())
    }

    /// The places of an append's tokens: behind those of each sequence.
    fn targets(&self, append: &Append<'_>) -> Vec<WriteTarget> {
        let tokens = |at: usize| append.offsets.map_or(1, |offsets| offsets[at + 1] - offsets[at]);
        let target = |(at, &sequence): (usize, &u64)| WriteTarget {
            sequence,
            position: self.planner.sequence_length(sequence),
            tokens: tokens(at),
        };
        append.sequences.iter().enumerate().map(target).collect()
    }

    /// Plans an append, its copies made.
    fn plan(&mut self, append: &Append<'_>) -> Answer<WritePlan> {
        let write = self.planner.check_append(append);
        code(write.clone()).map(drop)?;
        let targets = self.targets(append);
        self.check_one_go(write, &targets, self.planner.plan_append(append));
        self.copy(&targets)?;
        Ok(self.planner.plan_append(append).unwrap())
    }

    fn append_as(&mut self, append: &Append<'_>, values: &[Vec<Value>], ids: Option<&[u32]>) -> Answer<()> {
        let plan = self.plan(append)?;
        self.memory.write(&self.planner, &plan, |layer, token| values[token as usize][layer as usize]);
        self.planner.commit(&plan, ids).unwrap();
        Ok(())
    }

    fn end(&mut self, plan: &EndPlan) {
        for moved in plan.moves() {
            self.memory.move_row(&self.planner, moved);
        }
        for &seal in plan.seals() {
            self.memory.seal(&self.planner, seal);
        }
        self.planner.end(plan).unwrap();
    }
}

impl Cache for PlayedCache {
    type Hold = HeldContent;
    type Step = Step;

    fn create(&mut self, salt: u8) -> u64 {
        self.planner.create_sequence_of(identity(salt)).unwrap()
    }

    fn drop_sequence(&mut self, id: u64) -> Answer<()> {
        code(self.planner.drop_sequence(id))
    }

    fn fork(&mut self, id: u64) -> Answer<u64> {
        code(self.planner.fork(id))
    }

    fn ensure(&mut self, id: u64, tokens: u32) -> Answer<()> {
        code(self.planner.ensure_capacity(&[(id, tokens)]))
    }

    fn truncate(&mut self, id: u64, length: u32) -> Answer<()> {
        code(self.planner.truncate(id, length))
    }

    fn write(&mut self, id: u64, layer: u32, position: u32, values: &[Value]) -> Answer<()> {
        let tokens = values.len() as u32;
        let write = self.planner.check_tokens(id, layer, position, tokens);
        code(write.clone()).map(drop)?;
        let target = WriteTarget { sequence: id, position, tokens };
        self.check_one_go(write, &[target], self.planner.plan_tokens(id, layer, position, tokens));
        self.copy(&[target])?;
        let plan = self.planner.plan_tokens(id, layer, position, tokens).unwrap();
        self.memory.write(&self.planner, &plan, |_, token| values[token as usize]);
        self.planner.commit(&plan, None).unwrap();
        Ok(())
    }

    fn append(&mut self, shares: &[Share], values: &[Vec<Value>], ids: Option<&[u32]>) -> Answer<()> {
        let (sequences, offsets) = flat(shares);
        let append = Append { sequences: &sequences, offsets: Some(&offsets), parents: None, writer: Writer::Direct };
        self.append_as(&append, values, ids)
    }

    fn retain(&mut self, id: u64, tokens: Range<u32>, priority: u8, until: Option<u64>) {
        self.planner.retain(id, tokens, priority, until).unwrap();
    }

    fn identify(&mut self, id: u64, tokens: &[u32]) -> Answer<u32> {
        code(self.planner.identify(id, tokens))
    }

    fn advance(&mut self, now: u64) {
        self.planner.advance_clock(now);
    }

    fn forget(&mut self) {
        self.planner.forget_prefixes();
    }

    fn snapshot(&mut self, id: u64) -> Answer<HeldContent> {
        code(self.planner.snapshot(id))
    }

    fn restore(&mut self, id: u64, held: &HeldContent) -> Answer<()> {
        code(self.planner.restore(id, held))
    }

    fn find(&mut self, tokens: &[u32], salt: u8, partial: bool) -> HeldContent {
        self.planner.find(tokens, &identity(salt), partial).unwrap()
    }

    fn held_length(held: &HeldContent) -> u32 {
        held.length()
    }

    fn create_from(&mut self, held: HeldContent) -> u64 {
        self.planner.create_from(held).unwrap()
    }

    fn release(&mut self, held: HeldContent) {
        self.planner.release(held);
    }

    fn begin(&mut self, id: u64, parent: Option<TransactionId>, room: Option<u32>) -> Answer<TransactionId> {
        let draft = code(self.planner.begin(id, parent))?;
        let taken = room.map_or(Ok(()), |tokens| code(self.planner.reserve_draft(id, tokens)));
        if taken.is_err() {
            self.planner.undo(id, draft).unwrap();
        }
        taken.map(|()| draft)
    }

    fn append_draft(
        &mut self,
        (id, draft): (u64, TransactionId),
        parents: Option<&[i32]>,
        values: &[Vec<Value>],
        ids: Option<&[u32]>,
    ) -> Answer<()> {
        let offsets = [0, values.len() as u32];
        let append = Append { sequences: &[id], offsets: Some(&offsets), parents, writer: Writer::Draft(draft) };
        self.append_as(&append, values, ids)
    }

    fn commit(&mut self, (id, draft): (u64, TransactionId), tokens: Option<u64>) -> Answer<()> {
        let plan = code(self.planner.plan_end(id, draft, tokens.map_or(Keep::All, Keep::First)))?;
        self.end(&plan);
        Ok(())
    }

    fn commit_path(&mut self, (id, draft): (u64, TransactionId), path: &[u32]) -> Answer<()> {
        let target = code(self.planner.path_target(id, draft, path))?;
        self.copy(&[target])?;
        let plan = code(self.planner.plan_end(id, draft, Keep::Path(path)))?;
        self.end(&plan);
        Ok(())
    }

    fn undo(&mut self, (id, draft): (u64, TransactionId)) {
        self.planner.undo(id, draft).unwrap();
    }

    fn begin_step(&mut self, shares: &[Share]) -> Answer<Step> {
        let (sequences, offsets) = flat(shares);
        let append = Append { sequences: &sequences, offsets: Some(&offsets), parents: None, writer: Writer::Step };
        let plan = self.plan(&append)?;
        self.memory.open(&self.planner, &plan);
        self.planner.open_step(&plan).unwrap();
        Ok(Step { plan, written: vec![false; self.planner.num_layers() as usize] })
    }

    fn write_layer(&mut self, step: &mut Step, layer: u32, values: &[Value]) -> Answer<()> {
        code(self.planner.check_step(&step.plan))?;
        self.memory.write_layers(&self.planner, &step.plan, layer..layer + 1, |_, token| values[token as usize]);
        self.planner.mark_layer(&step.plan, layer).unwrap();
        step.written[layer as usize] = true;
        Ok(())
    }

    fn commit_step(&mut self, step: &mut Step, ids: Option<&[u32]>) -> Answer<()> {
        code(self.planner.check_step(&step.plan))?;
        if step.plan.tokens() > 0 && step.written.contains(&false) {
            return Err(Code::StepIncomplete);
        }
        if self.planner.fills_shared(&step.plan) {
            let copies = self.planner.plan_close(&step.plan).unwrap();
            for copy in copies.copies() {
                self.memory.copy(&self.planner, copy);
            }
            self.planner.commit_copies_before_close(&copies, &mut step.plan).unwrap();
            let seals: Vec<_> = step.plan.completed(step.plan.layers(), self.planner.block_size()).collect();
            seals.into_iter().for_each(|seal| self.memory.seal(&self.planner, seal));
        }
        self.planner.close_step(&step.plan, ids).unwrap();
        Ok(())
    }

    fn drop_step(&mut self, step: Step) {
        self.planner.undo_step(&step.plan).unwrap();
    }

    fn ids(&self) -> Vec<u64> {
        self.planner.sequence_ids()
    }

    fn lengths(&self, id: u64) -> [u32; 2] {
        [self.planner.sequence_length(id), self.planner.committed_length(id)]
    }

    fn pool(&mut self) -> PoolStats {
        self.planner.pool_stats()
    }

    fn staged_count(&mut self) -> u32 {
        self.planner.staged_count()
    }

    fn check_invariants(&self, held: &[&HeldContent]) -> Result<(), String> {
        self.planner.check_invariants(held)
    }

    fn check_layer(&mut self, id: u64, layer: u32, seen: &Seen<'_>) -> Done {
        let gap = self.planner.gap(id).unwrap();
        let gap = gap.start as usize..gap.end as usize;
        prop_assert!(seen.lets_go(&gap), "{:?} of {} is seen", gap, id);
        let kept = || seen.values.iter().enumerate().filter(|(position, _)| !gap.contains(position));
        for (position, &expected) in kept() {
            let slot = self.planner.locate(id, layer, position as u32).ok();
            let staged = |block| self.planner.staged(block, layer);
            let value = slot.map(|slot| self.memory.read(staged(slot.block), slot.block, layer, slot.index));
            prop_assert_eq!(value, expected, "position {} of {}", position, id);
        }
        let expected: Vec<Value> = kept().map(|(_, value)| value.unwrap_or(0)).collect();
        prop_assert_eq!(self.memory.read_all(&mut self.planner, id, layer), expected, "layer {} of {}", layer, id);
        let beyond = self.planner.locate(id, layer, seen.values.len() as u32);
        prop_assert_eq!(code(beyond).err(), Some(Code::PositionOutOfRange));
        Ok(())
    }

    fn check_draft(&mut self, (id, draft): (u64, TransactionId), positions: &[usize], _: bool) -> Done {
        prop_assert_eq!(self.planner.drafted(id, draft).unwrap() as usize, positions.len());
        Ok(())
    }

    fn check_step(&mut self, step: &Step, seen: &SeenStep<'_>) -> Done {
        prop_assert_eq!(self.planner.check_step(&step.plan).is_err(), seen.is_stale);
        self.tables.check(&self.planner, &step.plan, seen)
    }
}

/// The code of a refusal. Of blocks there must have been too few.
pub fn code<T>(done: Result<T, Error>) -> Answer<T> {
    done.map_err(|error| {
        if let Error::OutOfBlocks { needed, free, .. } = error {
            assert!(needed > free);
        }
        error.code()
    })
}

fn identity(salt: u8) -> Identity {
    Identity { root: BlockKey::root(&[7; 32], b"model", &[salt]), extra: Arc::default() }
}

/// Sequences, and where the tokens of each begin.
fn flat(shares: &[Share]) -> (Vec<u64>, Vec<u32>) {
    let mut offsets = vec![0];
    shares.iter().for_each(|share| offsets.push(offsets[offsets.len() - 1] + share.1.len() as u32));
    (shares.iter().map(|share| share.0).collect(), offsets)
}
