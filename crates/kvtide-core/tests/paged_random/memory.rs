//! The simulated memory of a paged cache, in maps that are never cleared, and the simulated executor.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::collections::HashMap;
use std::ops::Range;

use kvtide_core::paged::{BlockCopy, PagedPlanner, RowMove, Seal, StagingContent, WritePlan};

/// Zero is the value of unwritten memory.
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
    pub fn write(&mut self, planner: &PagedPlanner, plan: &WritePlan, value: impl Fn(u32, u32) -> Value) {
        self.open(planner, plan);
        self.write_layers(planner, plan, plan.layers(), value);
    }

    /// Makes the staging pages of a plan ready for its rows.
    pub fn open(&mut self, planner: &PagedPlanner, plan: &WritePlan) {
        for write in plan.pages() {
            for slot in 0..planner.block_size() {
                let page = write.page;
                let kept = match write.before {
                    StagingContent::Own => continue,
                    StagingContent::Zeros => {
                        assert!(!self.staged.contains_key(&(write.staged, slot)), "the staging page was used");
                        continue;
                    }
                    StagingContent::Other => 0,
                    StagingContent::Sealed => self.slab.get(&(page.block, page.layer, slot)).copied().unwrap_or(0),
                };
                self.staged.insert((write.staged, slot), kept);
            }
        }
    }

    /// Moves the bytes of some layers of a plan, and quantises the pages that are full then.
    pub fn write_layers(
        &mut self,
        planner: &PagedPlanner,
        plan: &WritePlan,
        layers: Range<u32>,
        value: impl Fn(u32, u32) -> Value,
    ) {
        let size = planner.block_size();
        for run in plan.runs().iter().filter(|run| !run.staged || run.len == size) {
            for (layer, at) in layers.clone().flat_map(|layer| (0..run.len).map(move |at| (layer, at))) {
                self.slab.insert((run.block, layer, run.slot + at), value(layer, run.token + at));
            }
        }
        for write in plan.pages().iter().filter(|write| layers.contains(&write.page.layer)) {
            let run = plan.runs()[write.run as usize];
            for at in 0..run.len {
                self.staged.insert((write.staged, run.slot + at), value(write.page.layer, run.token + at));
            }
        }
        for seal in plan.completed(layers, size) {
            self.seal(planner, seal);
        }
    }

    pub fn seal(&mut self, planner: &PagedPlanner, seal: Seal) {
        for slot in 0..planner.block_size() {
            let value = self.staged.get(&(seal.staged, slot)).copied().unwrap_or(0);
            self.slab.insert((seal.page.block, seal.page.layer, slot), value);
        }
    }

    /// Copies a block, and what of it is staged.
    pub fn copy(&mut self, planner: &PagedPlanner, copy: &BlockCopy) {
        for (layer, slot) in
            (0..planner.num_layers()).flat_map(|layer| (0..planner.block_size()).map(move |slot| (layer, slot)))
        {
            let value = self.slab.get(&(copy.source, layer, slot)).copied().unwrap_or(0);
            self.slab.insert((copy.target, layer, slot), value);
        }
        for &(_, source, target) in &copy.staged {
            for slot in 0..planner.block_size() {
                let value = self.staged.get(&(source, slot)).copied().unwrap_or(0);
                self.staged.insert((target, slot), value);
            }
        }
    }

    /// Moves a row of all layers, wherever its pages lie.
    pub fn move_row(&mut self, planner: &PagedPlanner, moved: &RowMove) {
        for layer in 0..planner.num_layers() {
            let RowMove { source, target } = moved;
            let value = self.read(planner.staged(source.block, layer), source.block, layer, source.index);
            match planner.staged(target.block, layer) {
                Some(page) => self.staged.insert((page, target.index), value),
                None => self.slab.insert((target.block, layer, target.index), value),
            };
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
        for page in pages.iter().filter(|page| page.is_sealed) {
            for slot in 0..planner.block_size() {
                let [floats, codes] = [page.staged, None].map(|staged| self.read(staged, page.block, layer, slot));
                assert!(page.staged.is_some() && floats == codes, "{page:?} is not quantised in the slab");
            }
        }
        for page in pages.iter().filter(|page| planner.exposes(page.block, layer, page.tokens)).collect::<Vec<_>>() {
            let runs: Vec<_> = planner.unwritten(page.block, layer, planner.block_size()).collect();
            for slot in runs.into_iter().flatten() {
                match page.staged {
                    Some(staged) => self.staged.insert((staged, slot), 0),
                    None => self.slab.insert((page.block, layer, slot), 0),
                };
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
