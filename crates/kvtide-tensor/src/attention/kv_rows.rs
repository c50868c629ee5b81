//! What attention reads: keys and values of one length for a whole batch, or of each sequence its own.

use candle_core::Tensor;
use kvtide_core::paged::KeyOrValue;

use super::job::Keys;
use super::pages::{Pages, check_floats};
use super::strided::{Axes, Strided, resolve};
use super::visible::KeyPositions;
use crate::base::error::{Error, Result};
use crate::paged::PageRows;
use crate::tensor::resolved::Resolved;
use crate::tensor::source::Source;
use crate::tensor::view::Kv;

/// Keys and values, where they lie.
#[derive(Clone, Debug)]
pub enum KvRows<'a> {
    /// `[batch, heads, tokens, dim]`: what a cache shows, or tensors.
    Batched {
        /// The keys.
        k: Source<'a>,
        /// The values; the head dim may be another.
        v: Source<'a>,
    },
    /// `[tokens, heads, dim]`, the sequences one behind the other.
    Ragged {
        /// The keys.
        k: Source<'a>,
        /// The values; the head dim may be another.
        v: Source<'a>,
        /// Where the tokens of each sequence begin, and where the last ones end.
        offsets: &'a [i32],
    },
    /// Pages of a paged cache; queries are `[tokens, heads, dim]`.
    Pages(&'a PageRows<'a>),
}

impl KvRows<'_> {
    /// Refuses views that can no longer be read.
    pub(super) fn check(&self) -> Result<()> {
        let (KvRows::Batched { k, v } | KvRows::Ragged { k, v, .. }) = self else { return Ok(()) };
        for source in [k, v] {
            if let Source::View(view) = source {
                view.check()?;
            }
        }
        Ok(())
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

/// Keys and values whose strides are known.
#[expect(clippy::large_enum_variant, reason = "there is one for each call, and it is not moved")]
pub(super) enum ResolvedRows<'a> {
    /// Tensors, views and the caller's memory.
    Strided { k: Resolved<'a>, v: Resolved<'a>, axes: Axes },
    /// Pages, which are known already.
    Pages(&'a PageRows<'a>),
}

impl<'a> ResolvedRows<'a> {
    /// Looks at keys and values; refuses those that do not go together.
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
            let expected = format!("{expected:?}, as k but for the head dim");
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

    /// Tokens of keys and values, of all sequences where they lie one behind the other; pages know each sequence's own.
    pub fn tokens(&self) -> usize {
        match self {
            ResolvedRows::Strided { k, axes, .. } => k.dims[axes.tokens],
            ResolvedRows::Pages(_) => 0,
        }
    }

    /// Heads of keys and values.
    pub fn heads(&self) -> usize {
        match self {
            ResolvedRows::Strided { k, axes, .. } => k.dims[axes.heads],
            ResolvedRows::Pages(pages) => pages.heads(),
        }
    }

    /// Elements of a row of keys, and of one of values.
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
            ResolvedRows::Pages(pages) => [Some(pages.slab.storage()), Some(pages.staging.storage())],
        }
    }

    /// Keys and values, unless they are in pages.
    pub fn sources(&self) -> [Option<&Resolved<'a>>; 2] {
        match self {
            ResolvedRows::Strided { k, v, .. } => [Some(k), Some(v)],
            ResolvedRows::Pages(_) => [None; 2],
        }
    }

    /// The same with their memory: their own, or that of the next tensors.
    pub fn in_memory<'b>(&'b self, tensors: &mut impl Iterator<Item = &'b [u8]>) -> Result<Keys<'b>> {
        Ok(match self {
            ResolvedRows::Strided { k, v, axes } => Keys::Strided {
                k: Strided::new(k, *axes, k.bytes(tensors))?,
                v: Strided::new(v, *axes, v.bytes(tensors))?,
            },
            ResolvedRows::Pages(rows) => Keys::Pages(Pages {
                slab: rows.slab.pages(tensors.next().unwrap_or(&[])),
                staging: rows.staging.pages(tensors.next().unwrap_or(&[])),
                rows,
            }),
        })
    }
}

/// Where the keys of a batch stand: where a view of a window says, else from 0 on.
pub(super) fn key_positions(k: &Source<'_>, tokens: usize) -> KeyPositions {
    if let Source::View(view) = k
        && view.sequence_axis() == Some(Axes::BATCHED.tokens)
    {
        // Without a token as well it is known where the next one stands, be it behind a gap.
        let mut runs = [(view.key_positions()[0] as i64, 0), (view.next_position() as i64, 0)];
        for ((slot, &position), run) in runs.iter_mut().zip(view.key_positions()).zip(view.runs().iter()) {
            *slot = (position as i64, run.len as usize);
        }
        return KeyPositions::new(runs);
    }
    KeyPositions::from_zero(tokens)
}

/// Checked offsets: from 0 up to `total`, never down.
pub(super) fn check_offsets(argument: &'static str, offsets: &[i32], total: usize) -> Result<()> {
    let expected = || format!("offsets that rise from 0 to {total}, the tokens there are");
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
