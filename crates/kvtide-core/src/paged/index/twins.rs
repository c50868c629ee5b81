//! Blocks with the same name that are not found, since another one with it is.
//!
//! ```text
//! h_2   found: 4     twins: 9 <-> 7 <-> 2        4 is evicted: 9 is found from then on
//! ```
//!
//! Sequences that compute the same prompt side by side fill blocks side by side. Only one is found; the others wait here,
//! and whoever holds them need not know.
//!
//! Invariants: every block of a list has the list's key and is not indexed; where keys are told apart by all their bits, a key
//! with a list is indexed. O(1) expected a call. Memory: a place for each key with a list.

use std::collections::HashMap;

use super::key::BlockKey;
use super::records::Records;

#[derive(Debug, Default)]
pub(super) struct Twins {
    /// The youngest of each list; the others hang together by their records.
    youngest: HashMap<BlockKey, u32>,
}

impl Twins {
    /// Lets a named block wait. Without memory it does not, and is never found.
    pub(super) fn add(&mut self, records: &mut Records, block: u32) {
        let Some(&key) = records.key(block) else { return };
        if self.youngest.try_reserve(1).is_ok() {
            let older = self.youngest.insert(key, block);
            records.join(block, older);
        }
    }

    /// A named block waits no longer, if it did.
    pub(super) fn remove(&mut self, records: &mut Records, block: u32) {
        let Some(&key) = records.key(block) else { return };
        let older = records.leave(block);
        if self.youngest.get(&key) == Some(&block) {
            match older {
                Some(older) => self.youngest.insert(key, older),
                None => self.youngest.remove(&key),
            };
        }
    }

    /// Takes a block of this name that waits.
    pub(super) fn take(&mut self, records: &mut Records, key: &BlockKey) -> Option<u32> {
        let block = *self.youngest.get(key)?;
        self.remove(records, block);
        Some(block)
    }

    /// Nobody waits any more; records are cleared by whoever has them.
    pub(super) fn clear(&mut self) {
        self.youngest.clear();
    }

    /// Says what is wrong with the lists, if anything is. O(blocks).
    pub(super) fn check(&self, records: &Records) -> Result<(), String> {
        for (key, &youngest) in &self.youngest {
            if !records.contains(key) && records.tells_all_apart() {
                return Err(format!("block {youngest} waits for a key that is not indexed"));
            }
            let (mut block, mut before, mut met) = (Some(youngest), None, 0);
            while let Some(at) = block {
                met += 1;
                let belongs = !records.is_indexed(at) && records.key(at) == Some(key) && met <= records.rows();
                let [younger, older] = records.neighbours(at);
                if !belongs || younger != before {
                    return Err(format!("block {at} does not belong among the twins of block {youngest}"));
                }
                (block, before) = (older, Some(at));
            }
        }
        Ok(())
    }
}
