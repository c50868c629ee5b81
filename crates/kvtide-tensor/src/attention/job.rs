//! One call of attention with the memory that it reads: what its units of work share.

use std::f32::consts::LOG2_E;

use super::asked::Asked;
use super::pages::{PageHead, Pages};
use super::segment::{Scale, Segment};
use super::strided::Strided;
use crate::kernels::tile::TileKernels;

/// One call.
pub(super) struct Job<'a> {
    pub kernels: &'static TileKernels,
    pub asked: &'a Asked<'a>,
    pub queries: Strided<'a>,
    pub keys: Keys<'a>,
}

/// Where keys and values lie.
pub(super) enum Keys<'a> {
    /// In tensors or views.
    Strided {
        /// The keys.
        k: Strided<'a>,
        /// The values.
        v: Strided<'a>,
    },
    /// In pages.
    Pages(Pages<'a>),
}

/// Where one head of keys and values lies.
#[expect(clippy::large_enum_variant, reason = "there is one for each unit, and it is not moved")]
pub(super) enum Head {
    Strided(usize),
    Pages(PageHead),
}

/// Some queries of one sequence, all query heads of one head of K and V, and a share of the keys that they see.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub sequence: usize,
    pub head: usize,
    /// The first of them within the sequence.
    pub first_query: usize,
    pub queries: usize,
    /// Which share of the keys, of how many.
    pub split: usize,
    pub splits: usize,
    /// Its place among the units whose shares are put together.
    pub group: usize,
}

impl Job<'_> {
    /// What queries are multiplied with, so that scores are logarithms to base 2 as soon as they can be.
    pub fn scale(&self) -> f32 {
        if self.asked.softcap.is_some() { self.asked.scale } else { self.asked.scale * LOG2_E }
    }

    /// True when some keys were rotated.
    pub fn is_rotated(&self) -> bool {
        matches!(&self.keys, Keys::Pages(pages) if pages.rows.shape.hadamard)
    }

    /// Where one head of keys and values lies.
    pub fn head(&self, head: usize) -> Head {
        match &self.keys {
            Keys::Strided { .. } => Head::Strided(head),
            Keys::Pages(pages) => Head::Pages(pages.head(head)),
        }
    }

    /// The rows from key `index` of a sequence on that lie at one distance.
    pub fn segment(&self, sequence: usize, head: &Head, index: usize) -> Segment<'_> {
        match (&self.keys, head) {
            (Keys::Strided { k, v }, Head::Strided(head)) => {
                let batch = if self.asked.sizes.ragged { 0 } else { sequence };
                let index = self.asked.sequences[sequence].first_key + index;
                let (keys, values) = (k.rows(batch, *head, index), v.rows(batch, *head, index));
                let count = keys.count.min(values.count);
                Segment {
                    keys: keys.part(0, count),
                    values: values.part(0, count),
                    key_scale: Scale::One,
                    value_scale: Scale::One,
                    rotated: false,
                }
            }
            (Keys::Pages(pages), Head::Pages(head)) => pages.segment(head, sequence, index),
            _ => unreachable!("a head of these keys"),
        }
    }
}
