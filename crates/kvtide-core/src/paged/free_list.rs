//! Blocks that came back, longest free first: a doubly linked list laid over an array, one link per block.
//!
//! ```text
//! ends.next -> 4 <-> 1 <-> 7 <- ends.prev      links[1] = { prev: 4, next: 7 }
//! ```
//!
//! The two ends are one more link, named `END`, so that no block is a special case.
//!
//! Invariants: following `next` from `END` meets every block in the list once and comes back to `END`; `prev` says the
//! same backwards. Who is in the list is the pool's knowledge: a block is pushed only when it is out, removed only when
//! it is in. Every call is O(1) but for `iter` and `check`; memory is taken in `new` and touched up to the highest index
//! pushed.

use crate::error::{Error, Result};

/// The name of the link that joins both ends; above every block.
const END: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

#[derive(Debug)]
pub(super) struct FreeList {
    ends: Link,
    links: Vec<Link>,
    len: u32,
}

impl FreeList {
    /// An empty list for blocks below `capacity`.
    pub(super) fn new(capacity: u32) -> Result<Self> {
        let mut links = Vec::new();
        links
            .try_reserve_exact(capacity as usize)
            .map_err(|_| Error::OutOfMemory { count: capacity.into(), what: "blocks" })?;
        Ok(FreeList { ends: Link { prev: END, next: END }, links, len: 0 })
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Puts a block that is not in the list at its end.
    pub(super) fn push_back(&mut self, block: u32) {
        if self.links.len() <= block as usize {
            self.links.resize(block as usize + 1, Link { prev: END, next: END });
        }
        let last = self.ends.prev;
        *self.link(block) = Link { prev: last, next: END };
        self.link(last).next = block;
        self.ends.prev = block;
        self.len += 1;
    }

    /// Takes a block that is in the list out of it, wherever it is.
    pub(super) fn remove(&mut self, block: u32) {
        let Link { prev, next } = *self.link(block);
        self.link(prev).next = next;
        self.link(next).prev = prev;
        self.len -= 1;
    }

    /// Takes the block that has been free for longest.
    pub(super) fn pop_front(&mut self) -> Option<u32> {
        let first = self.iter().next()?;
        self.remove(first);
        Some(first)
    }

    /// The blocks, longest free first.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let follow = |next: u32| (next != END).then_some(next);
        std::iter::successors(follow(self.ends.next), move |&block| follow(self.links[block as usize].next))
    }

    /// Whether the links are whole, both ways.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut prev = END;
        let mut met = 0;
        for block in self.iter().take(self.len as usize + 1) {
            let back = self.links[block as usize].prev;
            if back != prev {
                return Err(format!("free block {block} points back to {back}, not to {prev}"));
            }
            prev = block;
            met += 1;
        }
        if met != self.len || prev != self.ends.prev {
            return Err(format!("the free list counts {} blocks, its links lead to {met}", self.len));
        }
        Ok(())
    }

    fn link(&mut self, block: u32) -> &mut Link {
        if block == END { &mut self.ends } else { &mut self.links[block as usize] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list_of(blocks: &[u32]) -> FreeList {
        let mut list = FreeList::new(8).unwrap();
        blocks.iter().for_each(|&block| list.push_back(block));
        list
    }

    fn assert_holds(list: &FreeList, blocks: &[u32]) {
        assert_eq!(list.iter().collect::<Vec<_>>(), blocks);
        assert_eq!(list.len() as usize, blocks.len());
        list.check().unwrap();
    }

    #[test]
    fn gives_blocks_in_the_order_in_which_they_came() {
        let mut list = list_of(&[4, 1, 7]);
        assert_holds(&list, &[4, 1, 7]);
        assert_eq!(list.pop_front(), Some(4));
        list.push_back(4);
        assert_holds(&list, &[1, 7, 4]);
    }

    #[test]
    fn removes_from_every_place() {
        for (block, rest) in [(4, [1, 7]), (1, [4, 7]), (7, [4, 1])] {
            let mut list = list_of(&[4, 1, 7]);
            list.remove(block);
            assert_holds(&list, &rest);
        }
    }

    #[test]
    fn is_empty_again_after_the_last_block() {
        let mut list = list_of(&[0]);
        assert_eq!(list.pop_front(), Some(0));
        assert_eq!(list.pop_front(), None);
        assert_holds(&list, &[]);
    }

    #[test]
    fn check_sees_a_broken_link() {
        let mut list = list_of(&[4, 1, 7]);
        list.links[1].prev = 7;
        assert!(list.check().is_err());
        let mut list = list_of(&[4, 1, 7]);
        list.links[1].next = END;
        assert!(list.check().is_err());
        let mut list = list_of(&[4, 1, 7]);
        list.links[7].next = 4;
        assert!(list.check().is_err());
    }
}
