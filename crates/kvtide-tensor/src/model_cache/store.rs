//! What both kinds of a model's cache can do.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use kvtide_core::TransactionId;
use kvtide_core::model::LayerPlace;
use kvtide_core::paged::{Explanation, PoolStats, StepRows, StepTables};

use super::contiguous::{LayerSnapshot, LayersStep};
use super::layer_rows::Rows;
use crate::error::Result;
use crate::memory::Budget;
use crate::paged::{PagedPrefix, PagedSnapshot, PagedStep, PromptOptions, StepTokens};
use crate::paged_kv_cache::PagedKvCache;
use crate::source::Source;
use crate::stats::Stats;
use crate::transaction::BeginOptions;
use crate::view::{Kv, View};

/// What the tables of a step are written to, group by group.
pub(super) type Tables<'a> = Vec<StepTables<'a>>;

/// All layers of all sequences. What is asked of one layer names its place among the groups.
pub(super) trait Store: DraftStore + Debug + Send {
    fn create(&mut self, options: PromptOptions<'_>) -> Result<u64>;
    fn create_from(&mut self, prefix: Vec<PagedPrefix>) -> Result<u64>;
    fn find(&mut self, tokens: &[u32], options: PromptOptions<'_>, partial: bool) -> Result<Vec<PagedPrefix>>;
    fn fork(&mut self, sequence: u64) -> Result<u64>;
    fn drop_sequence(&mut self, sequence: u64) -> Result<()>;
    /// Ends a sequence if there is one of this number: at once, or at the next change. Never refused.
    fn release_sequence(&mut self, sequence: u64);
    fn length(&self, sequence: u64) -> u32;
    fn committed(&self, sequence: u64) -> u32;
    fn has(&self, sequence: u64) -> bool;
    fn ids(&self) -> Vec<u64>;
    fn check_idle(&mut self, sequence: u64) -> Result<()>;
    fn truncate(&mut self, sequence: u64, length: u32) -> Result<()>;
    fn snapshot(&mut self, sequence: u64) -> Result<Held>;
    fn restore(&mut self, sequence: u64, held: &Held) -> Result<()>;
    fn ensure_capacities(&mut self, wanted: &[(u64, u32)]) -> Result<()>;
    fn can_allocate(&mut self, tokens: u32, watermark: u32) -> Result<bool>;
    fn can_allocate_prompt(&mut self, tokens: &[u32], options: PromptOptions<'_>, watermark: u32) -> Result<bool>;
    fn explain(&mut self, tokens: &[u32], options: PromptOptions<'_>) -> Result<Explanation>;
    fn forget_prefixes(&mut self) -> Result<()>;
    fn retain(&mut self, sequence: u64, tokens: Range<u32>, priority: u8, until: Option<u64>) -> Result<()>;
    fn advance_clock(&mut self, now: u64) -> Result<()>;
    /// The group whose blocks decide most of what is found; refused where there are no blocks.
    fn told(&self) -> Result<&PagedKvCache>;

    fn begin_step(&mut self, tokens: StepTokens<'_>) -> Result<StepState>;
    /// The same, its tables written for each group; refused before anything is taken.
    fn prepare_step(&mut self, of: StepTokens<'_>, rows: &mut [StepRows], tables: Tables<'_>) -> Result<StepState>;
    /// Refuses what `write` would refuse of a layer's tokens, where it would be too late in an open step.
    fn check_rows(&self, place: LayerPlace, sources: [&Source<'_>; 2], tokens: u32) -> Result<()>;
    /// Refuses a step that has ended, or one of whose sequences was dropped: whatever else may be wrong with a call.
    fn check_step(&mut self, step: &StepState) -> Result<()>;
    fn write(&mut self, step: &mut StepState, place: LayerPlace, k: Source<'_>, v: Source<'_>) -> Result<()>;
    /// What the step's queries see in a layer.
    fn rows(&mut self, step: &StepState, place: LayerPlace) -> Result<Rows<'_>>;
    fn commit_step(&mut self, step: &mut StepState, tokens: Option<&[u32]>) -> Result<()>;
    fn undo_step(&mut self, step: &mut StepState) -> Result<()>;

    /// Takes back what was dropped, in all groups or layers, so that they stay alike: before a read as before a change.
    fn collect(&mut self) -> Result<()>;

    /// The caches of all groups; in tensors there are none.
    fn groups(&mut self) -> Result<&mut [PagedKvCache]>;
    /// The cache of a group of layers; in tensors there is none.
    fn group(&mut self, group: u32) -> Result<&mut PagedKvCache>;
    /// What a layer of a sequence holds: `[batch, kvHeads, tokens, headDim]`, in blocks a copy of it.
    fn kv(&mut self, sequence: u64, place: LayerPlace) -> Result<Option<Kv>>;
    fn stats(&self) -> Stats;
    fn pool_stats(&mut self) -> Result<Vec<PoolStats>>;
    fn check_invariants(&self) -> std::result::Result<(), String>;
}

/// The transactions of sequences, the same in all layers.
pub(super) trait DraftStore {
    fn begin(&mut self, sequence: u64, parent: Option<TransactionId>, options: BeginOptions) -> Result<TransactionId>;
    fn drafted(&mut self, sequence: u64, id: TransactionId) -> Result<u32>;
    fn check_draft(&mut self, sequence: u64, id: TransactionId) -> Result<()>;
    fn commit(&mut self, sequence: u64, id: TransactionId, tokens: Option<u64>) -> Result<()>;
    fn commit_path(&mut self, sequence: u64, id: TransactionId, path: &[u32]) -> Result<()>;
    fn drop_draft(&mut self, sequence: u64, id: TransactionId);
    /// What the drafted tokens see of a layer, in memory of `budget`.
    fn draft_mask(&mut self, draft: (u64, TransactionId), place: LayerPlace, budget: &Arc<Budget>) -> Result<View>;
    fn draft_positions(&mut self, sequence: u64, id: TransactionId) -> Result<Vec<u64>>;
}

/// What keeps a sequence's content, group by group or layer by layer.
#[derive(Debug)]
pub(super) enum Held {
    Paged(Vec<PagedSnapshot>),
    Contiguous(Vec<LayerSnapshot>, u32),
}

/// An open step, group by group or layer by layer.
#[derive(Debug)]
pub(super) enum StepState {
    Paged(Vec<PagedStep>),
    Contiguous(LayersStep),
}
