//! One layer for the queries of a step, or of sequences: its pages in place, and the model's attention rules.
//!
//! ```text
//! pages = cache.step_layer(&step, layer)?     borrows the cache
//! pages.pinned()                              changes of the cache fail with BUSY until it is dropped
//! pages.attend(q, &options)?                  here, or on another thread
//! ```
//!
//! The request costs O(pages).

use std::borrow::Cow;

use candle_core::Tensor;
use kvtide_core::counted;
use kvtide_core::model::{AttentionDescription, LayerKind, ModelDescription};

use super::cache::PagedKvCache;
use crate::attention::{AttendOptions, Attended, KvRows, Room, attend, attend_with};
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::paged::PageRows;
use crate::tensor::source::Source;
use crate::tensor::view::View;

/// A layer to attend to.
#[derive(Clone, Debug)]
pub struct LayerPages<'a> {
    pub(super) pages: PageRows<'a>,
    /// The index of the first query of each sequence in a step, followed by the number of queries.
    pub(super) offsets: Option<Vec<i32>>,
    pub(super) rules: Rules,
}

/// The attention rules of a layer in the model's description.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    pub scale: Option<f32>,
    pub softcap: Option<f32>,
    pub window: Option<u32>,
    pub sinks: u32,
    pub query_heads: Option<u32>,
}

impl Rules {
    pub fn of(model: &ModelDescription, layer: u32) -> Self {
        let (window, sinks) = match model.kind(layer) {
            LayerKind::Sliding { window, sinks } => (Some(window), sinks),
            _ => (None, 0),
        };
        let attention = model.attention();
        let AttentionDescription { num_query_heads: query_heads, scale, softcap, .. } = *attention;
        Rules { scale, softcap, window, sinks, query_heads }
    }

    /// Fails if the queries have another number of heads than the model; a wrong rank is reported elsewhere.
    fn check_heads(&self, q: &Source<'_>) -> Result<()> {
        let Some(heads) = self.query_heads else { return Ok(()) };
        if !(3..=4).contains(&q.rank()) || q.dims()[1] == heads as usize {
            return Ok(());
        }
        let expected = format!("{}, the number in the model's description", counted(heads.into(), "head"));
        Err(Error::ShapeMismatch { argument: "q", value: q.dims().to_vec(), expected })
    }

    /// Fills missing options with the model's rules. A mask over a draft tree replaces the window: it says how far nodes
    /// attend.
    pub fn or<'a>(&self, options: &AttendOptions<'a>, has_tree: bool) -> AttendOptions<'a> {
        let is_masked = has_tree && options.mask.is_some() && options.tree.is_none();
        let is_named = options.window.is_some() || is_masked;
        AttendOptions {
            scale: options.scale.or(self.scale),
            softcap: options.softcap.or(self.softcap),
            window: if is_named { options.window } else { self.window },
            sinks: if is_named { options.sinks } else { self.sinks },
            ..options.clone()
        }
    }
}

impl PagedKvCache {
    /// The pages of these sequences in a layer, with the trees at their ends: those of open transactions and steps.
    pub fn pages(&mut self, layer: u32, sequences: &[u64]) -> Result<PageRows<'_>> {
        self.align()?;
        let (group, layer) = self.group_of(layer)?;
        group.pages(layer, sequences)
    }

    /// The pages of block tables of the layer's group: for each sequence one row of block indices, all rows equally long,
    /// and its length in tokens. Blocks outside the window are [`NO_BLOCK`](kvtide_core::paged::NO_BLOCK) in a row.
    pub fn pages_of_tables(&mut self, layer: u32, tables: &[i32], lengths: &[i32]) -> Result<PageRows<'_>> {
        self.align()?;
        let (group, layer) = self.group_of(layer)?;
        group.pages_of_tables(layer, tables, lengths)
    }

    /// A layer of these sequences to attend to, with the model's rules.
    pub fn layer_pages(&mut self, layer: u32, sequences: &[u64]) -> Result<LayerPages<'_>> {
        self.place(layer)?;
        let rules = Rules::of(&self.model, layer);
        Ok(LayerPages { pages: self.pages(layer, sequences)?, offsets: None, rules })
    }

    /// A layer to attend to by block tables, with the model's rules.
    pub fn layer_pages_of_tables(&mut self, layer: u32, tables: &[i32], lengths: &[i32]) -> Result<LayerPages<'_>> {
        self.place(layer)?;
        let rules = Rules::of(&self.model, layer);
        Ok(LayerPages { pages: self.pages_of_tables(layer, tables, lengths)?, offsets: None, rules })
    }
}

