//! The memory of a paged cache, played by maps that nobody ever clears, and the executor's part.

use std::collections::HashMap;

use kvtide_core::paged::{Before, PagedPlanner, WritePlan};

/// Zero is what memory holds that nobody has written.
pub type Value = u32;

/// A slab and a staging slab; what is not in the maps is zero.
#[derive(Default)]
pub struct Memory {
    /// By block, layer and slot.
    slab: HashMap<(u32, u32, u32), Value>,
    /// By staging page and slot.
    staged: HashMap<(u32, u32), Value>,
}

impl Memory {
    /// Moves the bytes of a plan: the token numbered `i` in layer `l` is `value(l, i)`.
    pub fn write(
        &mut self,
        planner: &PagedPlanner,
        plan: &WritePlan,
        low_bit: bool,
        value: impl Fn(u32, u32) -> Value,
    ) {
        let block_size = planner.block_size();
        for run in plan.runs().iter().filter(|run| !low_bit || run.len == block_size) {
            for (layer, at) in plan.layers().flat_map(|layer| (0..run.len).map(move |at| (layer, at))) {
                self.slab.insert((run.block, layer, run.slot + at), value(layer, run.token + at));
            }
        }
        for write in plan.pages() {
            let (run, page) = (plan.runs()[write.run as usize], write.page);
            for slot in 0..block_size {
                let kept = match write.before {
                    Before::Rows => continue,
                    Before::Zeros => {
                        assert!(!self.staged.contains_key(&(write.staged, slot)), "the staging page was used");
                        continue;
                    }
                    Before::Other => 0,
                    Before::Sealed => self.slab.get(&(page.block, page.layer, slot)).copied().unwrap_or(0),
                };
                self.staged.insert((write.staged, slot), kept);
            }
            for at in 0..run.len {
                self.staged.insert((write.staged, run.slot + at), value(page.layer, run.token + at));
            }
            for slot in (0..block_size).filter(|_| write.fills) {
                self.slab.insert((page.block, page.layer, slot), self.staged[&(write.staged, slot)]);
            }
        }
    }

    pub fn read(&self, staged: Option<u32>, block: u32, layer: u32, slot: u32) -> Value {
        let value = match staged {
            Some(page) => self.staged.get(&(page, slot)),
            None => self.slab.get(&(block, layer, slot)),
        };
        value.copied().unwrap_or(0)
    }

    /// All tokens of a layer of a sequence, in place, once what would show other sequences' bytes is zeroed.
    pub fn read_all(&mut self, planner: &mut PagedPlanner, sequence: u64, layer: u32) -> Vec<Value> {
        let pages: Vec<_> = planner.pages(sequence, layer).unwrap().collect();
        for page in pages.iter().filter(|page| planner.exposes(page.block, layer, page.tokens)).collect::<Vec<_>>() {
            let runs: Vec<_> = planner.unwritten(page.block, layer, planner.block_size()).collect();
            for slot in runs.into_iter().flatten() {
                self.slab.insert((page.block, layer, slot), 0);
            }
            planner.cleaned(page.block, layer);
        }
        pages
            .iter()
            .flat_map(|page| (0..page.tokens).map(move |slot| (page, slot)))
            .map(|(page, slot)| self.read(page.staged, page.block, layer, slot))
            .collect()
    }
}
