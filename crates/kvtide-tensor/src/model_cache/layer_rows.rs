//! What the queries of a step, or of sequences in blocks, see in one layer: its keys and values where they lie, and the model's rules.
//!
//! ```text
//! rows = cache.layer_rows(&step, layer)?      borrows the cache
//! rows.pinned()?                              changes of the cache are refused with BUSY until it is dropped
//! rows.attend(q, &options)?                   here, or on another thread
//! ```
//!
//! Asking costs O(pages), or O(1) in tensors.

use kvtide_core::model::{AttentionDescription, LayerKind, ModelDescription};
use kvtide_core::{Tree, counted};

use super::shapes::Queries;
use crate::attention::{AttendOptions, Attended, KvRows, Room};
use crate::error::{Error, Result};
use crate::paged::PageRows;
use crate::source::Source;
use crate::view::Kv;

/// A layer, to attend to.
#[derive(Clone, Debug)]
pub struct LayerRows<'a> {
    pub(super) rows: Rows<'a>,
    pub(super) rules: Rules,
}

/// Keys and values of a layer.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each call, and it is not moved")]
pub(super) enum Rows<'a> {
    /// The pages of all sequences, and where the queries of each begin in a step.
    Pages(PageRows<'a>, Option<Vec<i32>>),
    /// The tensors of one, and the tree that its last tokens are.
    Tensors(Kv, Option<Tree>),
}

/// What the model says of a layer's attention.
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

    /// Refuses queries of another number of heads than the model has; of another rank they are refused elsewhere.
    fn check_heads(&self, q: &Source<'_>) -> Result<()> {
        let Some(heads) = self.query_heads else { return Ok(()) };
        if !(3..=4).contains(&q.rank()) || q.dims()[1] == heads as usize {
            return Ok(());
        }
        let expected = format!("{}, as the model's description says", counted(heads.into(), "head"));
        Err(Error::ShapeMismatch { argument: "q", value: q.dims().to_vec(), expected })
    }

    /// Where the call says nothing else, the model's hold. Of a draft tree under a mask, that says how far nodes see.
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

impl LayerRows<'_> {
    /// The same, apart from the cache: until they and their clones are dropped, calls that would change what is read are refused
    /// with `BUSY`. They can be read when the cache is gone.
    pub fn pinned(self) -> Result<LayerRows<'static>> {
        let rows = match self.rows {
            Rows::Pages(pages, offsets) => Rows::Pages(pages.pinned(), offsets),
            Rows::Tensors(kv, tree) => Rows::Tensors(Kv { k: kv.k.pinned()?, v: kv.v.pinned()? }, tree),
        };
        Ok(LayerRows { rows, rules: self.rules })
    }

    /// As [`ModelCache::attend_layer`](super::ModelCache::attend_layer).
    pub fn attend<'q>(&self, q: impl Into<Source<'q>>, options: &AttendOptions<'_>) -> Result<Attended> {
        self.ask(q.into(), options, |queries, kv, options| queries.attend(kv, options))
    }

    /// The same, into memory that `take` gives, once everything else is known to fit.
    pub fn attend_with<'q, 'o>(
        &self,
        q: impl Into<Source<'q>>,
        options: &AttendOptions<'_>,
        take: impl FnOnce(&Room) -> Result<(&'o mut [u8], &'o mut [f32])>,
    ) -> Result<()> {
        self.ask(q.into(), options, |queries, kv, options| queries.attend_with(kv, options, take))
    }

    /// True when `memory` lies in what is read, so that writing there would change it. Nobody outside has memory of pages.
    #[must_use]
    pub fn overlaps(&self, memory: *const u8, bytes: usize) -> bool {
        match &self.rows {
            Rows::Pages(..) => false,
            Rows::Tensors(Kv { k, v }, _) => k.overlaps(memory, bytes) || v.overlaps(memory, bytes),
        }
    }

    fn ask<R>(
        &self,
        q: Source<'_>,
        options: &AttendOptions<'_>,
        ask: impl FnOnce(&Queries<'_>, KvRows<'_>, &AttendOptions<'_>) -> Result<R>,
    ) -> Result<R> {
        self.rules.check_heads(&q)?;
        let has_tree = match &self.rows {
            Rows::Pages(pages, _) => (0..pages.count()).any(|sequence| pages.tree(sequence).is_some()),
            Rows::Tensors(_, tree) => tree.is_some(),
        };
        let options = self.rules.or(options, has_tree);
        match &self.rows {
            Rows::Pages(pages, offsets) => {
                let query_offsets = options.query_offsets.or(offsets.as_deref());
                ask(&Queries::tokens_first(&q)?, pages.into(), &AttendOptions { query_offsets, ..options })
            }
            Rows::Tensors(kv, tree) => {
                let own = tree.as_ref().filter(|_| options.tree.is_none() && options.mask.is_none());
                let ends = [0, own.map_or(0, |tree| tree.len() as i32)];
                let tree_offsets = if own.is_some() { Some(&ends[..]) } else { options.tree_offsets };
                let tree = own.map(Tree::parents).or(options.tree);
                let options = AttendOptions { query_offsets: None, tree, tree_offsets, ..options };
                ask(&Queries::batched(&q)?, kv.into(), &options)
            }
        }
    }
}

#[expect(dead_code, reason = "keeps the promise that it may move to another thread")]
fn pinned_rows_are_send() {
    fn send<T: Send + Sync>() {}
    send::<LayerRows<'static>>();
}
