//! The naive pool: tables are lists of blocks, and blocks that are not held are in a list, in the order of their
//! release.

use kvtide_core::paged::{BlockKey, PRIORITY_DEFAULT};

use super::policies::Policy;
use super::ranks::{NEVER, Step, at, join, ranks};

/// Blocks of a table; none where one left the window.
pub type Table = Vec<Option<usize>>;

#[derive(Clone, Debug)]
pub struct Block {
    holders: u32,
    /// Once it is full.
    pub key: Option<BlockKey>,
    pub own: Step,
    pub inherited: Step,
}

pub struct Model {
    policy: Policy,
    pub capacity: u32,
    pub blocks: Vec<Block>,
    /// With their ranks.
    pub cached: Vec<(usize, Step)>,
    pub now: u64,
    /// Keys of the blocks that were evicted or overwritten.
    pub gone: Vec<BlockKey>,
}

const NOTHING: Step = (0, 0, NEVER);

impl Model {
    pub fn new(policy: Policy, capacity: u32) -> Self {
        Model { policy, capacity, blocks: Vec::new(), cached: Vec::new(), now: 0, gone: Vec::new() }
    }

    /// Blocks that can be taken.
    pub fn available(&self) -> u32 {
        self.capacity - self.blocks.iter().filter(|block| block.holders > 0).count() as u32
    }

    /// A block without content; if none is left, a cached block is evicted for it.
    pub fn take(&mut self) -> usize {
        if self.available() as usize == self.cached.len() {
            let next = self.cached.iter().enumerate().min_by_key(|(_, cached)| cached.1.0).unwrap().0;
            let (block, _) = self.cached.remove(next);
            self.gone.push(self.blocks[block].key.unwrap());
        }
        let own = (PRIORITY_DEFAULT, PRIORITY_DEFAULT, NEVER);
        self.blocks.push(Block { holders: 1, key: None, own, inherited: NOTHING });
        self.blocks.len() - 1
    }

    pub fn hold(&mut self, table: &Table) {
        table.iter().flatten().for_each(|&block| self.blocks[block].holders += 1);
    }

    pub fn is_shared(&self, block: usize) -> bool {
        self.blocks[block].holders > 1
    }

    /// True if a block has content: it is held or cached.
    pub fn is_there(&self, block: usize) -> bool {
        self.blocks[block].holders > 0 || self.cached.iter().any(|cached| cached.0 == block)
    }

    /// A table releases the blocks at some places, which hand their rank on to those before them.
    pub fn let_go(&mut self, table: &Table, places: std::ops::Range<usize>) {
        let mut chain = NOTHING;
        for place in places.clone().rev() {
            let Some(index) = table[place] else { continue };
            let block = &mut self.blocks[index];
            block.holders -= 1;
            if block.holders == 0 && block.key.is_none() {
                continue;
            }
            block.inherited = join(at(block.inherited, self.now), chain);
            if block.holders == 0 {
                block.own = at(block.own, self.now);
                chain = join(ranks(self.policy, block.own, Some(place as u32)), block.inherited);
                self.cached.push((index, chain));
            }
        }
        for &index in table[..places.start].iter().flatten() {
            let block = &mut self.blocks[index];
            block.inherited = join(at(block.inherited, self.now), chain);
        }
    }

    pub fn advance(&mut self, now: u64) {
        self.now = now;
        self.cached.iter_mut().for_each(|cached| cached.1 = at(cached.1, now));
    }
}
