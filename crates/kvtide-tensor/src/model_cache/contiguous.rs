//! Sequences in tensors of their own: one growing cache or window for each layer.
//!
//! A step is a transaction in every layer of one sequence, a transaction of the user's is one below it; so a step that is
//! dropped leaves no trace, and the layers move together. A fork copies what the layers hold: O(tokens).

use std::ops::Range;

use kvtide_core::model::LayerPlace;
use kvtide_core::paged::{Explanation, PoolStats, Reason, StepRows, StepTables, Unseen};
use kvtide_core::{Error as CoreError, TransactionId};

pub(super) use super::contiguous_steps::LayersStep;
use super::layer_cache::LayerCache;
pub(super) use super::layer_cache::LayerSnapshot;
pub(super) use super::layer_sequences::{ContiguousLayers, Dropped, Sequence};
use super::paged::foreign;
use super::store::{Held, StepState, Store};
use crate::attention::{AttendOptions, Attended};
use crate::error::{Error, Result};
use crate::paged::{PagedPrefix, PromptOptions, StepTokens};
use crate::source::Source;
use crate::stats::Stats;
use crate::view::Kv;

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
        let of = self.resting(sequence)?;
        let length = of.length;
        let snapshots = of.layers.iter().map(LayerCache::snapshot).collect::<Result<Vec<_>>>()?;
        let mut fork = self.new_sequence()?;
        fork.restore(&snapshots, length)?;
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

    fn has(&self, sequence: u64) -> bool {
        self.sequences.contains_key(&sequence)
    }

    fn ids(&self) -> Vec<u64> {
        self.sequences.keys().copied().collect()
    }

    fn check_idle(&mut self, sequence: u64) -> Result<()> {
        self.idle(sequence).map(|_| ())
    }

    fn truncate(&mut self, sequence: u64, length: u32) -> Result<()> {
        let of = self.idle(sequence)?;
        if length > of.length {
            let (requested, seq_len) = (length.into(), of.length.into());
            let reason = "there are not so many";
            return Err(CoreError::CannotRollBack { requested, seq_len, reason }.into());
        }
        of.check_idle()?;
        of.layers.iter().try_for_each(|layer| layer.check_truncate(length))?;
        of.change(|layer| layer.truncate(length))?;
        of.length = length;
        Ok(())
    }

    fn snapshot(&mut self, sequence: u64) -> Result<Held> {
        let of = self.resting(sequence)?;
        let layers = of.layers.iter().map(LayerCache::snapshot).collect::<Result<_>>()?;
        Ok(Held::Contiguous(layers, of.length))
    }

    fn restore(&mut self, sequence: u64, held: &Held) -> Result<()> {
        let Held::Contiguous(snapshots, length) = held else { return Err(foreign()) };
        let of = self.idle(sequence)?;
        if snapshots.len() != of.layers.len() {
            return Err(foreign());
        }
        of.restore(snapshots, *length)
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
        Ok(StepState::Contiguous(self.begin_layers(tokens)?))
    }

    fn fill_tables(&self, _: &StepState, _: u32, _: &mut StepRows, _: StepTables<'_>) -> Result<()> {
        Err(Error::argument("kind", "contiguous", "paged: there are no blocks here"))
    }

    fn write(&mut self, step: &mut StepState, place: LayerPlace, k: Source<'_>, v: Source<'_>) -> Result<()> {
        let StepState::Contiguous(step) = step else { return Err(foreign()) };
        self.write_rows(step, self.index(place), k, v)
    }

    fn attend(
        &mut self,
        step: &StepState,
        place: LayerPlace,
        q: Source<'_>,
        options: &AttendOptions<'_>,
    ) -> Result<Attended> {
        let StepState::Contiguous(step) = step else { return Err(foreign()) };
        step.attend(self.index(place), &q, options)
    }

    fn commit_step(&mut self, step: &mut StepState, _: Option<&[u32]>) -> Result<()> {
        let StepState::Contiguous(step) = step else { return Err(foreign()) };
        self.commit_layers(step)
    }

    fn undo_step(&mut self, step: &mut StepState) -> Result<()> {
        let StepState::Contiguous(step) = step else { return Err(foreign()) };
        self.undo_layers(step);
        Ok(())
    }

    fn begin(&mut self, sequence: u64, parent: Option<TransactionId>) -> Result<TransactionId> {
        let of = match parent {
            Some(parent) => self.drafting(sequence, parent)?.0,
            None => self.idle(sequence)?,
        };
        let id = of.begin(parent)?;
        of.open.push((id, of.length));
        Ok(id)
    }

    fn drafted(&self, sequence: u64, id: TransactionId) -> Result<u32> {
        match self.sequences.get(&sequence) {
            Some(of) => of.layers[0].drafted(id),
            None => Err(CoreError::SequenceNotFound { sequence }.into()),
        }
    }

    fn check_draft(&mut self, sequence: u64, id: TransactionId) -> Result<()> {
        self.drafting(sequence, id).map(|_| ())
    }

    fn commit(&mut self, sequence: u64, id: TransactionId, tokens: Option<u64>) -> Result<()> {
        let (of, before) = self.drafting(sequence, id)?;
        let drafted = u64::from(of.length - before);
        if tokens.is_some_and(|tokens| tokens > drafted) {
            let expected = format!("at most {drafted}, the number of drafted tokens");
            return Err(Error::argument("n", tokens.unwrap_or(0), expected));
        }
        of.change(|layer| layer.commit(id, tokens))?;
        of.length = before + tokens.unwrap_or(drafted) as u32;
        of.open.pop();
        Ok(())
    }

    fn commit_path(&mut self, sequence: u64, id: TransactionId, path: &[u32]) -> Result<()> {
        let (of, before) = self.drafting(sequence, id)?;
        // The first layer says whether it is a path; the others agree.
        of.change(|layer| layer.commit_path(id, path))?;
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
            Some(of) if of.poisoned => Err(Error::Poisoned),
            Some(of) => of.layers[self.index(place)].kv(),
            None => Err(CoreError::SequenceNotFound { sequence }.into()),
        }
    }

    fn stats(&self) -> Stats {
        let layers = self.sequences.values().flat_map(|of| &of.layers);
        layers.map(LayerCache::stats).fold(Stats::default(), Stats::plus)
    }

    fn pool_stats(&mut self) -> Result<Vec<PoolStats>> {
        self.collect();
        Ok(Vec::new())
    }

    fn check_invariants(&self) -> std::result::Result<(), String> {
        let whole = self.sequences.values().filter(|of| !of.poisoned);
        whole.flat_map(|of| &of.layers).try_for_each(LayerCache::check_invariants)
    }
}
