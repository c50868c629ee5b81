//! Static caches: `TensorScatter` writes new rows into a tensor with a fixed number of slots, behind the cached tokens.
//!
//! ```text
//! cache [batch, slots, ..], new rows, number of cached tokens -> TensorScatter -> all slots
//! ```
//! The slots behind the last token are hidden by the number of all tokens (`nonpad_kv_seqlen`), or by a mask.

use super::cached::Cached;
use super::lookup::{Lookup, SIZES, unrecognised};
use crate::error::Result;
use crate::eval::Evaluation;
use crate::proto::Node;

/// The fewest slots of a cache. With fewer, sizes coincide.
const SLOTS_MIN: usize = 16;

/// The slots of a static cache that an attention reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots<'a> {
    /// The tensor with all slots, and the axis of slots.
    pub cache: &'a str,
    pub axis: usize,
    /// True if the operator itself hides the slots behind the last token.
    pub is_bounded: bool,
}

impl Slots<'_> {
    /// The number of slots; depends on the sizes if the graph only names it.
    pub fn count(&self, evaluation: &Evaluation) -> Option<usize> {
        evaluation.dims(self.cache)?.get(self.axis).copied()
    }

    /// The number of slots that the graph declares; [`None`] if it only names it.
    pub fn declared(&self, lookup: &Lookup<'_>) -> Result<Option<usize>> {
        let [one, other] = [self.count(&*lookup.at(SIZES[0])?), self.count(&*lookup.at(SIZES[1])?)];
        Ok(one.filter(|_| one == other))
    }
}

/// The cache that a `TensorScatter` writes into, with `heads` heads if its rows have them side by side. Fails if it
/// writes elsewhere than behind the cached tokens.
pub(super) fn scattered<'a>(lookup: &Lookup<'a>, node: &'a Node, heads: Option<u32>) -> Result<Option<Cached<'a>>> {
    let (Some(past), Some(new), Some(joined)) = (node.input(0), node.input(1), node.output(0)) else { return Ok(None) };
    if lookup.past(past).is_none() {
        return Ok(None);
    }
    let wrong = |reason: String| unrecognised(node, reason);
    let evaluation = lookup.at(SIZES[0])?;
    let (axis, heads, dim) = match (evaluation.dims(joined), heads) {
        (Some(&[_, heads, _, dim]), _) => (2, heads, dim),
        (Some(&[_, _, width]), Some(heads)) => (1, heads as usize, width / heads.max(1) as usize),
        (dims, _) => {
            return Err(wrong(format!("its cache has dimensions {dims:?}, expected [batch, heads, slots, dim]")));
        }
    };
    let rank = evaluation.dims(joined).map_or(0, |dims| dims.len() as i64);
    let written = node.int("axis").unwrap_or(-2);
    if written.rem_euclid(rank.max(1)) != axis as i64 {
        return Err(wrong(format!("it writes along axis {written}, expected {axis}, the axis of slots")));
    }
    if node.text("mode").is_some_and(|mode| mode != "linear") {
        return Err(wrong("its mode is not linear: the cache must not have a window of its own".into()));
    }
    for sizes in SIZES {
        let evaluation = lookup.at(sizes)?;
        let data = node.input(2).and_then(|name| evaluation.get(name).data.clone());
        if data.is_none_or(|data| data.iter().any(|&start| start != sizes.past as f64)) {
            let name = node.input(2).unwrap_or("nothing");
            return Err(wrong(format!("it must write behind the cached tokens, but {name} is not their number")));
        }
    }
    let slots = Slots { cache: joined, axis, is_bounded: false };
    if let Some(count) = slots.declared(lookup)?.filter(|&count| count < SLOTS_MIN) {
        return Err(wrong(format!("its cache has {count} slots, expected at least {SLOTS_MIN}")));
    }
    Ok(Some(Cached { past, half: None, new, joined, heads, dim, slots: Some(slots) }))
}
