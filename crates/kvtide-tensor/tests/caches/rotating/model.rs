//! A sliding window that keeps every token, and says which of them are shown.

use crate::tokens::Id;

/// All tokens ever appended to a rotating cache.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub window: usize,
    pub sinks: usize,
    pub tokens: Vec<Id>,
}

impl Model {
    /// The most tokens that are retained.
    pub fn limit(&self) -> usize {
        self.sinks + self.window
    }

    /// The positions of the tokens that are retained.
    pub fn retained(&self) -> Vec<usize> {
        let all = self.tokens.len();
        let keeps = |&position: &usize| position < self.sinks || position + self.window >= all;
        (0..all).filter(|position| all <= self.limit() || keeps(position)).collect()
    }

    /// Adds tokens; answers the positions that an append shows.
    pub fn append(&mut self, ids: &[Id]) -> Vec<usize> {
        let (before, all) = (self.retained(), self.tokens.len());
        self.tokens.extend(ids);
        if ids.len() > 1 && before.len() + ids.len() > self.limit() {
            before.into_iter().chain(all..self.tokens.len()).collect()
        } else {
            self.retained()
        }
    }

    /// True when the cache can be cut to `len` tokens.
    pub fn can_set_len(&self, len: usize) -> bool {
        len == self.tokens.len() || (len < self.tokens.len() && self.tokens.len() <= self.limit())
    }

    pub fn ids(&self, positions: &[usize]) -> Vec<Id> {
        positions.iter().map(|&position| self.tokens[position]).collect()
    }
}
