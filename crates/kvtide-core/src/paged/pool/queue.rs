//! An ordered queue of blocks that can be added and removed at any place: those whose rank changes when their limit
//! passes, and all cached blocks of a pool that evicts the least useful first.
//!
//! ```text
//! place      (50, 0, 3)  (50, 0, 8)  (90, 0, 1)  (90, 640, 0)       rank, usefulness, then the turn of the release
//! block          4           9           2            7
//! ```
//!
//! A tree ordered by places, balanced by weights that are computed from a node's index: expected O(log blocks) deep,
//! without randomness. Only `reserve` allocates memory for entries, and the memory is kept. Every call is O(log
//! blocks), `iter` per block.
//!
//! Invariants: places are in order and unique, and no node weighs more than the one above it.

use crate::error::{Error, Result};

/// Rank, score of usefulness, and turn of the release; the lowest is evicted first.
pub(super) type Place = (u8, u64, u32);

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    place: Place,
    block: u32,
    /// The subtrees with lower and with higher places.
    below: [u32; 2],
}

#[derive(Debug)]
pub(super) struct Queue {
    nodes: Vec<Node>,
    /// Nodes that are not in the tree.
    free: Vec<u32>,
    root: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { nodes: Vec::new(), free: Vec::new(), root: NONE }
    }
}

impl Queue {
    pub(super) fn reserve(&mut self, more: usize) -> Result<()> {
        let new = more.saturating_sub(self.free.len());
        let all = self.nodes.len() + new;
        let out_of_memory = |_| Error::OutOfMemory { count: all as u64, what: "limited priorities" };
        self.nodes.try_reserve(new).map_err(out_of_memory)?;
        // All nodes may be free at once.
        self.free.try_reserve(all - self.free.len()).map_err(out_of_memory)
    }