impl LayerPages<'_> {
    /// The same pages, independent of the borrow of the cache: until they and their clones are dropped, calls that would
    /// change the cache fail with `BUSY`. They can be read after the cache is gone.
    #[must_use]
    pub fn pinned(self) -> LayerPages<'static> {
        LayerPages { pages: self.pages.pinned(), offsets: self.offsets, rules: self.rules }
    }

    /// Like [`PagedKvCache::attend_layer`](super::PagedKvCache::attend_layer).
    pub fn attend<'q>(&self, q: impl Into<Source<'q>>, options: &AttendOptions<'_>) -> Result<Attended> {
        self.ask(q.into(), options, |queries, options| queries.attend((&self.pages).into(), options))
    }

    /// Like [`attend`](Self::attend), into memory that `take` returns once everything else is known to fit.
    pub fn attend_with<'q, 'o>(
        &self,
        q: impl Into<Source<'q>>,
        options: &AttendOptions<'_>,
        take: impl FnOnce(&Room) -> Result<(&'o mut [u8], &'o mut [f32])>,
    ) -> Result<()> {
        self.ask(q.into(), options, |queries, options| queries.attend_with((&self.pages).into(), options, take))
    }

    fn ask<R>(
        &self,
        q: Source<'_>,
        options: &AttendOptions<'_>,
        ask: impl FnOnce(&Queries<'_>, &AttendOptions<'_>) -> Result<R>,
    ) -> Result<R> {
        self.rules.check_heads(&q)?;
        let has_tree = (0..self.pages.count()).any(|sequence| self.pages.tree(sequence).is_some());
        let options = self.rules.or(options, has_tree);
        let query_offsets = options.query_offsets.or(self.offsets.as_deref());
        ask(&Queries::tokens_first(&q)?, &AttendOptions { query_offsets, ..options })
    }
}

/// A source, or a tensor that was made from it.
#[derive(Debug)]
enum Shaped<'a> {
    Given(Source<'a>),
    Made(Cow<'a, Tensor>),
}

/// Queries of one sequence in the shape that pages need, `[tokens, heads, headDim]`. They may have been given as `[1, heads,
/// tokens, headDim]`; the result then has that shape too.
#[derive(Debug)]
struct Queries<'a> {
    shaped: Shaped<'a>,
    /// True if a batch axis of size one was removed.
    changed: bool,
}

impl<'a> Queries<'a> {
    fn source(&self) -> Source<'_> {
        match &self.shaped {
            Shaped::Given(source) => source.clone(),
            Shaped::Made(tensor) => Source::Tensor(tensor),
        }
    }

    /// Attends, and returns the result in the shape of the given queries.
    fn attend(&self, kv: KvRows<'_>, options: &AttendOptions<'_>) -> Result<Attended> {
        restored(attend(self.source(), kv, options)?, self)
    }

    /// Like [`Queries::attend`], into memory that `take` returns.
    fn attend_with<'o>(
        &self,
        kv: KvRows<'_>,
        options: &AttendOptions<'_>,
        take: impl FnOnce(&Room) -> Result<(&'o mut [u8], &'o mut [f32])>,
    ) -> Result<()> {
        if !self.changed {
            return attend_with(self.source(), kv, options, take);
        }
        let Attended { out, lse } = self.attend(kv, options)?;
        let room = Room { shape: out.shape().to_vec(), dtype: out.dtype(), sums: lse.len() };
        let (bytes, sums) = take(&room)?;
        room.check(bytes, sums)?;
        out.read_into(bytes)?;
        sums.copy_from_slice(&lse);
        Ok(())
    }

    /// The queries as `[tokens, heads, dim]`, from either shape.
    fn tokens_first(source: &Source<'a>) -> Result<Self> {
        let changed = source.rank() == 4 && source.dims()[0] == 1;
        let shaped = match source {
            _ if !changed => Shaped::Given(source.clone()),
            Source::Host(host) => Shaped::Given(Source::Host(host.clone().without_batch())),
            Source::Tensor(tensor) => Shaped::Made(Cow::Owned(tensor.squeeze(0)?.transpose(0, 1)?)),
            Source::View(view) => Shaped::Made(Cow::Owned(view.tensor()?.squeeze(0)?.transpose(0, 1)?)),
        };
        Ok(Queries { shaped, changed })
    }
}

/// Restores the shape of the given queries in a result.
fn restored(attended: Attended, queries: &Queries<'_>) -> Result<Attended> {
    if !queries.changed {
        return Ok(attended);
    }
    let out = attended.out.tensor()?.transpose(0, 1)?.unsqueeze(0)?;
    Ok(Attended { out: View::from_tensor(&out, &Budget::process())?, lse: attended.lse })
}

#[expect(dead_code, reason = "keeps the promise that it may move to another thread")]
fn pinned_pages_are_send() {
    fn send<T: Send + Sync>() {}
    send::<LayerPages<'static>>();
}
