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

impl PagedShape {
    /// Room for what a plan quantises, or makes ready in floats, behind the copies that it needs.
    pub(super) fn scratch_of(&self, plan: &WritePlan, copies: bool) -> Result<Scratch> {
        let whole = plan.runs().iter().filter(|run| !run.staged).count();
        let opened = plan.pages().iter().any(|write| write.fills || write.before != StagingContent::Own);
        let rooms = match whole {
            0 => usize::from(opened || copies),
            _ => jobs_at_once(whole * plan.layers().len() * self.staged.page_bytes())?,
        };
        Scratch::new(self, rooms)
    }
}
