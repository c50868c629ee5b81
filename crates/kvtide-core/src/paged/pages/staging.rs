//! Which pages are staged, and where. Low-bit pages lie in floats until all their slots are written.
//!
//! ```text
//! staging page   0                   1        2                   3 ...
//!                block 7, layer 0    free     block 2, layer 5    never used
//! ```
//!
//! Staging pages that came back are used before new ones, the last one first: its memory is the warmest. Every call is O(1) but for
//! `give_back_block`, which is O(layers) unless nothing is staged. Memory is taken in `reserve` alone.

use std::collections::HashMap;

use super::layout::Page;
use crate::error::{Error, Result};

/// The pages that are staged.
#[derive(Debug, Default)]
pub struct Staging {
    places: HashMap<Page, u32>,
    free: Vec<u32>,
    /// Staging pages handed out so far: those from here on were never written.
    used: u32,
}

impl Staging {
    /// The staging page of a page, if it has one.
    pub fn get(&self, page: Page) -> Option<u32> {
        if self.places.is_empty() { None } else { self.places.get(&page).copied() }
    }

    /// How many pages are staged.
    pub fn len(&self) -> u32 {
        self.places.len() as u32
    }

    /// True when no page is.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Staging pages handed out so far; those above are as the executor made them.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// The staging pages that the next calls of [`Staging::take`] will give.
    pub fn upcoming(&self) -> impl Iterator<Item = u32> {
        self.free.iter().rev().copied().chain(self.used..)
    }

    /// Makes room in the bookkeeping for so many more pages.
    pub fn reserve(&mut self, pages: usize) -> Result<()> {
        let count = self.places.len() as u64 + pages as u64;
        let out_of_memory = |_| Error::OutOfMemory { count, what: "staged pages" };
        self.places.try_reserve(pages).map_err(out_of_memory)?;
        // All staged pages may come back.
        self.free.try_reserve(self.places.len() + pages).map_err(out_of_memory)
    }

    /// Takes a staging page for a page that has none.
    pub fn take(&mut self, page: Page) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        });
        let before = self.places.insert(page, place);
        assert!(before.is_none(), "{page:?} is staged already");
        place
    }

    /// Takes the staging page of a page back, if it has one.
    pub fn give_back(&mut self, page: Page) {
        if !self.is_empty()
            && let Some(place) = self.places.remove(&page)
        {
            self.free.push(place);
        }
    }

    /// Takes the staging pages of all layers of a block back.
    pub fn give_back_block(&mut self, block: u32, num_layers: u32) {
        if !self.is_empty() {
            (0..num_layers).for_each(|layer| self.give_back(Page { block, layer }));
        }
    }

    /// The pages that are staged, in no order.
    pub fn pages(&self) -> impl Iterator<Item = Page> {
        self.places.keys().copied()
    }

    /// Says what is wrong with the bookkeeping, if anything is. O(staging pages).
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut owners = vec![false; self.used as usize];
        for &place in self.places.values().chain(&self.free) {
            match owners.get_mut(place as usize) {
                Some(owned @ false) => *owned = true,
                Some(true) => return Err(format!("staging page {place} is in two places")),
                None => return Err(format!("staging page {place} of {} is in use", self.used)),
            }
        }
        match owners.iter().position(|owned| !owned) {
            Some(place) => Err(format!("staging page {place} is lost")),
            None => Ok(()),
        }
    }
}
