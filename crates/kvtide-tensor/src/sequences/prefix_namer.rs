//! The block keys of prompts.
//!
//! The root of every chain of keys is a keyed hash over a namespace, the form of the pages and the salt. Its secret is
//! unknown outside, so a prompt can hit a block only with the right tokens and salt. The hashed content is a stable format:
//! the same in every minor version.

use std::sync::OnceLock;

use kvtide_core::COUNT_MAX;
use kvtide_core::paged::{BlockKey, Extra, Extras, Identity, PageShape};

use super::options::PagedModelOptions;
use crate::base::error::{Error, Result};
use crate::paged::{PagedKvCacheOptions, PagedShape};

/// The salt and extras of a prompt: it hits only blocks of prompts with the same ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct PromptOptions<'a> {
    /// The salt: the tenant, or another separation of prompts.
    pub salt: &'a [u8],
    /// The first position to which the salt applies: blocks before it are shared with prompts without a salt.
    pub salt_from: u32,
    /// Whatever else token ids depend on: an adapter, an image; each for a range of positions.
    pub extra: &'a [Extra],
}

/// Computes the block keys of prompts as a cache does, without memory for pages: for a router that sends prompts to the
/// workers that have their blocks cached.
///
/// Keys are equal if all of the following are equal: `prefix_key`, or without one the process; `namespace`; `block_size`;
/// `dtype`, the formats of K and V, `hadamard` and `value_hadamard`; the numbers of layers and of KV heads, and both head
/// dims, for a model those of each of its groups in order, and the bytes of its states; and the salt, the extras and the
/// tokens of a prompt.
/// Layers of a model are in one group if they have the same window and the same sizes, and are on the same device. Keys
/// depend on nothing else: neither on capacities and limits, nor on eviction and events, nor on the device or a window as
/// such. A cache whose layers all have the same sizes and a cache of a model with one group have the same keys.
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
    /// True if the secret was not given: it is the process's, or was loaded with saved blocks.
    is_own: bool,
    /// The namespace in the options.
    given: Box<str>,
    /// The namespace of the root: that of the options, and the form of the pages.
    namespace: Box<[u8]>,
    block_size: u32,
}

impl PrefixNamer {
    /// Computes keys as a [`PagedKvCache`](crate::PagedKvCache) with these options does.
    pub fn of_pages(options: &PagedKvCacheOptions) -> Result<Self> {
        PrefixNamer::new(options.prefix_key, &options.namespace, [&PagedShape::new(options)?])
    }

    /// Computes keys as a cache of a model's layers does. `devices` may be missing, because the model says which layers
    /// share a device.
    pub fn of_model(options: &PagedModelOptions) -> Result<Self> {
        let shapes = options.page_options()?.iter().map(PagedShape::new).collect::<Result<Vec<_>>>()?;
        PrefixNamer::new(options.prefix_key, &options.namespace, &shapes)
    }

    /// Computes keys under a given secret, or under that of the process, for pages of these forms: one for each group of
    /// layers.
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
            let [of_keys, of_values] = shape.rotated;
            let of_values = if of_values { " values" } else { "" };
            let form = format!("{} {key_format} {value_format} {sizes:?} {of_keys}{of_values};", shape.dtype);
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

    /// A value that tells its secret apart from others without revealing it.
    #[must_use]
    pub fn key_check(&self) -> BlockKey {
        BlockKey::root(&self.key, b"kvtide: which key this is", b"")
    }

    /// The secret, if it was not given: blocks that were saved under it can only be hit again with it.
    #[must_use]
    pub fn own_key(&self) -> Option<[u8; 32]> {
        self.is_own.then_some(self.key)
    }

    /// Takes over the secret of saved blocks, which was not given by the caller.
    pub(super) fn adopt(&mut self, key: [u8; 32]) {
        (self.key, self.is_own) = (key, true);
    }

    /// The same namer with another secret.
    #[must_use]
    pub fn under(&self, key: [u8; 32]) -> Self {
        PrefixNamer { key, ..self.clone() }
    }

    /// The owner of a prompt's tokens: equal for equal salts and extras under one secret.
    pub fn owner(&self, options: PromptOptions<'_>) -> Result<BlockKey> {
        Ok(self.identity(options)?.owner()?)
    }

    /// The keys of the full blocks of a prompt, as `keys` of the cache returns them. O(tokens).
    pub fn keys(&self, tokens: &[u32], options: PromptOptions<'_>) -> Result<Vec<BlockKey>> {
        Ok(self.identity(options)?.keys(tokens, self.block_size)?)
    }

    /// The number of tokens in a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The identity of a prompt: its root and extras.
    pub(super) fn identity(&self, options: PromptOptions<'_>) -> Result<Identity> {
        let PromptOptions { salt, salt_from: start, extra } = options;
        let root = |salt| BlockKey::root(&self.key, &self.namespace, salt);
        if start == 0 {
            return Ok(Identity { root: root(salt), extra: Extras::new(extra.to_vec())?.into() });
        }
        if salt.is_empty() {
            return Err(Error::argument("saltFrom", start, "none without a salt"));
        }
        // The root for the salt serves as an extra from that position on: no extra of a caller has this key by chance.
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
        Error::argument(
            "prefixKey",
            "none",
            format!("32 bytes, because the system has no source of randomness: {error}"),
        )
    })?;
    Ok(*KEY.get_or_init(|| bytes))
}
