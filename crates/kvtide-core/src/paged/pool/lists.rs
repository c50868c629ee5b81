//! Doubly linked lists of blocks in one array of links. A block's record is next to its link, so a walk along a list in
//! a large pool waits for memory once per block.
//!
//! ```text
//! end of list 2 -> 4 <-> 1 <-> 7 <- end of list 2      link of 1 = { prev: 4, next: 7 }
//! ```
//!
//! The two ends of a list are one more link, with the number `END + list`: no block is a special case, and a block
//! leaves a list without knowing it. The caller knows which list each block is in: it pushes only a block that is in no
//! list, and removes only a block that is in one. Every call is O(1), except `iter`, `check`, and `reserve`, which
//! costs what it adds. 8 bytes per block.

use crate::error::Result;
use crate::paged::per_block::PerBlock;

/// The number of the first list's end; above every block.
const END: u32 = 1 << 31;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

#[derive(Debug)]
pub(super) struct BlockLists<T> {
    ends: Vec<Link>,
    blocks: PerBlock<(Link, T)>,
}

impl<T: Copy> BlockLists<T> {
    /// Returns empty lists for blocks below `blocks`, whose records are `fill`.
    pub(super) fn new(lists: u8, blocks: u32, fill: T) -> Self {
        let ends = (0..u32::from(lists)).map(|list| Link { prev: END + list, next: END + list }).collect();
        BlockLists { ends, blocks: PerBlock::new(blocks, 1, (Link { prev: END, next: END }, fill)) }
    }

    pub(super) fn reserve(&mut self, block: u32) -> Result<()> {
        self.blocks.reserve(block)
    }

    /// Appends a block that is in no list.
    pub(super) fn push_back(&mut self, list: u8, block: u32) {
        let end = END + u32::from(list);
        let last = self.link(end).prev;
        *self.link(block) = Link { prev: last, next: end };
        self.link(last).next = block;
        self.link(end).prev = block;
    }

    pub(super) fn remove(&mut self, block: u32) {
        let Link { prev, next } = *self.link(block);
        self.link(prev).next = next;
        self.link(next).prev = prev;
    }

    pub(super) fn first(&self, list: u8) -> Option<u32> {
        let next = self.ends[usize::from(list)].next;
        (next < END).then_some(next)
    }

    /// The blocks of a list, in the order in which they were appended.
    pub(super) fn iter(&self, list: u8) -> impl Iterator<Item = u32> {
        std::iter::successors(self.first(list), |&block| {
            let next = self.blocks[block].0.next;
            (next < END).then_some(next)
        })
    }

    /// Returns the number of blocks in a list, or an error if its links do not agree both ways. O(its blocks).
    pub(super) fn check(&self, list: u8) -> Result<u32, String> {
        let end = END + u32::from(list);
        let (mut prev, mut met) = (end, 0);
        for block in self.iter(list) {
            let back = self.blocks[block].0.prev;
            if back != prev || met > self.blocks.rows() {
                return Err(format!("block {block} of list {list} points back to {back}, not to {prev}"));
            }
            prev = block;
            met += 1;
        }
        let ends = (self.ends[usize::from(list)].prev, met.checked_sub(1).map(|_| self.blocks[prev].0.next));
        if ends.0 != prev || ends.1.is_some_and(|next| next != end) {
            return Err(format!("list {list} ends with block {}, its links lead to {prev}", ends.0));
        }
        Ok(met)
    }

    pub(super) fn len(&self) -> u32 {
        self.blocks.rows()
    }

    pub(super) fn bytes(&self) -> usize {
        self.blocks.bytes() + self.ends.capacity() * size_of::<Link>()
    }

    fn link(&mut self, name: u32) -> &mut Link {
        if name >= END { &mut self.ends[(name - END) as usize] } else { &mut self.blocks[name].0 }
    }
}

impl<T: Copy> std::ops::Index<u32> for BlockLists<T> {
    type Output = T;

    #[inline]
    fn index(&self, block: u32) -> &T {
        &self.blocks[block].1
    }
}

impl<T: Copy> std::ops::IndexMut<u32> for BlockLists<T> {
    #[inline]
    fn index_mut(&mut self, block: u32) -> &mut T {
        &mut self.blocks[block].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists_of(blocks: &[u32]) -> BlockLists<char> {
        let mut lists = BlockLists::new(2, 8, 'a');
        lists.reserve(7).unwrap();
        blocks.iter().for_each(|&block| lists.push_back(1, block));
        lists
    }

    fn assert_holds(lists: &BlockLists<char>, blocks: &[u32]) {
        assert_eq!(lists.iter(1).collect::<Vec<_>>(), blocks);
        assert_eq!(lists.first(1), blocks.first().copied());
        assert_eq!(lists.check(1).unwrap() as usize, blocks.len());
        assert_eq!(lists.check(0), Ok(0));
    }

    #[test]
    fn keeps_blocks_in_the_order_in_which_they_came() {
        let mut lists = lists_of(&[4, 1, 7]);
        assert_holds(&lists, &[4, 1, 7]);
        lists.remove(4);
        lists.push_back(1, 4);
        assert_holds(&lists, &[1, 7, 4]);
    }

    #[test]
    fn removes_from_every_place() {
        for (block, rest) in [(4, [1, 7]), (1, [4, 7]), (7, [4, 1])] {
            let mut lists = lists_of(&[4, 1, 7]);
            lists.remove(block);
            assert_holds(&lists, &rest);
        }
    }

    #[test]
    fn is_empty_again_after_the_last_block() {
        let mut lists = lists_of(&[0]);
        lists.remove(0);
        assert_holds(&lists, &[]);
    }

    #[test]
    fn a_block_moves_from_list_to_list() {
        let mut lists = lists_of(&[4, 1, 7]);
        lists.remove(1);
        lists.push_back(0, 1);
        lists[1] = 'b';
        assert_eq!((lists.check(0), lists.check(1), lists[1], lists[4]), (Ok(1), Ok(2), 'b', 'a'));
        assert_eq!(lists.iter(0).chain(lists.iter(1)).collect::<Vec<_>>(), [1, 4, 7]);
    }

    #[test]
    fn check_sees_a_broken_link() {
        let broken: [fn(&mut BlockLists<char>); 4] = [
            |lists| lists.link(1).prev = 7,
            |lists| lists.link(1).next = END + 1,
            |lists| lists.link(7).next = 4,
            |lists| lists.link(7).next = END,
        ];
        for (place, break_it) in broken.into_iter().enumerate() {
            let mut lists = lists_of(&[4, 1, 7]);
            break_it(&mut lists);
            assert!(lists.check(1).is_err(), "{place}");
        }
    }
}
