//! The keys and values that attention reads: of one length for a whole batch, or of each sequence's own length.
//!
//! A cache with a window drops tokens that leave it: a contiguous cache token by token, a paged cache block by block.
//!
//! ```text
//! positions   [ sinks ) dropped [ kept ............ )
//!                               a query attends back to here
//! ```
//!
//! A query that would attend to a dropped token is refused; otherwise its result would depend on the block size, or on the
//! time of the call. For tensors, a view of the keys knows the window, as it knows their positions. O(queries) if tokens
//! were dropped, else O(sequences).

use std::ops::Range;

use candle_core::Tensor;
use kvtide_core::paged::{KeyOrValue, PageFormat, Window};

use super::asked::{Asked, Axes, KeyPositions};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::paged::PageRows;
use crate::tensor::source::{Resolved, Source};
use crate::tensor::view::{Kv, View};

/// Keys and values, in place.
#[derive(Clone, Debug)]
pub enum KvRows<'a> {
    /// `[batch, heads, tokens, dim]`: views of a cache, or tensors.
    Batched {
        /// The keys.
        k: Source<'a>,
        /// The values; their head dim may differ.
        v: Source<'a>,
    },
    /// `[tokens, heads, dim]`, with the sequences one after the other.
    Ragged {
        /// The keys.
        k: Source<'a>,
        /// The values; their head dim may differ.
        v: Source<'a>,
        /// The index of the first token of each sequence, followed by the number of tokens.
        offsets: &'a [i32],
    },
    /// Pages of a paged cache; queries are `[tokens, heads, dim]`.
    Pages(&'a PageRows<'a>),
}

impl KvRows<'_> {
    /// Fails if a view can no longer be read.
    pub(in crate::attention) fn check(&self) -> Result<()> {
        let (KvRows::Batched { k, v } | KvRows::Ragged { k, v, .. }) = self else { return Ok(()) };
        for source in [k, v] {
            if let Source::View(view) = source {
                view.check()?;
            }
        }
        Ok(())
    }

    /// The pages, if keys and values are in pages.
    pub(in crate::attention) fn pages(&self) -> Option<&PageRows<'_>> {
        match self {
            KvRows::Pages(pages) => Some(pages),
            _ => None,
        }
    }

    /// The keys of a batch, if they are a cache's view along its sequence axis.
    fn shown(&self) -> Option<&View> {
        match self {
            KvRows::Batched { k: Source::View(view), .. } => {
                Some(*view).filter(|view| view.sequence_axis() == Some(Axes::BATCHED.tokens))
            }
            _ => None,
        }
    }

    /// The window of the cache that is read.
    pub(super) fn window(&self) -> Option<Window> {
        match self {
            KvRows::Pages(pages) => pages.window(),
            _ => self.shown()?.window().map(|of| of.window),
        }
    }

    /// True if the cache that is read reports that some of the last keys are nodes of a draft tree.
    pub(super) fn has_tree(&self) -> bool {
        match self {
            KvRows::Pages(pages) => (0..pages.count()).any(|index| pages.tree(index).is_some()),
            _ => self.shown().and_then(View::window).is_some_and(|of| of.is_tree),
        }
    }

    /// The positions of a sequence that the cache has dropped.
    fn gone(&self, sequence: usize) -> Range<i64> {
        let Range { start, end } = match self {
            KvRows::Pages(pages) => {
                let gap = pages.gap(sequence);
                gap.start.into()..gap.end.into()
            }
            _ => self.shown().map_or(0..0, View::gone),
        };
        start as i64..end as i64
    }
}

impl<'a> From<&'a Kv> for KvRows<'a> {
    fn from(kv: &'a Kv) -> Self {
        KvRows::Batched { k: (&kv.k).into(), v: (&kv.v).into() }
    }
}

impl<'a> From<&'a PageRows<'a>> for KvRows<'a> {
    fn from(pages: &'a PageRows<'a>) -> Self {
        KvRows::Pages(pages)
    }
}

