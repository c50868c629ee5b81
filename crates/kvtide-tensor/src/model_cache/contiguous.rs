//! Sequences in tensors of their own: one growing cache or window for each layer.
//!
//! A step is a transaction in every layer of one sequence, a transaction of the user's is one below it; so a step that is
//! dropped leaves no trace, and the layers move together. A fork copies what the layers hold: O(tokens).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use kvtide_core::model::{LayerGroup, LayerPlace};
use kvtide_core::paged::{Explanation, PoolStats, Reason, StepRows, StepTables, Unseen};
use kvtide_core::{Error as CoreError, TransactionId};

use super::layer_cache::LayerCache;
pub(super) use super::layer_cache::LayerSnapshot;
use super::options::ContiguousOptions;
use super::paged::foreign;
use super::shapes::{Queries, Shaped, restored};
use super::store::{Held, StepState, Store};
use crate::attention::{AttendOptions, Attended, KvRows, attend};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::Budget;
use crate::paged::{PagedPrefix, PromptOptions, StepTokens};
use crate::source::Source;
use crate::stats::Stats;
use crate::view::Kv;

/// All sequences.
#[derive(Debug)]
pub(super) struct ContiguousLayers {
    groups: Vec<LayerGroup>,
    options: ContiguousOptions,
    dtype: DType,
    budget: Arc<Budget>,
    sequences: BTreeMap<u64, Sequence>,
    next: u64,
    /// Steps that were dropped: the sequence, and the transaction in each layer.
    dropped: Dropped,
}

type Dropped = Arc<Mutex<Vec<(u64, TransactionId)>>>;

#[derive(Debug)]
struct Sequence {
    /// Group by group, the layers of each in order.
    layers: Vec<LayerCache>,
    length: u32,
    /// The user's transactions, and their tokens before the first of them.
    open: Vec<(TransactionId, u32)>,
    /// The step that is open.
    step: Option<TransactionId>,
}

/// An open step of one sequence.
#[derive(Debug)]
pub(super) struct LayersStep {
    sequence: u64,
    id: Option<TransactionId>,
    tokens: u32,
    parents: Option<Vec<i32>>,
    shown: Vec<Option<Kv>>,
    dropped: Dropped,
}

impl Drop for LayersStep {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push((self.sequence, id));
        }
    }
}

impl ContiguousLayers {
    pub fn new(groups: &[LayerGroup], options: ContiguousOptions, dtype: DType, budget: Arc<Budget>) -> Result<Self> {
        // What a layer refuses is refused now.
        for group in groups {
            LayerCache::new(group, &ContiguousOptions { initial_capacity: 0, ..options }, dtype, &budget)?;
        }
        Ok(ContiguousLayers {
            groups: groups.to_vec(),
            options,
            dtype,
            budget,
            sequences: BTreeMap::new(),
            next: 0,
            dropped: Dropped::default(),
        })
    }

    /// Where a layer stands among those of a sequence.
    fn index(&self, place: LayerPlace) -> usize {
        let before = &self.groups[..place.group as usize];
        before.iter().map(|group| group.layers.len()).sum::<usize>() + place.index as usize
    }

    /// A sequence, once steps of it that were dropped are undone.
    fn sequence(&mut self, id: u64) -> Result<&mut Sequence> {
        for (sequence, step) in std::mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner)) {
            if let Some(of) = self.sequences.get_mut(&sequence).filter(|of| of.step == Some(step)) {
                of.layers.iter_mut().for_each(|layer| layer.drop_draft(step));
                of.step = None;
            }
        }
        self.sequences.get_mut(&id).ok_or_else(|| CoreError::SequenceNotFound { sequence: id }.into())
    }

    /// A sequence without an open step.
    fn resting(&mut self, id: u64) -> Result<&mut Sequence> {
        let of = self.sequence(id)?;
        if of.step.is_some() { Err(CoreError::TransactionOpen { object: "sequence" }.into()) } else { Ok(of) }
    }

    /// A sequence without an open step or transaction.
    fn idle(&mut self, id: u64) -> Result<&mut Sequence> {
        let of = self.resting(id)?;
        if of.open.is_empty() { Ok(of) } else { Err(CoreError::TransactionOpen { object: "sequence" }.into()) }
    }

    /// A sequence whose innermost transaction is this one, and the tokens before it.
    fn drafting(&mut self, id: u64, transaction: TransactionId) -> Result<(&mut Sequence, u32)> {
        let of = self.resting(id)?;
        match of.open.last() {
            Some(&(last, before)) if last == transaction => Ok((of, before)),
            _ if of.open.iter().any(|(open, _)| *open == transaction) => {
                Err(CoreError::TransactionOpen { object: "transaction" }.into())
            }
            _ => Err(CoreError::TransactionClosed.into()),
        }
    }

    fn new_sequence(&self) -> Result<Sequence> {
        let mut layers = Vec::new();
        for group in &self.groups {
            for _ in &group.layers {
                layers.push(LayerCache::new(group, &self.options, self.dtype, &self.budget)?);
            }
        }
        Ok(Sequence { layers, length: 0, open: Vec::new(), step: None })
    }

    fn add(&mut self, sequence: Sequence) -> u64 {
        self.next += 1;
        self.sequences.insert(self.next - 1, sequence);
        self.next - 1
    }
}

