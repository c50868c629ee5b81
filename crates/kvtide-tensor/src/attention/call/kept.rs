//! Caches with a window: what queries over them see unless they say otherwise, and that it is still there.
//!
//! ```text
//! positions   [ sinks ) gone [ kept ............ )
//!                             a query sees back as far as this
//! ```
//!
//! A window lets go of what left it: a cache of tensors token by token, one of pages block by block. A query that would see some
//! of that is refused: what it would see otherwise depends on the size of blocks, or on when it came. Of tensors it is the keys
//! that know the window, as they know their positions. O(queries) where something is gone, else O(sequences).

use std::ops::Range;

use kvtide_core::paged::Window;

use super::asked::Asked;
use super::axes::Axes;
use super::kv_rows::KvRows;
use super::options::AttendOptions;
use crate::base::error::{Error, Result};
use crate::tensor::source::Source;
use crate::tensor::view::View;

impl KvRows<'_> {
    /// The keys of a batch, where they are what a cache shows along its sequence.
    fn shown(&self) -> Option<&View> {
        match self {
            KvRows::Batched { k: Source::View(view), .. } => {
                Some(*view).filter(|view| view.sequence_axis() == Some(Axes::BATCHED.tokens))
            }
            _ => None,
        }
    }

    /// The window of the cache that is read.
    fn window(&self) -> Option<Window> {
        match self {
            KvRows::Pages(pages) => pages.window(),
            _ => self.shown()?.window().map(|of| of.window),
        }
    }

    /// True where some of the last keys are nodes of a draft tree, as far as the cache that is read knows.
    fn has_tree(&self) -> bool {
        match self {
            KvRows::Pages(pages) => (0..pages.count()).any(|index| pages.tree(index).is_some()),
            _ => self.shown().and_then(View::window).is_some_and(|of| of.is_tree),
        }
    }

    /// The positions of a sequence that the cache has let go of.
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

/// The options with the window and the sinks of the cache that is read, where they name no window. A mask says it for a draft
/// tree: by the slots of its nodes, which are not their positions, a window would hide what the mask shows.
pub(in crate::attention) fn in_window<'a>(kv: &KvRows<'_>, options: &AttendOptions<'a>) -> AttendOptions<'a> {
    let is_masked = options.mask.is_some() && options.tree.is_none() && kv.has_tree();
    match kv.window() {
        Some(window) if options.window.is_none() && !is_masked => {
            AttendOptions { window: Some(window.tokens()), sinks: window.sinks(), ..options.clone() }
        }
        _ => options.clone(),
    }
}

/// Refuses queries that would see tokens which the cache has let go of.
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
                let expected = format!("at most {first}, the first tokens that the cache has kept");
                return Err(Error::argument("sinks", asked.rules.sinks as u32, expected));
            }
        }
    }
    Ok(())
}
