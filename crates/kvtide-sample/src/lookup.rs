//! Prompt lookup: drafts the tokens that followed the last tokens at their previous occurrence.
//!
//! ```text
//! ... 5 6 7 8 9 ... 5 6 7     the last three occurred before: the draft is 8 9 ...
//! ```
//!
//! Each length of n-grams has a hash table: a slot contains only the place where the latest n-gram with its content
//! ends; the tokens themselves are compared. The n-gram at the very end is added when the next token arrives, so every
//! entry has a follower. O(lengths) for each token, independent of the number of tokens; a draft costs the same, plus
//! its tokens. At most 12 bytes for each token and length, and 4 for the token.

use crate::error::{Error, Result};

/// The longest n-gram that is compared.
pub const NGRAM_MAX: u32 = 16;

/// Finds drafts in the tokens of one sequence.
///
/// ```
/// let mut lookup = kvtide_sample::PromptLookup::new(2, 4)?;
/// lookup.push(&[1, 2, 3, 4, 9, 2, 3]);
/// assert_eq!(lookup.draft(2), [4, 9]);
/// # Ok::<(), kvtide_sample::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PromptLookup {
    tokens: Vec<u32>,
    /// The tables, from the longest n-grams to the shortest.
    tables: Vec<Table>,
}

/// The ends of the n-grams of one length: the places behind their last tokens; 0 in empty slots.
#[derive(Clone, Debug)]
struct Table {
    length: usize,
    slots: Vec<u32>,
    used: usize,
}

/// Number of slots in which a content may be. If all are used by other contents, the last is overwritten, and its
/// content is no longer found.
const PROBES: usize = 32;

impl Table {
    fn hash(ngram: &[u32]) -> u64 {
        let mixed = ngram.iter().fold(0x9E37_79B9_7F4A_7C15u64, |hash, &token| {
            let next = (hash ^ u64::from(token)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
            next ^ (next >> 32)
        });
        mixed.wrapping_mul(0xC4CE_B9FE_1A85_EC53) >> 16
    }

    /// The n-gram that ends before a place.
    fn ngram<'t>(&self, tokens: &'t [u32], end: usize) -> &'t [u32] {
        &tokens[end - self.length..end]
    }

    /// The slot of an n-gram: the one that contains it, else an empty one, else the last one it could be in.
    fn slot(&self, tokens: &[u32], ngram: &[u32]) -> usize {
        let (mask, start) = (self.slots.len() - 1, Table::hash(ngram) as usize);
        let mut probes = (0..PROBES.min(self.slots.len())).map(|probe| (start + probe) & mask);
        let last = (start + PROBES.min(self.slots.len()) - 1) & mask;
        let is_it = |slot: &usize| {
            let end = self.slots[*slot] as usize;
            end == 0 || self.ngram(tokens, end) == ngram
        };
        probes.find(is_it).unwrap_or(last)
    }

    fn put(&mut self, tokens: &[u32], end: usize) {
        if (self.used + 1) * 2 > self.slots.len() {
            let larger = vec![0; (self.slots.len() * 2).max(16)];
            let mut before = std::mem::replace(&mut self.slots, larger);
            before.retain(|&end| end != 0);
            self.used = 0;
            before.into_iter().for_each(|end| self.place(tokens, end as usize));
        }
        self.place(tokens, end);
    }

    fn place(&mut self, tokens: &[u32], end: usize) {
        let slot = self.slot(tokens, self.ngram(tokens, end));
        self.used += usize::from(self.slots[slot] == 0);
        self.slots[slot] = end as u32;
    }

    fn find(&self, tokens: &[u32], ngram: &[u32]) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let end = self.slots[self.slot(tokens, ngram)] as usize;
        (end != 0 && self.ngram(tokens, end) == ngram).then_some(end)
    }
}

impl PromptLookup {
    /// Returns a lookup that compares n-grams of `shortest` to `longest` tokens.
    pub fn new(shortest: u32, longest: u32) -> Result<Self> {
        if !(1..=NGRAM_MAX).contains(&longest) {
            return Err(Error::argument("longest", longest, format!("1 to {NGRAM_MAX}")));
        }
        if !(1..=longest).contains(&shortest) {
            return Err(Error::argument("shortest", shortest, format!("1 to {longest}, the longest")));
        }
        let table = |length: u32| Table { length: length as usize, slots: Vec::new(), used: 0 };
        Ok(PromptLookup { tokens: Vec::new(), tables: (shortest..=longest).rev().map(table).collect() })
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// True if there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Appends tokens.
    pub fn push(&mut self, tokens: &[u32]) {
        for &token in tokens {
            // Places are 32-bit numbers; no sequence is that long.
            let end = self.tokens.len();
            for table in &mut self.tables {
                if end >= table.length && u32::try_from(end).is_ok() {
                    table.put(&self.tokens, end);
                }
            }
            self.tokens.push(token);
        }
    }

    /// Keeps the first `len` tokens; does nothing if there are fewer. O(len): the tables are built again.
    pub fn truncate(&mut self, len: usize) {
        if len >= self.tokens.len() {
            return;
        }
        let left = self.tokens[..len].to_vec();
        self.tokens.clear();
        for table in &mut self.tables {
            (table.slots, table.used) = (Vec::new(), 0);
        }
        self.push(&left);
    }

    /// Drafts the tokens that followed the last tokens at their previous occurrence: of the longest n-gram that
    /// occurred before, at its latest place. Returns `most` tokens, or none if no n-gram occurred before. A draft that
    /// reaches the end continues with itself, as repeating text does.
    #[must_use]
    pub fn draft(&self, most: usize) -> Vec<u32> {
        let tokens = self.tokens.as_slice();
        let ends = self.tables.iter().filter(|table| table.length < tokens.len());
        let found = ends.into_iter().find_map(|table| table.find(tokens, table.ngram(tokens, tokens.len())));
        let Some(end) = found else { return Vec::new() };
        let mut draft: Vec<u32> = tokens[end..].iter().copied().take(most).collect();
        while draft.len() < most {
            draft.push(draft[draft.len() - (tokens.len() - end)]);
        }
        draft
    }
}
