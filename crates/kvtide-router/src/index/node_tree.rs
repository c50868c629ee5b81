//! The tree of blocks, who holds each, and who has everything up to it.
//!
//! ```text
//!            root                 held      in some tier, whatever lies before it
//!           /    \                complete  held, and complete at the parent: all of the prefix is there
//!         a {0,1}  e {2}          A removal in the middle takes the worker out of `complete` in the blocks behind it, a return
//!         |                       puts it in again. So `complete` only shrinks along a path, and a search may halve it.
//!         b {0}
//! ```
//!
//! A block whose parent is not known yet has none (`NONE`), and nobody is complete there. A parent that was only named is a node that
//! nobody holds. A node goes when nobody holds it and nothing hangs from it.
//!
//! To hold or to release is O(1), and O(blocks behind it that the worker holds) where those become complete or cease to be.

use kvtide_core::Error as CoreError;

use super::key_table::{KeyTable, NONE};
use super::tier::Tier;
use super::worker_index::WorkerId;
use super::worker_sets::{SetId, WorkerSets};
use crate::error::Result;

/// Which blocks are milestones: those at depths that these divide, the rarest first.
pub(super) const MILESTONES: [usize; 2] = [MILESTONE * MILESTONE, MILESTONE];
pub(super) const MILESTONE: usize = 8;

/// The empty prefix: everybody has it.
pub(super) const ROOT: u32 = 0;

#[derive(Clone, Copy, Debug)]
struct Node {
    key: u64,
    parent: u32,
    child: u32,
    next: u32,
    previous: u32,
    /// How many blocks there are up to this one; true while somebody is complete here.
    depth: u32,
    /// By tier.
    held: [SetId; 3],
}

const NOBODY: [SetId; 3] = [SetId::EMPTY; 3];

#[derive(Debug)]
pub(super) struct NodeTree {
    nodes: Vec<Node>,
    free: Vec<u32>,
    pub(super) table: KeyTable,
    /// What `table` says of milestones where somebody is complete: so much smaller that they stay in the processor's caches.
    pub(super) milestones: [KeyTable; 2],
    pub(super) sets: WorkerSets,
    /// Nodes to go to; empty between calls.
    pending: Vec<u32>,
}

impl NodeTree {
    pub(super) fn new() -> Self {
        let root = Node { key: 0, parent: NONE, child: NONE, next: NONE, previous: NONE, depth: 0, held: NOBODY };
        let (table, milestones) = (KeyTable::new(), MILESTONES.map(|_| KeyTable::new()));
        let (free, pending) = (Vec::new(), Vec::new());
        NodeTree { nodes: vec![root], free, table, milestones, sets: WorkerSets::new(), pending }
    }

    /// Memory for so many blocks more, each with a holder.
    pub(super) fn reserve(&mut self, blocks: usize) -> Result<()> {
        let out_of_memory = |_| CoreError::OutOfMemory { count: blocks as u64, what: "blocks of an index" };
        self.nodes.try_reserve(blocks).map_err(out_of_memory)?;
        self.free.try_reserve(blocks).map_err(out_of_memory)?;
        self.table.reserve(blocks)?;
        for (table, unit) in self.milestones.iter_mut().zip(MILESTONES) {
            table.reserve(blocks / unit + 1)?;
        }
        self.sets.reserve(2 * blocks)
    }

    /// The node of a key, made where there is none.
    pub(super) fn named(&mut self, key: u64) -> u32 {
        if let Some(node) = self.table.node(key) {
            return node;
        }
        let made = Node { key, parent: NONE, child: NONE, next: NONE, previous: NONE, depth: 0, held: NOBODY };
        let node = match self.free.pop() {
            Some(node) => {
                self.nodes[node as usize] = made;
                node
            }
            None => {
                self.nodes.push(made);
                (self.nodes.len() - 1) as u32
            }
        };
        self.table.insert(key, node);
        node
    }