/// Keys and values with known strides.
#[expect(clippy::large_enum_variant, reason = "there is one for each call, and it is not moved")]
pub(in crate::attention) enum ResolvedRows<'a> {
    /// Tensors, views and the caller's memory.
    Strided { k: Resolved<'a>, v: Resolved<'a>, axes: Axes },
    /// Pages, which need no resolving.
    Pages(&'a PageRows<'a>),
}

impl<'a> ResolvedRows<'a> {
    /// Resolves keys and values; fails if they do not fit together.
    pub fn new(rows: &KvRows<'a>) -> Result<Self> {
        let (k, v, axes) = match rows {
            KvRows::Batched { k, v } => (k, v, Axes::BATCHED),
            KvRows::Ragged { k, v, .. } => (k, v, Axes::RAGGED),
            KvRows::Pages(pages) => {
                check_floats(pages)?;
                return Ok(ResolvedRows::Pages(pages));
            }
        };
        let (k, v) = (resolve(k, "k", axes)?, resolve(v, "v", axes)?);
        let last = axes.rank - 1;
        if k.dims[..last] != v.dims[..last] {
            let mut expected = k.dims.to_vec();
            expected[last] = v.dims[last];
            let expected = format!("{expected:?}, the shape of k except for the head dim");
            return Err(Error::ShapeMismatch { argument: "v", value: v.dims.to_vec(), expected });
        }
        Ok(ResolvedRows::Strided { k, v, axes })
    }

    /// The axes of queries over these rows.
    pub fn axes(&self) -> Axes {
        match self {
            ResolvedRows::Strided { axes, .. } => *axes,
            ResolvedRows::Pages(_) => Axes::RAGGED,
        }
    }

    /// The number of tokens of keys and values, of all sequences together if they are in one list; 0 for pages, which know
    /// each sequence's own.
    pub fn tokens(&self) -> usize {
        match self {
            ResolvedRows::Strided { k, axes, .. } => k.dims[axes.tokens],
            ResolvedRows::Pages(_) => 0,
        }
    }

    /// The number of KV heads.
    pub fn heads(&self) -> usize {
        match self {
            ResolvedRows::Strided { k, axes, .. } => k.dims[axes.heads],
            ResolvedRows::Pages(pages) => pages.heads(),
        }
    }

    /// The number of elements in a row of keys, and in a row of values.
    pub fn head_dims(&self) -> [usize; 2] {
        match self {
            ResolvedRows::Strided { k, v, axes } => [k.dims[axes.rank - 1], v.dims[axes.rank - 1]],
            ResolvedRows::Pages(pages) => KeyOrValue::BOTH.map(|part| pages.head_dim(part)),
        }
    }

    /// The tensors to read from, if they are tensors.
    pub fn tensors(&self) -> [Option<&Tensor>; 2] {
        match self {
            ResolvedRows::Strided { k, v, .. } => [k.tensor(), v.tensor()],
            ResolvedRows::Pages(pages) => [Some(pages.slabs.slab.storage()), Some(pages.slabs.staging.storage())],
        }
    }

    /// Keys and values, unless they are in pages.
    pub fn sources(&self) -> [Option<&Resolved<'a>>; 2] {
        match self {
            ResolvedRows::Strided { k, v, .. } => [Some(k), Some(v)],
            ResolvedRows::Pages(_) => [None; 2],
        }
    }
}

/// The positions of the keys of a batch: those of a cache's view, else 0, 1, 2 and so on.
pub(in crate::attention) fn key_positions(k: &Source<'_>, tokens: usize) -> KeyPositions {
    if let Source::View(view) = k
        && view.sequence_axis() == Some(Axes::BATCHED.tokens)
    {
        // Even a view without tokens knows the position of the next one.
        let mut runs = [(view.key_positions()[0] as i64, 0), (view.next_position() as i64, 0)];
        for ((slot, &position), run) in runs.iter_mut().zip(view.key_positions()).zip(view.runs().iter()) {
            *slot = (position as i64, run.len as usize);
        }
        return KeyPositions::new(runs);
    }
    KeyPositions::from_zero(tokens)
}