impl Sequence {
    /// Parents that are counted from the innermost transaction, counted from the step.
    fn parents_in_step(&self, parents: &[i32]) -> Result<Vec<i32>> {
        let Some(&(_, before)) = self.open.last() else {
            return Err(Error::argument("parents", "a tree", "none where no transaction is open"));
        };
        let nodes = (self.length - before) as i32;
        let shifted = parents.iter().map(|&parent| {
            if parent < nodes - 1 {
                let expected =
                    format!("at least {}: in tensors, a step's tokens follow the last token before it", nodes - 1);
                return Err(Error::argument("parents", parent, expected));
            }
            Ok(parent - nodes)
        });
        shifted.collect()
    }
}

impl Store for ContiguousLayers {
    fn create(&mut self, _: PromptOptions<'_>) -> Result<u64> {
        let sequence = self.new_sequence()?;
        Ok(self.add(sequence))
    }

    fn create_from(&mut self, _: Vec<PagedPrefix>) -> Result<u64> {
        self.create(PromptOptions::default())
    }

    /// Nothing is shared here, so that nothing is found.
    fn find(&mut self, _: &[u32], _: PromptOptions<'_>, _: bool) -> Result<Vec<PagedPrefix>> {
        Ok(Vec::new())
    }

    fn fork(&mut self, sequence: u64) -> Result<u64> {
        let of = self.idle(sequence)?;
        let length = of.length;
        let snapshots = of.layers.iter().map(LayerCache::snapshot).collect::<Result<Vec<_>>>()?;
        let mut fork = self.new_sequence()?;
        fork.layers.iter_mut().zip(&snapshots).try_for_each(|(layer, snapshot)| layer.restore(snapshot))?;
        fork.length = length;
        Ok(self.add(fork))
    }

    fn drop_sequence(&mut self, sequence: u64) -> Result<()> {
        match self.sequences.remove(&sequence) {
            Some(_) => Ok(()),
            None => Err(CoreError::SequenceNotFound { sequence }.into()),
        }
    }

    fn length(&self, sequence: u64) -> u32 {
        self.sequences.get(&sequence).map_or(0, |of| of.length)
    }

    fn committed(&self, sequence: u64) -> u32 {
        let of = self.sequences.get(&sequence);
        of.map_or(0, |of| of.open.first().map_or(of.length, |(_, before)| *before))
    }

    fn ids(&self) -> Vec<u64> {
        self.sequences.keys().copied().collect()
    }

    fn truncate(&mut self, sequence: u64, length: u32) -> Result<()> {
        let of = self.idle(sequence)?;
        if length > of.length {
            let (requested, seq_len) = (length.into(), of.length.into());
            let reason = "there are not so many";
            return Err(CoreError::CannotRollBack { requested, seq_len, reason }.into());
        }
        of.layers.iter().try_for_each(|layer| layer.check_truncate(length))?;
        of.layers.iter_mut().try_for_each(|layer| layer.truncate(length))?;
        of.length = length;
        Ok(())
    }

    fn snapshot(&mut self, sequence: u64) -> Result<Held> {
        let of = self.idle(sequence)?;
        let layers = of.layers.iter().map(LayerCache::snapshot).collect::<Result<_>>()?;
        Ok(Held::Contiguous(layers, of.length))
    }