    /// Hangs a node below another, unless it hangs somewhere already: a key names what is before it, so that it can only be the same.
    pub(super) fn attach(&mut self, node: u32, parent: u32) {
        // What others said is not believed blindly: a circle would never be freed.
        if self.nodes[node as usize].parent != NONE || self.is_below(parent, node) {
            return;
        }
        let first = self.nodes[parent as usize].child;
        if first != NONE {
            self.nodes[first as usize].previous = node;
        }
        self.nodes[parent as usize].child = node;
        let Node { parent: above, next, .. } = &mut self.nodes[node as usize];
        (*above, *next) = (parent, first);
        let held = self.nodes[node as usize].held;
        if held != NOBODY {
            let holders: Vec<WorkerId> = held.iter().flat_map(|&set| self.sets.members(set)).collect();
            holders.into_iter().for_each(|worker| self.gain(node, worker));
        }
    }

    /// Whether a node is another, or hangs below it. O(1) where that one has no children, as it is when blocks come in order.
    fn is_below(&self, mut node: u32, above: u32) -> bool {
        if self.nodes[above as usize].child == NONE {
            return node == above;
        }
        while node != NONE && node != above {
            node = self.nodes[node as usize].parent;
        }
        node == above
    }

    /// A worker holds a block in a tier.
    pub(super) fn hold(&mut self, node: u32, worker: WorkerId, tier: Tier) {
        let held = self.nodes[node as usize].held;
        if self.sets.contains(held[tier as usize], worker) {
            return;
        }
        let is_new = !self.holds(node, worker);
        self.nodes[node as usize].held[tier as usize] = self.sets.flip(held[tier as usize], worker);
        if is_new {
            self.gain(node, worker);
        }
    }

    /// A worker does not hold a block in a tier any more.
    pub(super) fn release(&mut self, node: u32, worker: WorkerId, tier: Tier) {
        let held = self.nodes[node as usize].held;
        if !self.sets.contains(held[tier as usize], worker) {
            return;
        }
        self.nodes[node as usize].held[tier as usize] = self.sets.flip(held[tier as usize], worker);
        if !self.holds(node, worker) {
            self.lose(node, worker);
            self.prune(node);
        }
    }

    fn holds(&self, node: u32, worker: WorkerId) -> bool {
        self.nodes[node as usize].held.iter().any(|&set| self.sets.contains(set, worker))
    }

    /// The fastest tier in which a worker holds the block of a key.
    pub(super) fn tier(&self, key: u64, worker: WorkerId) -> Option<Tier> {
        let node = self.table.node(key)?;
        let held = self.nodes[node as usize].held;
        Tier::ALL.into_iter().find(|&tier| self.sets.contains(held[tier as usize], worker))
    }

    fn is_complete(&self, node: u32, worker: WorkerId) -> bool {
        node == ROOT || node != NONE && self.sets.contains(self.table.slot(self.slot(node)).complete, worker)
    }

    fn slot(&self, node: u32) -> usize {
        self.table.find(self.nodes[node as usize].key).expect("every node but the root is in the table")
    }

    fn flip_complete(&mut self, node: u32, worker: WorkerId) {
        let slot = self.slot(node);
        let complete = self.table.complete_mut(slot);
        let was_empty = complete.is_empty();
        *complete = self.sets.flip(*complete, worker);
        let (complete, Node { key, parent, .. }) = (*complete, self.nodes[node as usize]);
        if was_empty {
            // Somebody is complete at the parent, so that its depth is true.
            self.nodes[node as usize].depth = self.nodes[parent as usize].depth + 1;
        }
        let depth = self.nodes[node as usize].depth as usize;
        for (table, unit) in self.milestones.iter_mut().zip(MILESTONES) {
            if depth.is_multiple_of(unit) {
                mark(table, key, node, complete);
            }
        }
    }

    /// A worker that holds a block has everything up to it, if it has everything up to its parent; and so on behind it.
    fn gain(&mut self, node: u32, worker: WorkerId) {
        if !self.is_complete(self.nodes[node as usize].parent, worker) {
            return;
        }
        self.pending.push(node);
        while let Some(node) = self.pending.pop() {
            if self.holds(node, worker) && !self.is_complete(node, worker) {
                self.flip_complete(node, worker);
                self.push_children(node);
            }
        }
    }

    /// A worker has no longer everything up to a block, nor up to any behind it.
    fn lose(&mut self, node: u32, worker: WorkerId) {
        self.pending.push(node);
        while let Some(node) = self.pending.pop() {
            if self.is_complete(node, worker) {
                self.flip_complete(node, worker);
                self.push_children(node);
            }
        }
    }

