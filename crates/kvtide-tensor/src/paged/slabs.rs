//! The slabs of a group: the one with its pages, and the staging slab, where low-bit pages lie in floats until they are full.

use std::ops::Range;
use std::sync::Arc;

use super::shape::PagedShape;
use super::slab::Slab;
use crate::base::error::Result;
use crate::base::memory::Budget;

/// The slabs, and what their pages look like.
#[derive(Clone, Debug)]
pub(crate) struct Slabs {
    pub shape: PagedShape,
    pub slab: Arc<Slab>,
    /// Low-bit pages that are not full: pages of one layer, in floats.
    pub staging: Arc<Slab>,
}

/// Slots of a page that nobody wrote.
pub(super) struct Holes {
    pub block: u32,
    pub layer: u32,
    pub runs: Vec<Range<u32>>,
}

impl Slabs {
    /// Zeroed pages for so many blocks, and a staging slab without pages.
    pub fn new(shape: PagedShape, blocks: u32, budget: &Arc<Budget>) -> Result<Self> {
        let slab = Arc::new(Slab::new(shape.pages, blocks, budget)?);
        Ok(Slabs { shape, slab, staging: Arc::new(Slab::new(shape.staged, 0, budget)?) })
    }

    /// The slab in which a page lies, and its block and layer there: `staged` is its staging page, if it has one.
    pub fn page(&self, block: u32, layer: u32, staged: Option<u32>) -> (&Slab, u32, u32) {
        match staged {
            Some(page) => (&self.staging, page, 0),
            None => (&self.slab, block, layer),
        }
    }
}