    fn restore(&mut self, sequence: u64, held: &Held) -> Result<()> {
        let Held::Contiguous(snapshots, length) = held else { return Err(foreign()) };
        let of = self.idle(sequence)?;
        if snapshots.len() != of.layers.len() {
            return Err(foreign());
        }
        of.layers.iter_mut().zip(snapshots).try_for_each(|(layer, snapshot)| layer.restore(snapshot))?;
        of.length = *length;
        Ok(())
    }

    fn explain(&self, tokens: &[u32], _: PromptOptions<'_>) -> Result<Explanation> {
        let missing = (tokens.len() > 1).then_some((0, Reason::NeverSeen));
        Ok(Explanation { matched: 0, missing })
    }

    fn forget_prefixes(&mut self) -> Result<()> {
        Ok(())
    }

    fn retain(&mut self, sequence: u64, _: Range<u32>, _: u8, _: Option<u64>) -> Result<()> {
        self.sequence(sequence).map(|_| ())
    }

    fn advance_clock(&mut self, _: u64) -> Result<()> {
        Ok(())
    }

    fn events(&self, _: u64) -> Option<Unseen<'_>> {
        None
    }

    fn can_allocate(&mut self, tokens: u32, _: u32) -> Result<bool> {
        Ok(tokens <= self.options.max_seq_len)
    }

    fn begin_step(&mut self, tokens: StepTokens<'_>) -> Result<StepState> {
        let &[sequence] = tokens.sequences else {
            let expected = "1: in tensors, each sequence has steps of its own";
            return Err(Error::argument("sequences.length", tokens.sequences.len(), expected));
        };
        let count = match tokens.offsets {
            None => 1,
            Some(&[0, count]) => count,
            Some(offsets) => {
                return Err(Error::argument("offsets", format!("{offsets:?}"), "0, and the number of tokens"));
            }
        };
        let dropped = self.dropped.clone();
        let of = self.resting(sequence)?;
        let parents = tokens.parents.map(|parents| of.parents_in_step(parents)).transpose()?;
        let parent = of.open.last().map(|(id, _)| *id);
        let mut ids = Vec::with_capacity(of.layers.len());
        for layer in &mut of.layers {
            match layer.begin(parent) {
                Ok(id) => ids.push(id),
                Err(refusal) => {
                    of.layers.iter_mut().zip(ids).for_each(|(layer, id)| layer.drop_draft(id));
                    return Err(refusal);
                }
            }
        }
        let id = ids.first().copied();
        of.step = id;
        let shown = vec![None; of.layers.len()];
        Ok(StepState::Contiguous(LayersStep { sequence, id, tokens: count, parents, shown, dropped }))
    }

    fn fill_tables(&self, _: &StepState, _: u32, _: &mut StepRows, _: StepTables<'_>) -> Result<()> {
        Err(Error::argument("kind", "contiguous", "paged: there are no blocks here"))
    }

    fn write(&mut self, step: &mut StepState, place: LayerPlace, k: Source<'_>, v: Source<'_>) -> Result<()> {
        let StepState::Contiguous(step) = step else { return Err(foreign()) };
        let (index, id) = (self.index(place), step.id.ok_or(CoreError::TransactionClosed)?);
        let of = self.sequence(step.sequence).map_err(|_| CoreError::StaleStep { sequence: step.sequence })?;
        if step.shown[index].is_some() {
            return Err(Error::argument("layer", "written already", "each layer once a step"));
        }
        let (k, v) = (Shaped::batched(k)?, Shaped::batched(v)?);
        let tokens = k.source().dims().get(2).copied().unwrap_or(0);
        if tokens != step.tokens as usize {
            let expected = format!("{} tokens, as the step has", step.tokens);
            return Err(Error::argument("k", format!("{tokens} tokens"), expected));
        }
        step.shown[index] = Some(of.layers[index].append(id, k.source(), v.source(), step.parents.as_deref())?);
        Ok(())
    }

    fn attend(
        &mut self,
        step: &StepState,
        place: LayerPlace,
        q: Source<'_>,
        options: &AttendOptions<'_>,
    ) -> Result<Attended> {
        let StepState::Contiguous(step) = step else { return Err(foreign()) };
        step.id.ok_or(CoreError::TransactionClosed)?;
        let Some(kv) = &step.shown[self.index(place)] else {
            return Err(Error::argument("layer", "not written", "a layer that the step has written"));
        };
        let queries = Queries::batched(&q)?;
        let options = AttendOptions { query_offsets: None, ..options.clone() };
        restored(attend(queries.source(), KvRows::from(kv), &options)?, &queries)
    }

    fn commit_step(&mut self, step: &mut StepState, _: Option<&[u32]>) -> Result<()> {
        let StepState::Contiguous(step) = step else { return Err(foreign()) };
        let id = step.id.ok_or(CoreError::TransactionClosed)?;
        let of = self.sequence(step.sequence).map_err(|_| CoreError::StaleStep { sequence: step.sequence })?;
        of.layers.iter_mut().try_for_each(|layer| layer.commit(id, None))?;
        (of.step, of.length, step.id) = (None, of.length + step.tokens, None);
        Ok(())
    }

    fn undo_step(&mut self, step: &mut StepState) -> Result<()> {
        let StepState::Contiguous(step) = step else { return Err(foreign()) };
        if let Some(id) = step.id.take()
            && let Ok(of) = self.sequence(step.sequence)
        {
            of.layers.iter_mut().for_each(|layer| layer.drop_draft(id));
            of.step = None;
        }
        Ok(())
    }

    fn begin(&mut self, sequence: u64, parent: Option<TransactionId>) -> Result<TransactionId> {
        let of = match parent {
            Some(parent) => self.drafting(sequence, parent)?.0,
            None => self.idle(sequence)?,
        };
        let ids = of.layers.iter_mut().map(|layer| layer.begin(parent)).collect::<Result<Vec<_>>>()?;
        let id = ids[0];
        of.open.push((id, of.length));
        Ok(id)
    }

    fn drafted(&self, sequence: u64, id: TransactionId) -> Result<u32> {
        match self.sequences.get(&sequence) {
            Some(of) => of.layers[0].drafted(id),
            None => Err(CoreError::SequenceNotFound { sequence }.into()),
        }
    }

    fn commit(&mut self, sequence: u64, id: TransactionId, tokens: Option<u64>) -> Result<()> {
        let (of, before) = self.drafting(sequence, id)?;
        let drafted = u64::from(of.length - before);
        if tokens.is_some_and(|tokens| tokens > drafted) {
            let expected = format!("at most {drafted}, the number of drafted tokens");
            return Err(Error::argument("n", tokens.unwrap_or(0), expected));
        }
        of.layers.iter_mut().try_for_each(|layer| layer.commit(id, tokens))?;
        of.length = before + tokens.unwrap_or(drafted) as u32;
        of.open.pop();
        Ok(())
    }

    fn commit_path(&mut self, sequence: u64, id: TransactionId, path: &[u32]) -> Result<()> {
        let (of, before) = self.drafting(sequence, id)?;
        // The first layer says whether it is a path; the others agree.
        of.layers.iter_mut().try_for_each(|layer| layer.commit_path(id, path))?;
        of.length = before + path.len() as u32;
        of.open.pop();
        Ok(())
    }

    fn drop_draft(&mut self, sequence: u64, id: TransactionId) {
        let Ok(of) = self.sequence(sequence) else { return };
        if let Some(depth) = of.open.iter().position(|(open, _)| *open == id) {
            of.layers.iter_mut().for_each(|layer| layer.drop_draft(id));
            (of.length, of.step) = (of.open[depth].1, None);
            of.open.truncate(depth);
        }
    }

    fn kv(&self, sequence: u64, place: LayerPlace) -> Result<Option<Kv>> {
        match self.sequences.get(&sequence) {
            Some(of) => of.layers[self.index(place)].kv(),
            None => Err(CoreError::SequenceNotFound { sequence }.into()),
        }
    }

    fn stats(&self) -> Stats {
        let layers = self.sequences.values().flat_map(|of| &of.layers);
        layers.map(LayerCache::stats).fold(Stats::default(), Stats::plus)
    }

    fn pool_stats(&mut self) -> Result<Vec<PoolStats>> {
        Ok(Vec::new())
    }

    fn check_invariants(&self) -> std::result::Result<(), String> {
        self.sequences.values().flat_map(|of| &of.layers).try_for_each(LayerCache::check_invariants)
    }
}
