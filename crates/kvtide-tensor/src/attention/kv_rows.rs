//! What attention reads: keys and values of one length for a whole batch, or of each sequence its own.

use super::strided::{Axes, resolve};
use super::visible::KeyPositions;
use crate::error::{Error, Result};
use crate::resolved::Resolved;
use crate::source::Source;
use crate::view::Kv;

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
}

impl KvRows<'_> {
    /// Refuses views that can no longer be read.
    pub(super) fn check(&self) -> Result<()> {
        let (KvRows::Batched { k, v } | KvRows::Ragged { k, v, .. }) = self;
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

/// Keys and values whose strides are known.
pub(super) struct ResolvedRows<'a> {
    pub k: Resolved<'a>,
    pub v: Resolved<'a>,
    pub axes: Axes,
}

impl<'a> ResolvedRows<'a> {
    /// Looks at keys and values; refuses those that do not go together.
    pub fn new(rows: &KvRows<'a>) -> Result<Self> {
        let (k, v, axes) = match rows {
            KvRows::Batched { k, v } => (k, v, Axes::BATCHED),
            KvRows::Ragged { k, v, .. } => (k, v, Axes::RAGGED),
        };
        let (k, v) = (resolve(k, "k", axes)?, resolve(v, "v", axes)?);
        let last = axes.rank - 1;
        if k.dims[..last] != v.dims[..last] {
            let mut expected = k.dims.to_vec();
            expected[last] = v.dims[last];
            let expected = format!("{expected:?}, as k but for the head dim");
            return Err(Error::ShapeMismatch { argument: "v", value: v.dims.to_vec(), expected });
        }
        Ok(ResolvedRows { k, v, axes })
    }

    /// Heads of keys and values.
    pub fn heads(&self) -> usize {
        self.k.dims[self.axes.heads]
    }
}

/// Where the keys of a batch stand: where a view of a window says, else from 0 on.
pub(super) fn key_positions(rows: &KvRows<'_>, tokens: usize) -> KeyPositions {
    match rows {
        KvRows::Batched { k: Source::View(view), .. } if view.sequence_axis() == Some(Axes::BATCHED.tokens) => {
            let mut runs = [(0, 0); 2];
            for ((slot, &position), run) in runs.iter_mut().zip(view.key_positions()).zip(view.runs().iter()) {
                *slot = (position as i64, run.len as usize);
            }
            KeyPositions::new(runs)
        }
        _ => KeyPositions::from_zero(tokens),
    }
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
