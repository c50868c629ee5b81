//! Whose tokens they are: tokens are found by those alone who have the same identity.

use std::sync::Arc;

use super::extra::Extras;
use super::key::BlockKey;
use super::prompt::Prompt;
use crate::count::count_positive;
use crate::error::Result;

/// What the tokens of a new sequence are, beside their ids.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The key of no token: of the model, the tenant, the process.
    pub root: BlockKey,
    /// What else decides what the tokens mean.
    pub extra: Arc<Extras>,
}

impl Identity {
    /// The names of the whole blocks of a prompt, of `block_size` tokens each: there is no need of a cache. O(tokens).
    pub fn keys(&self, tokens: &[u32], block_size: u32) -> Result<Vec<BlockKey>> {
        let size = count_positive("blockSize", block_size.into())? as usize;
        let prompt = self.prompt(tokens);
        prompt.check()?;
        prompt.keys(tokens.len() / size, size)
    }

    /// Tokens of this identity.
    pub(in crate::paged) fn prompt<'a>(&'a self, tokens: &'a [u32]) -> Prompt<'a> {
        Prompt { root: &self.root, tokens, extras: &self.extra }
    }
}

impl Default for Identity {
    /// Nobody's: of a cache that nothing is found in by its tokens.
    fn default() -> Self {
        Identity { root: BlockKey([0; 32]), extra: Arc::default() }
    }
}
