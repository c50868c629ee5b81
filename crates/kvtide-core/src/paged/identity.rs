//! Whose tokens they are: tokens are found by those alone who have the same identity.

use std::sync::Arc;

use super::prefix::{Extras, Key};

/// What the tokens of a new sequence are, beside their ids.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The key of no token: of the model, the tenant, the process.
    pub root: Key,
    /// What else decides what the tokens mean.
    pub extra: Arc<Extras>,
}

impl Default for Identity {
    /// Nobody's: of a cache that nothing is found in by its tokens.
    fn default() -> Self {
        Identity { root: Key([0; 32]), extra: Arc::default() }
    }
}
