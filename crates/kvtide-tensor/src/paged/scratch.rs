//! The values of a head while it is quantised, one room for each thread: taken before anything changes.
//!
//! Taking a room is O(1). When threads are added in the middle of a call, theirs are taken as they come.

use std::sync::{Mutex, PoisonError};

use kvtide_core::paged::{StagingContent, WritePlan};

use super::shape::PagedShape;
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::base::zeroed::zeroed_vec;
use crate::kernels::pages::jobs_at_once;
use crate::kernels::quantise::Codec;

/// Rooms for the values of one head.
#[derive(Debug)]
pub(crate) struct Scratch {
    elements: usize,
    free: Mutex<Vec<Vec<f32>>>,
}

impl Scratch {
    /// So many rooms; none where nothing is quantised.
    pub fn new(shape: &PagedShape, rooms: usize) -> Result<Self> {
        let elements = shape.codecs.iter().flatten().map(Codec::elements).max().unwrap_or(0);
        let rooms = if elements == 0 { 0 } else { rooms };
        let free = (0..rooms).map(|_| room(elements)).collect::<Result<_>>()?;
        Ok(Scratch { elements, free: Mutex::new(free) })
    }

    /// Rooms for what a plan quantises, or puts back in floats, after the copies that it needs.
    pub fn of(shape: &PagedShape, plan: &WritePlan, has_copies: bool) -> Result<Self> {
        let whole = plan.runs().iter().filter(|run| !run.staged).count();
        let opens = plan.pages().iter().any(|write| write.fills || write.before != StagingContent::Own);
        let rooms = match whole {
            0 => usize::from(opens || has_copies),
            _ => jobs_at_once(whole * plan.layers().len() * shape.staged.page_bytes())?,
        };
        Scratch::new(shape, rooms)
    }

    /// Runs `work` with a room that nobody else has meanwhile.
    pub fn with<T>(&self, work: impl FnOnce(&mut [f32]) -> T) -> Result<T> {
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