    fn push_children(&mut self, node: u32) {
        let mut child = self.nodes[node as usize].child;
        while child != NONE {
            self.pending.push(child);
            child = self.nodes[child as usize].next;
        }
    }

    /// Removes a node that nobody holds and from which nothing hangs, and those above it of which that is then true.
    pub(super) fn prune(&mut self, mut node: u32) {
        while node != ROOT && node != NONE {
            let Node { parent, child, next, previous, held, .. } = self.nodes[node as usize];
            if held != NOBODY || child != NONE {
                return;
            }
            self.table.remove(self.slot(node));
            if previous != NONE {
                self.nodes[previous as usize].next = next;
            } else if parent != NONE {
                self.nodes[parent as usize].child = next;
            }
            if next != NONE {
                self.nodes[next as usize].previous = previous;
            }
            self.free.push(node);
            node = parent;
        }
    }

    /// A worker holds nothing any more. O(blocks of all workers + sets): a worker's own blocks are listed nowhere.
    pub(super) fn release_all(&mut self, worker: WorkerId) -> Result<()> {
        let without = self.sets.without(worker)?;
        self.milestones.iter_mut().for_each(|table| table.retain_sets(|set| self.sets.instead(set, &without)));
        for slot in self.table.taken_mut() {
            self.sets.take_over(&mut slot.complete, &without);
        }
        for node in &mut self.nodes {
            node.held.iter_mut().for_each(|set| self.sets.take_over(set, &without));
        }
        self.sets.end(without);
        for node in 1..self.nodes.len() as u32 {
            // Those that are free are in the table no more.
            if self.table.node(self.nodes[node as usize].key) == Some(node) {
                self.prune(node);
            }
        }
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn bytes(&self) -> usize {
        let milestones = self.milestones.iter().map(KeyTable::bytes).sum::<usize>();
        let numbers = self.free.capacity() + self.pending.capacity();
        self.nodes.capacity() * size_of::<Node>() + numbers * 4 + self.table.bytes() + milestones + self.sets.bytes()
    }

    /// Asserts what always holds. O(blocks · workers).
    pub(super) fn check(&self) {
        assert!(self.pending.is_empty());
        assert_eq!(self.nodes.len() - 1 - self.free.len(), self.len(), "nodes are in the table or free");
        let (mut mentioned, mut milestones) = (Vec::new(), [0; 2]);
        for (index, node) in self.nodes.iter().enumerate().skip(1) {
            if self.table.node(node.key) != Some(index as u32) {
                continue;
            }
            mentioned.extend(node.held);
            let complete = self.table.slot(self.slot(index as u32)).complete;
            mentioned.push(complete);
            if !complete.is_empty() {
                assert_eq!(node.depth, self.nodes[node.parent as usize].depth + 1);
                for (place, table) in self.milestones.iter().enumerate() {
                    if (node.depth as usize).is_multiple_of(MILESTONES[place]) {
                        let at = table.find(node.key).expect("a milestone");
                        assert_eq!(table.slot(at).complete, complete);
                        milestones[place] += 1;
                    }
                }
            }
            assert!(node.held != NOBODY || node.child != NONE, "a node that nothing needs");
            for worker in (0..self.sets.room()).map(WorkerId::of_index) {
                let should = self.holds(index as u32, worker) && self.is_complete(node.parent, worker);
                assert_eq!(self.sets.contains(complete, worker), should, "who is complete");
            }
            let mut child = node.child;
            while child != NONE {
                assert_eq!(self.nodes[child as usize].parent, index as u32);
                child = self.nodes[child as usize].next;
            }
        }
        assert_eq!(self.milestones.each_ref().map(KeyTable::len), milestones);
        self.sets.check(mentioned.into_iter().filter(|set| !set.is_empty()));
    }
}

/// Says of a milestone what the table says of it. No mention of the set is counted.
fn mark(milestones: &mut KeyTable, key: u64, node: u32, complete: SetId) {
    match (milestones.find(key), complete.is_empty()) {
        (Some(at), true) => milestones.remove(at),
        (Some(at), false) => *milestones.complete_mut(at) = complete,
        (None, true) => {}
        (None, false) => {
            let at = milestones.insert(key, node);
            *milestones.complete_mut(at) = complete;
        }
    }
}
