//! Sequences in tensors of their own: one growing cache or window for each layer.
//!
//! A step is a transaction in every layer of one sequence, a transaction of the user's is one below it; so a step that is
//! dropped leaves no trace, and the layers move together. A fork copies what the layers hold: O(tokens).

use std::collections::BTreeSet;
use std::ops::Range;

use kvtide_core::Error as CoreError;
use kvtide_core::model::LayerPlace;
use kvtide_core::paged::{Explanation, PoolStats, Reason, StepRows};

pub(super) use super::contiguous_steps::LayersStep;
use super::layer_cache::LayerCache;
pub(super) use super::layer_cache::LayerSnapshot;
use super::layer_rows::Rows;
pub(super) use super::layer_sequences::ContiguousLayers;
use super::options::no_blocks;
use super::paged::foreign;
use super::store::{Held, StepState, Store, Tables};
use crate::error::{Error, Result};
use crate::paged::{PagedPrefix, PromptOptions, StepTokens};
use crate::paged_kv_cache::PagedKvCache;
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
        match self.sequences.get(&sequence) {
            Some(of) if !of.poisoned => of.check_idle()?,
            Some(_) => {}
            None => return Err(CoreError::SequenceNotFound { sequence }.into()),
        }
        self.release_sequence(sequence);
        Ok(())
    }

    fn release_sequence(&mut self, sequence: u64) {
        self.sequences.remove(&sequence);
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

    fn explain(&mut self, tokens: &[u32], _: PromptOptions<'_>) -> Result<Explanation> {
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

    fn told(&self) -> Result<&PagedKvCache> {
        Err(no_blocks())
    }

    /// Layers that slide have their room.
    fn ensure_capacities(&mut self, wanted: &[(u64, u32)]) -> Result<()> {
        let mut named = BTreeSet::new();
        for &(sequence, tokens) in wanted {
            if !named.insert(sequence) {
                return Err(Error::argument("sequences", sequence, "each sequence once"));
            }
            let of = self.resting(sequence)?;
            of.check_idle()?;
            of.layers.iter().try_for_each(|layer| layer.check_room(tokens.saturating_sub(of.length)))?;
        }
        for &(sequence, tokens) in wanted {
            let of = self.sequence(sequence)?;
            let more = tokens.saturating_sub(of.length);
            of.layers.iter_mut().try_for_each(|layer| layer.make_room(more))?;
        }
        Ok(())
    }

    fn can_allocate(&mut self, tokens: u32, _: u32) -> Result<bool> {
        Ok(tokens <= self.options.max_seq_len)
    }

    fn can_allocate_prompt(&mut self, tokens: &[u32], _: PromptOptions<'_>, _: u32) -> Result<bool> {
        Ok(tokens.len() as u64 <= self.options.max_seq_len.into())
    }

    fn begin_step(&mut self, tokens: StepTokens<'_>) -> Result<StepState> {
        Ok(StepState::Contiguous(self.begin_layers(tokens)?))
    }

    fn prepare_step(&mut self, _: StepTokens<'_>, _: &mut [StepRows], _: Tables<'_>) -> Result<StepState> {
        Err(no_blocks())
    }

    /// A step takes nothing from others, so that one that is dropped is soon enough.
    fn check_rows(&self, _: LayerPlace, _: [&Source<'_>; 2], _: u32) -> Result<()> {
        Ok(())
    }

    fn check_step(&mut self, step: &StepState) -> Result<()> {
        let StepState::Contiguous(step) = step else { return Err(foreign()) };
        self.stepping(step).map(drop)
    }

    fn write(&mut self, step: &mut StepState, place: LayerPlace, k: Source<'_>, v: Source<'_>) -> Result<()> {
        let StepState::Contiguous(step) = step else { return Err(foreign()) };
        self.write_rows(step, self.index(place), k, v)
    }

    fn rows(&mut self, step: &StepState, place: LayerPlace) -> Result<Rows<'_>> {
        let StepState::Contiguous(step) = step else { return Err(foreign()) };
        self.shown(step, self.index(place)).map(|(kv, tree)| Rows::Tensors(kv, tree))
    }

    fn commit_step(&mut self, step: &mut StepState, _: Option<&[u32]>) -> Result<()> {
        let StepState::Contiguous(step) = step else { return Err(foreign()) };
        self.commit_layers(step)
    }

    fn undo_step(&mut self, step: &mut StepState) -> Result<()> {
        let StepState::Contiguous(step) = step else { return Err(foreign()) };
        self.undo_layers(step)
    }

    fn collect(&mut self) -> Result<()> {
        self.undo_dropped();
        Ok(())
    }

    fn groups(&mut self) -> Result<&mut [PagedKvCache]> {
        Err(Error::argument("cache", "one in tensors", "one in blocks: in tensors there are no pages"))
    }

    fn group(&mut self, _: u32) -> Result<&mut PagedKvCache> {
        self.groups().map(|groups| &mut groups[0])
    }

    fn kv(&mut self, sequence: u64, place: LayerPlace) -> Result<Option<Kv>> {
        let index = self.index(place);
        self.sequence(sequence)?.layers[index].kv()
    }

    fn stats(&self) -> Stats {
        let layers = self.sequences.values().flat_map(|of| &of.layers);
        layers.map(LayerCache::stats).fold(Stats::default(), Stats::plus)
    }

    fn pool_stats(&mut self) -> Result<Vec<PoolStats>> {
        self.undo_dropped();
        Ok(Vec::new())
    }

    fn check_invariants(&self) -> std::result::Result<(), String> {
        let whole = self.sequences.values().filter(|of| !of.poisoned);
        whole.flat_map(|of| &of.layers).try_for_each(LayerCache::check_invariants)
    }
}