    /// Adds a block at an unused place. Memory for it is reserved.
    pub(super) fn insert(&mut self, place: Place, block: u32) {
        let node = Node { place, block, below: [NONE; 2] };
        let new = match self.free.pop() {
            Some(new) => {
                self.nodes[new as usize] = node;
                new
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.root = self.inserted(self.root, new);
    }

    pub(super) fn remove(&mut self, place: Place) {
        self.root = self.removed(self.root, place);
    }

    pub(super) fn len(&self) -> u32 {
        (self.nodes.len() - self.free.len()) as u32
    }

    /// The blocks with their places, lowest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Place, u32)> {
        std::iter::successors(self.first(), |(place, _)| self.first_above(Some(*place)))
    }

    pub(super) fn first(&self) -> Option<(Place, u32)> {
        self.first_above(None)
    }

    /// Renumbers turns; `change` must keep their order.
    pub(super) fn change_turns(&mut self, change: impl Fn(u32) -> u32) {
        // The places of nodes that are not in the tree are unused.
        self.nodes.iter_mut().for_each(|node| node.place.2 = change(node.place.2));
    }

    /// The lowest entry above a place.
    fn first_above(&self, place: Option<Place>) -> Option<(Place, u32)> {
        let (mut at, mut found) = (self.root, None);
        while let Some(node) = self.nodes.get(at as usize) {
            let is_above = place.is_none_or(|place| node.place > place);
            if is_above {
                found = Some((node.place, node.block));
            }
            at = node.below[usize::from(!is_above)];
        }
        found
    }

    fn inserted(&mut self, root: u32, new: u32) -> u32 {
        let place = self.nodes[new as usize].place;
        if root == NONE || weight(new) > weight(root) {
            self.nodes[new as usize].below = self.split(root, place);
            return new;
        }
        let side = usize::from(place > self.nodes[root as usize].place);
        let child = self.inserted(self.nodes[root as usize].below[side], new);
        self.nodes[root as usize].below[side] = child;
        root
    }

    /// Splits a tree into the nodes below a place and those above it.
    fn split(&mut self, root: u32, place: Place) -> [u32; 2] {
        if root == NONE {
            return [NONE; 2];
        }
        let side = usize::from(self.nodes[root as usize].place < place);
        let mut parts = self.split(self.nodes[root as usize].below[side], place);
        self.nodes[root as usize].below[side] = std::mem::replace(&mut parts[1 - side], root);
        parts
    }

    fn removed(&mut self, root: u32, place: Place) -> u32 {
        assert_ne!(root, NONE, "nothing is at {place:?}");
        let node = self.nodes[root as usize];
        if node.place == place {
            self.free.push(root);
            return self.joined(node.below);
        }
        let side = usize::from(place > node.place);
        let child = self.removed(node.below[side], place);
        self.nodes[root as usize].below[side] = child;
        root
    }

    /// Joins two trees; all places of the first are below those of the second.
    fn joined(&mut self, [low, high]: [u32; 2]) -> u32 {
        if low == NONE || high == NONE {
            return low.min(high);
        }
        let (top, side) = if weight(low) > weight(high) { (low, 1) } else { (high, 0) };
        let inner = self.nodes[top as usize].below[side];
        let child = self.joined(if side == 1 { [inner, high] } else { [low, inner] });
        self.nodes[top as usize].below[side] = child;
        top
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let mut met = 0;
        let (mut open, mut before) = (vec![(self.root, false)], None);
        while let Some((at, is_left_done)) = open.pop() {
            let Some(node) = self.nodes.get(at as usize) else { continue };
            if !is_left_done {
                open.extend([(at, true), (node.below[0], false)]);
                continue;
            }
            met += 1;
            let light = |&below: &u32| below == NONE || weight(below) < weight(at);
            if before.is_some_and(|before| before >= node.place) || !node.below.iter().all(light) || met > self.len() {
                return Err(format!("block {} is at {:?}, behind {before:?}", node.block, node.place));
            }
            before = Some(node.place);
            open.push((node.below[1], false));
        }
        match met == self.len() {
            true => Ok(()),
            false => Err(format!("{met} limited blocks are in order, {} are counted", self.len())),
        }
    }
}

/// A weight that differs between nodes and looks random (the finalizer of MurmurHash3, which is a permutation).
fn weight(node: u32) -> u32 {
    let mixed = (node ^ node >> 16).wrapping_mul(0x85eb_ca6b);
    let mixed = (mixed ^ mixed >> 13).wrapping_mul(0xc2b2_ae35);
    mixed ^ mixed >> 16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_order_as_a_sorted_list_has_it(changes in prop::collection::vec((any::<bool>(), 0..3u8, 0..3u64, 0..40u32), 0..200)) {
            let (mut queue, mut list) = (Queue::default(), Vec::new());
            for (block, (is_new, rank, score, turn)) in (0..).zip(changes) {
                let place = (rank, score, turn);
                match list.binary_search_by_key(&place, |entry: &(Place, u32)| entry.0) {
                    Err(at) if is_new => {
                        queue.reserve(1).unwrap();
                        queue.insert(place, block);
                        list.insert(at, (place, block));
                    }
                    Ok(at) if !is_new => {
                        queue.remove(place);
                        list.remove(at);
                    }
                    _ => {}
                }
                queue.check().unwrap();
                prop_assert_eq!(queue.iter().collect::<Vec<_>>(), &list[..]);
                prop_assert_eq!(queue.len() as usize, list.len());
            }
        }
    }

    #[test]
    fn stays_shallow_whatever_the_order() {
        let depth = |order: &mut dyn Iterator<Item = u32>| {
            let mut queue = Queue::default();
            order.for_each(|turn| {
                queue.reserve(1).unwrap();
                queue.insert((50, 0, turn), turn);
            });
            let mut level = vec![queue.root];
            std::iter::from_fn(|| {
                level =
                    level.iter().filter_map(|&at| queue.nodes.get(at as usize)).flat_map(|node| node.below).collect();
                (!level.is_empty()).then_some(())
            })
            .count()
        };
        let depths = [depth(&mut (0..10_000)), depth(&mut (0..10_000).rev())];
        assert!(depths.iter().all(|&depth| depth < 50), "{depths:?}");
    }

    #[test]
    fn check_sees_what_is_out_of_order() {
        let mut queue = Queue::default();
        for turn in 0..9 {
            queue.reserve(1).unwrap();
            queue.insert((50, 0, turn), turn);
        }
        queue.check().unwrap();
        queue.nodes[4].place.2 = 20;
        assert!(queue.check().is_err());
    }
}