/// Checks that offsets rise from 0 to `total`.
pub(in crate::attention) fn check_offsets(argument: &'static str, offsets: &[i32], total: usize) -> Result<()> {
    let expected = || format!("offsets that rise from 0 to {total}, the number of tokens");
    if offsets.len() < 2 {
        let expected = format!("at least 2 offsets: {}", expected());
        return Err(Error::argument(argument, format!("{offsets:?}"), expected));
    }
    let wrong = |place: usize| match place {
        0 => offsets[0] != 0,
        _ => offsets[place] < offsets[place - 1] || offsets[place] as usize > total,
    };
    if let Some(place) = (0..offsets.len()).find(|&place| wrong(place)) {
        return Err(Error::argument(argument, format!("{} at {place}", offsets[place]), expected()));
    }
    match offsets.last() {
        Some(&last) if last as usize == total => Ok(()),
        last => Err(Error::argument(argument, format!("{} at the end", last.copied().unwrap_or(0)), expected())),
    }
}

/// Fails if pages have no floats.
fn check_floats(rows: &PageRows<'_>) -> Result<()> {
    match rows.slabs.shape.pages.section(KeyOrValue::Key).format {
        PageFormat::U8 => Err(Error::DtypeMismatch {
            argument: "cache",
            value: "u8".to_owned(),
            expected: "f32, f16, bf16 or a low-bit format".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Resolves a source as rows of floats, each contiguous; copies it first if its rows are not.
pub(in crate::attention) fn resolve<'a>(
    source: &Source<'a>,
    argument: &'static str,
    axes: Axes,
) -> Result<Resolved<'a>> {
    let mut resolved = source.resolve(argument, axes.tokens)?;
    if resolved.dims.len() != axes.rank {
        let (value, expected) = (resolved.dims.to_vec(), axes.names().to_owned());
        return Err(Error::ShapeMismatch { argument, value, expected });
    }
    if resolved.dtype == DType::U8 {
        let (value, expected) = ("u8".to_owned(), "f32, f16 or bf16".to_owned());
        return Err(Error::DtypeMismatch { argument, value, expected });
    }
    let (strides, _) = resolved.layout();
    if resolved.dims[axes.rank - 1] > 1 && strides[axes.rank - 1] != resolved.dtype.bytes() {
        resolved.stage_all()?;
    }
    Ok(resolved)
}

/// Fails if a query would attend to a token that the cache has dropped.
pub(in crate::attention) fn check_kept(kv: &KvRows<'_>, asked: &Asked<'_>) -> Result<()> {
    if asked.mask.is_some() && asked.rules.window.is_none() && kv.has_tree() {
        return Ok(());
    }
    for (index, of) in asked.sequences.iter().enumerate() {
        let Range { start: first, end: behind } = kv.gone(index);
        if first >= behind {
            continue;
        }
        for query in 0..of.queries {
            let position = asked.position(index, query);
            if asked.rules.is_causal && position < first {
                continue;
            }
            let seen = asked.rules.window.map_or(0, |window| position + 1 - window).max(of.start);
            if seen < behind {
                let most = (position + 1 - behind).max(0);
                let expected = format!(
                    "at most {most} for the query at {position} of sequence {index}: tokens before {behind} have left the cache"
                );
                return Err(match asked.rules.window {
                    Some(window) => Error::argument("window", window as u32, expected),
                    None => Error::argument("window", "none", expected),
                });
            }
            if asked.rules.sinks > first {
                let expected = format!("at most {first}, the number of sinks that the cache keeps");
                return Err(Error::argument("sinks", asked.rules.sinks as u32, expected));
            }
        }
    }
    Ok(())
}
