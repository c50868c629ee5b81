//! What must hold between calls: a check that is real, and slow.

use super::paged_planner::PagedPlanner;
use crate::paged::sequence::Held;
use crate::paged::table::Table;

impl PagedPlanner {
    /// Says what is wrong with the bookkeeping, if anything is; `held` is everything that holds blocks beside sequences.
    /// O(slots).
    pub fn check_invariants(&self, held: &[&Held]) -> Result<(), String> {
        let of_sequences = self.sequences.iter().map(|of| of.table());
        let tables: Vec<&Table> = of_sequences.chain(held.iter().map(|held| held.content().table())).collect();
        self.tables.check(&tables)?;
        self.sequences.check(self.block_size())
    }
}
