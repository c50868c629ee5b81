//! Under which keys the blocks of a cache are found: of this process alone, unless a stable key is given.
//!
//! The root of every chain of keys is over a namespace, the form of the pages and the salt, keyed by bytes that nobody
//! outside knows: who cannot name a prompt's tokens and salt finds none of its blocks. What it is over is a format: the same in
//! every minor version.

use std::sync::OnceLock;

use kvtide_core::paged::{BlockKey, Extras, Identity, PageShape};

use super::held::PromptOptions;
use super::shape::PagedShape;
use crate::base::error::{Error, Result};

/// The key, and what is hashed with it.
#[derive(Clone, Debug)]
pub(crate) struct PrefixKeys {
    key: [u8; 32],
    namespace: Box<[u8]>,
}

impl PrefixKeys {
    /// Keys of this process, or under a stable one, for pages of these forms: one for each group of layers.
    pub fn new<'a>(
        stable: Option<[u8; 32]>,
        namespace: &str,
        forms: impl IntoIterator<Item = &'a PagedShape>,
    ) -> Result<Self> {
        let key = match stable {
            Some(key) => key,
            None => process_key()?,
        };
        let mut named = (namespace.len() as u64).to_le_bytes().to_vec();
        named.extend(namespace.as_bytes());
        for shape in forms {
            let PageShape { block_size, num_layers, num_kv_heads, head_dim, value_head_dim, key_format, value_format } =
                shape.pages.shape();
            let sizes = [block_size, num_layers, num_kv_heads, head_dim, value_head_dim];
            let form = format!("{} {key_format} {value_format} {sizes:?} {};", shape.dtype, shape.hadamard);
            named.extend(form.as_bytes());
        }
        Ok(PrefixKeys { key, namespace: named.into() })
    }

    /// Whose tokens a prompt's are.
    pub fn identity(&self, options: PromptOptions<'_>) -> Result<Identity> {
        let extra = Extras::new(options.extra.to_vec())?;
        Ok(Identity { root: BlockKey::root(&self.key, &self.namespace, options.salt), extra: extra.into() })
    }
}

/// Random bytes, the same for the whole process.
fn process_key() -> Result<[u8; 32]> {
    static KEY: OnceLock<[u8; 32]> = OnceLock::new();
    if let Some(key) = KEY.get() {
        return Ok(*key);
    }
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::argument("prefixKey", "none", format!("32 bytes, where the system has no randomness: {error}"))
    })?;
    Ok(*KEY.get_or_init(|| bytes))
}
