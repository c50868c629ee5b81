//! The tree of blocks: the workers that hold each block, and the workers that have all blocks up to it.
//!
//! ```text
//!            root                 held      in some tier, whatever comes before it
//!           /    \                complete  held, and complete at the parent: the whole prefix is there
//!         a {0,1}  e {2}          Removing a block takes the worker out of `complete` in all blocks after it;
//!         |                       storing it again puts it back in. So `complete` only shrinks along a path, and
//!         b {0}                   a search can bisect it.
//! ```
//!
//! A block whose parent is not known yet has the parent `NONE`, and no worker is complete there. A parent that was only
//! mentioned is a node that no worker holds. A node is removed when no worker holds it and it has no children.
//!
//! To hold or to release a block is O(1), plus O(blocks after it that the worker holds) if those become complete or
//! stop being complete.

use kvtide_core::Error as CoreError;

use super::key_table::{KeyTable, NONE};
use super::state_marks::StateMarks;
use super::tier::Tier;
use super::worker_id::WorkerId;
use super::worker_sets::{SetId, WorkerSets};
use crate::error::Result;

/// Depths whose multiples are milestones, the rarest first.
pub(super) const MILESTONES: [usize; 2] = [MILESTONE * MILESTONE, MILESTONE];
pub(super) const MILESTONE: usize = 8;

/// The empty prefix: all workers have it.
pub(super) const ROOT: u32 = 0;

#[derive(Clone, Copy, Debug)]
struct Node {
    key: u64,
    parent: u32,
    child: u32,
    next: u32,
    previous: u32,
    /// The number of blocks up to this one. Valid while some worker is complete here.
    depth: u32,
    /// The workers that hold the block, by tier.
    held: [SetId; 3],
}

const NO_WORKERS: [SetId; 3] = [SetId::EMPTY; 3];

#[derive(Debug)]
pub(super) struct NodeTree {
    nodes: Vec<Node>,
    free: Vec<u32>,
    pub(super) table: KeyTable,
    /// Copies of the table's entries of milestones that some worker has completely: so much smaller that they stay in
    /// the processor's caches.
    pub(super) milestones: [KeyTable; 2],
    pub(super) sets: WorkerSets,
    /// The states that workers keep at blocks, which need not be in the tree.
    pub(super) states: StateMarks,
    /// Nodes still to visit; empty between calls.
    pending: Vec<u32>,
}

impl NodeTree {
    pub(super) fn new() -> Self {
        let root = Node { key: 0, parent: NONE, child: NONE, next: NONE, previous: NONE, depth: 0, held: NO_WORKERS };
        let (table, milestones) = (KeyTable::new(), MILESTONES.map(|_| KeyTable::new()));
        let (free, pending) = (Vec::new(), Vec::new());
        let (sets, states) = (WorkerSets::new(), StateMarks::new());
        NodeTree { nodes: vec![root], free, table, milestones, sets, states, pending }
    }

    /// Allocates memory for so many additional blocks, each with a holder.
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

    /// The node of a key; creates it if there is none.
    pub(super) fn named(&mut self, key: u64) -> u32 {
        if let Some(node) = self.table.node(key) {
            return node;
        }
        let made = Node { key, parent: NONE, child: NONE, next: NONE, previous: NONE, depth: 0, held: NO_WORKERS };
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

    /// True if the block with this key has a block before it, or starts a prompt.
    pub(super) fn is_attached(&self, key: u64) -> bool {
        self.table.node(key).is_some_and(|node| self.nodes[node as usize].parent != NONE)
    }

    /// Makes a node a child of another, unless it already has a parent. A key determines everything before it, so it
    /// could only be the same parent.
    pub(super) fn attach(&mut self, node: u32, parent: u32) {
        // Events are not trusted: a cycle would never be freed.
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
        if held != NO_WORKERS {
            let holders: Vec<WorkerId> = held.iter().flat_map(|&set| self.sets.members(set)).collect();
            holders.into_iter().for_each(|worker| self.gain(node, worker));
        }
    }

    /// True if `node` is `above` or a descendant of it. O(1) if `above` has no children, as when blocks arrive in
    /// order.
    fn is_below(&self, mut node: u32, above: u32) -> bool {
        if self.nodes[above as usize].child == NONE {
            return node == above;
        }
        while node != NONE && node != above {
            node = self.nodes[node as usize].parent;
        }
        node == above
    }

    /// Records that a worker holds a block in a tier.
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

    /// Records that a worker no longer holds a block in a tier.
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
            // Some worker is complete at the parent, so the parent's depth is valid.
            self.nodes[node as usize].depth = self.nodes[parent as usize].depth + 1;
        }
        let depth = self.nodes[node as usize].depth as usize;
        for (table, unit) in self.milestones.iter_mut().zip(MILESTONES) {
            if depth.is_multiple_of(unit) {
                mark(table, key, node, complete);
            }
        }
    }

    /// Marks a worker complete at a block that it holds, if it is complete at the parent; then the same for the blocks
    /// after it.
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

    /// Marks a worker incomplete at a block and all blocks after it.
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

    /// Removes a node that no worker holds and that has no children, and then its ancestors to which the same applies.
    pub(super) fn prune(&mut self, mut node: u32) {
        while node != ROOT && node != NONE {
            let Node { parent, child, next, previous, held, .. } = self.nodes[node as usize];
            if held != NO_WORKERS || child != NONE {
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

    /// Releases all blocks and states of a worker. O(blocks of all workers + sets), since there is no list of a worker's own
    /// blocks.
    pub(super) fn release_all(&mut self, worker: WorkerId) -> Result<()> {
        let without = self.sets.without(worker)?;
        self.milestones.iter_mut().for_each(|table| table.retain_sets(|set| self.sets.instead(set, &without)));
        for slot in self.table.taken_mut() {
            self.sets.take_over(&mut slot.complete, &without);
        }
        for node in &mut self.nodes {
            node.held.iter_mut().for_each(|set| self.sets.take_over(set, &without));
        }
        self.states.release_all(&mut self.sets, &without);
        self.sets.end(without);
        for node in 1..self.nodes.len() as u32 {
            // Free nodes are not in the table.
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
        self.nodes.capacity() * size_of::<Node>()
            + numbers * 4
            + self.table.bytes()
            + milestones
            + self.sets.bytes()
            + self.states.bytes()
    }

    /// Asserts the invariants. O(blocks · workers).
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
            assert!(node.held != NO_WORKERS || node.child != NONE, "a node that nothing needs");
            for worker in (0..self.sets.room()).map(WorkerId::of_index) {
                let should = self.holds(index as u32, worker) && self.is_complete(node.parent, worker);
                assert_eq!(self.sets.contains(complete, worker), should, "the workers that are complete");
            }
            let mut child = node.child;
            while child != NONE {
                assert_eq!(self.nodes[child as usize].parent, index as u32);
                child = self.nodes[child as usize].next;
            }
        }
        assert_eq!(self.milestones.each_ref().map(KeyTable::len), milestones);
        mentioned.extend(self.states.check(&self.sets));
        self.sets.check(mentioned.into_iter().filter(|set| !set.is_empty()));
    }
}

/// Copies a table entry to the table of milestones. Reference counts of sets ignore these copies.
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
