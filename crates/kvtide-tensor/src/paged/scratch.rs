//! Memory for the values of a head while it is quantised.

use std::sync::{Mutex, PoisonError};

use kvtide_core::paged::{StagingContent, WritePlan};

use super::slabs::PagedShape;
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::base::zeroed::zeroed_vec;
use crate::kernels::pages::jobs_at_once;
use crate::kernels::quantise::Codec;

/// Scratch memory for the values of one head during quantisation, one piece per thread, allocated before anything changes.
/// If threads are added in the middle of a call, theirs are allocated on demand.
#[derive(Debug)]
pub(crate) struct Scratch {
    elements: usize,
    free: Mutex<Vec<Vec<f32>>>,
}

impl Scratch {
    /// Allocates this many pieces; none if nothing is quantised.
    pub(super) fn new(shape: &PagedShape, rooms: usize) -> Result<Self> {
        let elements = shape.codecs.iter().flatten().map(Codec::elements).max().unwrap_or(0);
        let rooms = if elements == 0 { 0 } else { rooms };
        let free = (0..rooms).map(|_| room(elements)).collect::<Result<_>>()?;
        Ok(Scratch { elements, free: Mutex::new(free) })
    }

    /// Allocates the memory for the pages that a plan quantises or dequantises, including its copies on write.
    pub(super) fn of(shape: &PagedShape, plan: &WritePlan, has_copies: bool) -> Result<Self> {
        let whole = plan.whole_runs(shape.block_size()).count();
        let opens = plan.pages().iter().any(|write| write.completes || write.before != StagingContent::Own);
        let rooms = match whole {
            0 => usize::from(opens || has_copies),
            _ => jobs_at_once(whole * plan.layers().len() * shape.staged.page_bytes())?,
        };
        Scratch::new(shape, rooms)
    }

    /// Runs `work` with a piece of memory that no other thread uses meanwhile.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut [f32]) -> T) -> Result<T> {
        let free = || self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = free().pop();
        let mut values = taken.map_or_else(|| room(self.elements), Ok)?;
        let done = work(&mut values);
        free().push(values);
        Ok(done)
    }
}

fn room(elements: usize) -> Result<Vec<f32>> {
    zeroed_vec(elements).ok_or_else(|| Budget::process().refusal(4 * elements as u64))
}
