//! Whose tokens they are: tokens are found by those alone who have the same identity.

use std::sync::Arc;

use super::groups::all_keys;
use super::prefix::{Extras, Key};
use crate::count::{count, count_positive};
use crate::error::Result;

/// What the tokens of a new sequence are, beside their ids.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The key of no token: of the model, the tenant, the process.
    pub root: Key,
    /// What else decides what the tokens mean.
    pub extra: Arc<Extras>,
}

impl Identity {
    /// The names of the whole blocks of a prompt, of `block_size` tokens each: there is no need of a cache. O(tokens).
    pub fn keys(&self, tokens: &[u32], block_size: u32) -> Result<Vec<Key>> {
        let block_size = count_positive("blockSize", block_size.into())?;
        count("tokens.length", tokens.len() as u64)?;
        all_keys(tokens, block_size, self)
    }
}

impl Default for Identity {
    /// Nobody's: of a cache that nothing is found in by its tokens.
    fn default() -> Self {
        Identity { root: Key([0; 32]), extra: Arc::default() }
    }
}
