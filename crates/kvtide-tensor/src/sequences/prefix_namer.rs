//! The names of prompts: under which keys their blocks are found.
//!
//! The root of every chain of keys is over a namespace, the form of the pages and the salt, keyed by bytes that nobody
//! outside knows: who cannot name a prompt's tokens and salt finds none of its blocks. What it is over is a format: the same in
//! every minor version.

use std::sync::OnceLock;

use kvtide_core::COUNT_MAX;
use kvtide_core::paged::{BlockKey, Extra, Extras, Identity, PageShape};

use super::options::PagedModelOptions;
use crate::base::error::{Error, Result};
use crate::paged::{PagedKvCacheOptions, PagedShape};

/// Whose tokens they are: a prompt finds the blocks of prompts with the same salt and extras alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct PromptOptions<'a> {
    /// The tenant, or whatever keeps prompts apart.
    pub salt: &'a [u8],
    /// The first position that the salt keeps apart: blocks before it are those of prompts without a salt.
    pub salt_from: u32,
    /// What else decides what tokens mean: an adapter, an image; each over a range of positions.
    pub extra: &'a [Extra],
}

/// Names the blocks of prompts as a cache does, and holds no memory for pages: for a router that sends prompts to where their
/// blocks are.
///
/// Names are alike where all of this is: `prefix_key`, where there is none the process; `namespace`; `block_size`; `dtype`, the formats
/// of K and V, and `hadamard`; the numbers of layers and of heads, and both head dims, in a model those of each of its groups in
/// their order; and the salt, the extras and the tokens of a prompt. Layers of a model are of one group where they slide by the same
/// window, have the same sizes, and lie on the same device. Nothing else is in a name: neither capacities and limits, nor
/// eviction and events, nor the device or a window by itself. A cache of layers that are alike and one
/// of a model with one group name alike.
///
/// ```
/// use kvtide_tensor::{PagedKvCache, PagedKvCacheOptions, PrefixNamer, PromptOptions};
///
/// let options = PagedKvCacheOptions { block_size: 2, prefix_key: Some([7; 32]), ..PagedKvCacheOptions::default() };
/// let namer = PrefixNamer::of_pages(&options)?;
/// let cache = PagedKvCache::new(PagedKvCacheOptions { capacity: 8, ..options })?;
/// let prompt = PromptOptions { salt: b"tenant 1", ..PromptOptions::default() };
/// assert_eq!(namer.keys(&[1, 2, 3, 4, 5], prompt)?, cache.keys(&[1, 2, 3, 4, 5], prompt)?);
/// # Ok::<(), kvtide_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PrefixNamer {
    key: [u8; 32],
    /// Whether nobody chose the key: it is this process's, or came with what was saved.
    is_own: bool,
    /// What the options said.
    given: Box<str>,
    /// The namespace of the root: that of the options, and the form of the pages.
    namespace: Box<[u8]>,
    block_size: u32,
}

impl PrefixNamer {
    /// Names as a [`PagedKvCache`](crate::PagedKvCache) of these options does.
    pub fn of_pages(options: &PagedKvCacheOptions) -> Result<Self> {
        PrefixNamer::new(options.prefix_key, &options.namespace, [&PagedShape::new(options)?])
    }

    /// Names as a cache of a model's layers does. Its `devices` may be missing: which layers share one is in the model.
    pub fn of_model(options: &PagedModelOptions) -> Result<Self> {
        let shapes = options.page_options()?.iter().map(PagedShape::new).collect::<Result<Vec<_>>>()?;
        PrefixNamer::new(options.prefix_key, &options.namespace, &shapes)
    }

    /// Names under a stable key, or one of this process, for pages of these forms: one for each group of layers.
    pub(super) fn new<'a>(
        stable: Option<[u8; 32]>,
        namespace: &str,
        forms: impl IntoIterator<Item = &'a PagedShape>,
    ) -> Result<Self> {
        let key = stable.map_or_else(process_key, Ok)?;
        let (mut named, mut slots) = ((namespace.len() as u64).to_le_bytes().to_vec(), 0);
        named.extend(namespace.as_bytes());
        for shape in forms {
            let PageShape { block_size, num_layers, num_kv_heads, head_dim, value_head_dim, key_format, value_format } =
                shape.pages.shape();
            let sizes = [block_size, num_layers, num_kv_heads, head_dim, value_head_dim];
            let form = format!("{} {key_format} {value_format} {sizes:?} {};", shape.dtype, shape.hadamard);
            named.extend(form.as_bytes());
            slots = block_size;
        }
        let (is_own, given) = (stable.is_none(), namespace.into());
        Ok(PrefixNamer { key, is_own, given, namespace: named.into(), block_size: slots })
    }

    /// The namespace of the options.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.given
    }

    /// What tells its key apart from others, and does not show it.
    #[must_use]
    pub fn key_check(&self) -> BlockKey {
        BlockKey::root(&self.key, b"kvtide: which key this is", b"")
    }

    /// The key, where nobody chose it: without it, what was saved under it would not be found again.
    #[must_use]
    pub fn own_key(&self) -> Option<[u8; 32]> {
        self.is_own.then_some(self.key)
    }

    /// Names as what was saved was named, under a key that nobody chose.
    pub(super) fn adopt(&mut self, key: [u8; 32]) {
        (self.key, self.is_own) = (key, true);
    }

    /// The same, under another key.
    #[must_use]
    pub fn under(&self, key: [u8; 32]) -> Self {
        PrefixNamer { key, ..self.clone() }
    }

    /// Whose tokens a prompt's are: the same where salt and extras are, under one key.
    pub fn owner(&self, options: PromptOptions<'_>) -> Result<BlockKey> {
        Ok(self.identity(options)?.owner()?)
    }

    /// The names of the whole blocks of a prompt, as `keys` of the cache gives them. O(tokens).
    pub fn keys(&self, tokens: &[u32], options: PromptOptions<'_>) -> Result<Vec<BlockKey>> {
        Ok(self.identity(options)?.keys(tokens, self.block_size)?)
    }

    /// Tokens of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Whose tokens a prompt's are.
    pub(super) fn identity(&self, options: PromptOptions<'_>) -> Result<Identity> {
        let PromptOptions { salt, salt_from: start, extra } = options;
        let root = |salt| BlockKey::root(&self.key, &self.namespace, salt);
        if start == 0 {
            return Ok(Identity { root: root(salt), extra: Extras::new(extra.to_vec())?.into() });
        }
        if salt.is_empty() {
            return Err(Error::argument("saltFrom", start, "none without a salt"));
        }
        // The root that the salt would have stands for it, from there on: no extra of the caller's has this key by chance.
        let tenant = Extra { start, end: COUNT_MAX, key: root(salt).0.to_vec() };
        let extras = Extras::new(extra.iter().cloned().chain([tenant]).collect())?;
        Ok(Identity { root: root(&[]), extra: extras.into() })
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
