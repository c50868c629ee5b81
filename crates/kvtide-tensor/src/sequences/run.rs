//! Step runs: steps that another thread computes while the cache is in use.
//!
//! ```text
//! let mut step = cache.begin_step(..)?
//! let mut run = cache.run_step(&mut step)?          Send, and borrows nothing
//!     run.write_layer(0, k, v)?                     on any thread, like cache.write_layer(&mut step, ..)
//!     run.attend_layer(0, q, &options)?             like cache.attend_layer(&step, ..), with the same bits
//!     run.gather(0, 0)?                             the tokens that the first sequence had before the step
//! cache.end_run(&mut step, run)?                    its layers count as written
//! cache.commit_step(&mut step, ids)?
//! ```
//!
//! During a run, calls that change only bookkeeping succeed: sequences are created, forked, dropped and truncated, prompts
//! are matched, snapshots taken, transactions opened and rolled back. Calls that would write to pages, copy or quantise them
//! fail with `BUSY`, including reads of a step's pages in place, which would zero slots that are not written yet;
//! `paged/group.rs` has the list. A cache has at most one run at a time.
//!
//! The step's sequences refuse other changes, as during any step. Dropping one of them, rolling the step back, or rolling a
//! transaction below it back succeeds: the run then still writes to blocks that may belong to others, but these are not read
//! before the run has ended, and `end_run` fails with `STALE_STEP` or `TRANSACTION_CLOSED`. A run that is dropped leaves the
//! step open, with the layers that were written before it. The memory lives as long as the run, even if the cache does not.
//!
//! The start costs O(pages), a layer O(bytes of its tokens), the end O(runs of slots * layers).

use std::sync::Arc;

use kvtide_core::model::ModelDescription;

use super::cache::PagedKvCache;
use super::layer_pages::{LayerPages, Rules};
use super::layer_place::{check_own, place, shared};
use super::step::PagedStep;
use crate::attention::{AttendOptions, Attended, Room};
use crate::base::error::{Error, Result};
use crate::base::life::RunPin;
use crate::paged::{GroupRun, StatePlace};
use crate::tensor::source::Source;
use crate::tensor::view::Kv;

/// The layers of an open step of a [`PagedKvCache`], to be written and attended to on any thread, without access to the
/// cache.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use kvtide_tensor::{PagedKvCache, PagedKvCacheOptions, StepTokens};
///
/// let mut cache = PagedKvCache::new(PagedKvCacheOptions { capacity: 4, head_dim: 2, ..Default::default() })?;
/// let sequence = cache.create_sequence()?;
/// let mut step = cache.begin_step(StepTokens { sequences: &[sequence], offsets: Some(&[0, 3]), ..Default::default() })?;
/// let mut run = cache.run_step(&mut step)?;
/// let computed = std::thread::spawn(move || {
///     let rows = Tensor::ones((1, 3, 2), DType::F32, &Device::Cpu)?;
///     run.write_layer(0, &rows, &rows)?;
///     let q = Tensor::ones((3, 1, 2), DType::F32, &Device::Cpu)?;
///     let attended = run.attend_layer(0, &q, &Default::default())?;
///     Ok::<_, kvtide_tensor::Error>((run, attended))
/// });
/// let other = cache.create_sequence()?;
/// let (run, attended) = computed.join().expect("no panic")?;
/// assert_eq!(attended.out.shape(), [3, 1, 2]);
/// cache.end_run(&mut step, run)?;
/// cache.commit_step(&mut step, None)?;
/// assert_eq!((cache.sequence_length(sequence), cache.sequence_length(other)), (3, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a run that is dropped leaves its step open, as it was before"]
pub struct StepRun {
    /// The part of each group.
    pub(super) groups: Vec<GroupRun>,
    pub(super) model: Arc<ModelDescription>,
    pub(super) state_places: Arc<[(usize, StatePlace)]>,
    cache: u64,
    pin: Arc<RunPin>,
}

