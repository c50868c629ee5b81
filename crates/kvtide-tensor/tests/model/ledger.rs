//! Bytes that exist outside a cache, counted separately and compared with the cache's own statistics.

use kvtide_tensor::{Kv, PagedStep};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::world::World;

/// The objects that a trace keeps in addition to the cache and its snapshots.
#[derive(Default)]
pub struct Ledger {
    /// Views of layers: the sequence and the layer.
    pub views: Vec<(u64, u32, Kv)>,
    /// Steps whose sequences are gone. Nothing of the cache's is theirs.
    pub steps: Vec<PagedStep>,
}

impl Ledger {
    pub fn let_go(&mut self, of: usize) {
        if let Some(at) = of.checked_rem(self.views.len()) {
            self.views.swap_remove(at);
        }
    }
}

impl World {
    pub(crate) fn keep(&mut self, id: u64, layer: u32) -> Result<(), TestCaseError> {
        let layer = layer % self.cache.model().layers().len() as u32;
        let kv = self.cache.kv(id, layer)?;
        self.ledger.views.push((id, layer, kv));
        Ok(())
    }

    /// Every byte is the cache's own or held beside it, and what is held is known.
    pub(crate) fn check_bytes(&self) -> Result<(), TestCaseError> {
        let stats = self.cache.stats();
        prop_assert_eq!(stats.used_bytes, stats.buffer_bytes + stats.held_bytes);
        let bytes = |kv: &Kv| (kv.k.bytes() + kv.v.bytes()) as u64;
        let copies: u64 = self.ledger.views.iter().map(|(.., kv)| bytes(kv)).sum();
        prop_assert_eq!(stats.held_bytes, copies);
        Ok(())
    }
}
