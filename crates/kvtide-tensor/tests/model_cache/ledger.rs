//! Bytes: what is kept beside a cache, counted apart, against what the cache says of itself.

use kvtide_tensor::{Kv, ModelStep};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::subject::Kind;
use crate::world::World;

/// What a trace keeps besides the cache and its snapshots.
#[derive(Default)]
pub struct Ledger {
    /// What layers showed: the sequence and the layer.
    pub views: Vec<(u64, u32, Kv)>,
    /// Steps whose sequences are gone. Nothing of the cache's is theirs.
    pub steps: Vec<ModelStep>,
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
        if let Some(kv) = self.cache.kv(id, layer)? {
            self.ledger.views.push((id, layer, kv));
        }
        Ok(())
    }

    /// Every byte is the cache's own or held beside it, and what is held is known.
    pub(crate) fn check_bytes(&self) -> Result<(), TestCaseError> {
        let stats = self.cache.stats();
        prop_assert_eq!(stats.used_bytes, stats.buffer_bytes + stats.held_bytes);
        let bytes = |kv: &Kv| (kv.k.bytes() + kv.v.bytes()) as u64;
        let copies: u64 = self.ledger.views.iter().map(|(.., kv)| bytes(kv)).sum();
        match self.kind {
            // Each a copy.
            Kind::Blocks(..) => prop_assert_eq!(stats.held_bytes, copies),
            Kind::Tensors | Kind::KeepAll if self.snapshots.is_empty() && self.ledger.views.is_empty() => {
                prop_assert_eq!(stats.held_bytes, 0);
            }
            // A view keeps its layer of a sequence that is gone, once for all views of it.
            Kind::Tensors | Kind::KeepAll => {
                let gone = |id: &u64| !self.sequences.contains_key(id);
                let most = self.ledger.views.iter().filter(|(id, ..)| gone(id)).map(|(.., kv)| bytes(kv)).max();
                prop_assert!(stats.held_bytes >= most.unwrap_or(0), "{} bytes are held", stats.held_bytes);
            }
        }
        Ok(())
    }
}