impl PagedKvCache {
    /// Prepares an open step for computation without access to the cache. One at a time: fails with `BUSY` during another
    /// run, or while a background call reads the cache.
    pub fn run_step(&mut self, step: &mut PagedStep) -> Result<StepRun> {
        self.check_pages()?;
        self.collect()?;
        self.check_step(step)?;
        let groups = self.groups.iter_mut().zip(&step.groups).map(|(group, of)| group.run_step(of));
        let groups = groups.collect::<Result<_>>()?;
        let pin = RunPin::new(self.groups.iter().map(|group| group.life().clone()));
        step.run = Arc::downgrade(&pin);
        let (model, state_places) = (self.model.clone(), self.state_places.clone());
        Ok(StepRun { groups, model, state_places, cache: self.id, pin })
    }

    /// Ends a run: the layers that it has written count as written. Succeeds even while a background call reads the cache.
    ///
    /// Fails with `STALE_STEP` if a sequence of the step was dropped meanwhile, and with `TRANSACTION_CLOSED` if the step
    /// has ended; the run is gone in any case.
    pub fn end_run(&mut self, step: &mut PagedStep, run: StepRun) -> Result<()> {
        self.collect()?;
        if run.cache != self.id {
            return Err(Error::argument("run", "of another cache", "a run of this cache"));
        }
        if !std::ptr::eq(step.run.as_ptr(), Arc::as_ptr(&run.pin)) {
            return Err(Error::argument("run", "of another step", "the run of this step"));
        }
        self.check_step(step)?;
        let mut groups = self.groups.iter_mut().zip(&mut step.groups).zip(&run.groups);
        groups.try_for_each(|((group, of), run)| group.end_run(of, run))
    }
}

impl StepRun {
    /// The number of tokens of all sequences.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.groups[0].tokens()
    }

    /// The model of its layers.
    #[must_use]
    pub fn model(&self) -> &ModelDescription {
        &self.model
    }

    /// The tokens that a sequence of the step had in a layer before the step, as in [`PagedKvCache::gather`]: for models
    /// that need copies of past K and V. O(bytes of the tokens).
    pub fn gather(&self, layer: u32, sequence: usize) -> Result<Kv> {
        let place = place(&self.model, layer)?;
        self.groups[place.group as usize].gather(place.index, sequence)
    }

    /// True if a layer stores no keys and values: it reads those of another layer.
    pub fn is_shared(&self, layer: u32) -> Result<bool> {
        place(&self.model, layer)?;
        Ok(shared(&self.model, layer).is_some())
    }

    /// Like [`PagedKvCache::write_layer`].
    pub fn write_layer<'a>(&mut self, layer: u32, k: impl Into<Source<'a>>, v: impl Into<Source<'a>>) -> Result<()> {
        let place = place(&self.model, layer)?;
        check_own(&self.model, layer)?;
        self.groups[place.group as usize].write_layer(place.index, [k.into(), v.into()])
    }

    /// Like [`PagedKvCache::step_layer`]: fails for a layer that is not written, or whose source layer is not.
    pub fn layer(&self, layer: u32) -> Result<LayerPages<'_>> {
        let place = place(&self.model, layer)?;
        let group = &self.groups[place.group as usize];
        let (pages, offsets) = (group.layer(place.index)?, Some(group.offsets()));
        Ok(LayerPages { pages, offsets, rules: Rules::of(&self.model, layer) })
    }

    /// Like [`PagedKvCache::attend_layer`].
    pub fn attend_layer<'q>(
        &self,
        layer: u32,
        q: impl Into<Source<'q>>,
        options: &AttendOptions<'_>,
    ) -> Result<Attended> {
        self.layer(layer)?.attend(q, options)
    }

    /// Like [`attend_layer`](Self::attend_layer), into memory that `take` returns once everything else is known to fit.
    pub fn attend_layer_with<'q, 'o>(
        &self,
        layer: u32,
        q: impl Into<Source<'q>>,
        options: &AttendOptions<'_>,
        take: impl FnOnce(&Room) -> Result<(&'o mut [u8], &'o mut [f32])>,
    ) -> Result<()> {
        self.layer(layer)?.attend_with(q, options, take)
    }
}

#[expect(dead_code, reason = "keeps the promise that it may move to another thread")]
fn runs_are_send() {
    fn send<T: Send + Sync + 'static>() {}
    send::<StepRun>();
}
