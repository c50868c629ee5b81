//! The staged pages and their staging pages. Rows of low-bit pages stay in floats until all slots of the page are
//! written and committed.
//!
//! ```text
//! staging page   0                   1        2                   3 ...
//!                block 7, layer 0    free     block 2, layer 5    never used
//! ```
//!
//! Returned staging pages are used before new ones, the latest first, because its memory is the warmest. Every call is
//! O(1), except `give_back_block`, which is O(layers) unless nothing is staged. Only `reserve` allocates memory.

use std::collections::{HashMap, HashSet};

use super::layout::Page;
use crate::error::{Error, Result};

/// The staged pages.
#[derive(Debug, Default)]
pub struct Staging {
    places: HashMap<Page, u32>,
    /// The staged pages whose quantised form is in the slab as well.
    sealed: HashSet<Page>,
    free: Vec<u32>,
    /// Number of staging pages handed out so far; those from here on were never written.
    used: u32,
}

impl Staging {
    /// The staging page of a page, if it has one.
    pub fn get(&self, page: Page) -> Option<u32> {
        if self.places.is_empty() { None } else { self.places.get(&page).copied() }
    }

    /// True for a staged page whose quantised form is in the slab as well.
    pub fn is_sealed(&self, page: Page) -> bool {
        !self.sealed.is_empty() && self.sealed.contains(&page)
    }

    /// Records if the quantised form of a staged page is in the slab. Does nothing for other pages.
    pub fn set_sealed(&mut self, page: Page, is_sealed: bool) {
        if is_sealed && self.places.contains_key(&page) {
            self.sealed.insert(page);
        } else if !self.sealed.is_empty() {
            self.sealed.remove(&page);
        }
    }

    /// Number of staged pages.
    pub fn len(&self) -> u32 {
        self.places.len() as u32
    }

    /// True if no page is staged.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Number of staging pages handed out so far; later ones are as the executor allocated them.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// The staging pages that the next calls of [`Staging::take`] return.
    pub fn upcoming(&self) -> impl Iterator<Item = u32> {
        self.free.iter().rev().copied().chain(self.used..)
    }

    /// Reserves memory in the bookkeeping for this many more pages.
    pub fn reserve(&mut self, pages: usize) -> Result<()> {
        let count = self.places.len() as u64 + pages as u64;
        let out_of_memory = |_| Error::OutOfMemory { count, what: "staged pages" };
        self.places.try_reserve(pages).map_err(out_of_memory)?;
        self.sealed.try_reserve(self.places.len() + pages - self.sealed.len()).map_err(out_of_memory)?;
        // All staged pages may be returned.
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

    /// Returns the staging page of a page, if it has one.
    pub fn give_back(&mut self, page: Page) {
        if !self.is_empty()
            && let Some(place) = self.places.remove(&page)
        {
            self.free.push(place);
            self.sealed.remove(&page);
        }
    }

    /// Returns the staging pages of all layers of a block.
    pub fn give_back_block(&mut self, block: u32, num_layers: u32) {
        if !self.is_empty() {
            (0..num_layers).for_each(|layer| self.give_back(Page { block, layer }));
        }
    }

    /// The pages that are staged, in no order.
    pub fn pages(&self) -> impl Iterator<Item = Page> {
        self.places.keys().copied()
    }

    /// Returns an error of the bookkeeping, if any. O(staging pages).
    pub fn check_invariants(&self) -> Result<(), String> {
        if let Some(page) = self.sealed.iter().find(|page| !self.places.contains_key(page)) {
            return Err(format!("{page:?} is sealed beside its staging page, and has none"));
        }
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
