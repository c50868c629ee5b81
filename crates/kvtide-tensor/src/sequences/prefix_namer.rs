//! Names of prompts without a cache.
//!
//! It takes what a cache is made with, and looks at what names depend on alone: the rest may be anything, and nothing is
//! allocated for it.

use kvtide_core::paged::BlockKey;

use super::options::ModelCacheOptions;
use crate::base::error::Result;
use crate::paged::{PagedKvCacheOptions, PagedShape, PrefixKeys, PromptOptions};

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
/// let prompt = PromptOptions { salt: b"tenant 1", extra: &[] };
/// assert_eq!(namer.keys(&[1, 2, 3, 4, 5], prompt)?, cache.keys(&[1, 2, 3, 4, 5], prompt)?);
/// # Ok::<(), kvtide_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PrefixNamer {
    keys: PrefixKeys,
    block_size: u32,
}

impl PrefixNamer {
    /// Names as a [`PagedKvCache`](crate::PagedKvCache) of these options does.
    pub fn of_pages(options: &PagedKvCacheOptions) -> Result<Self> {
        let shape = PagedShape::new(options)?;
        let keys = PrefixKeys::new(options.prefix_key, &options.namespace, [&shape])?;
        Ok(PrefixNamer { keys, block_size: options.block_size })
    }

    /// Names as a cache of a model's layers does. Its `devices` may be missing: which layers share one is in the model.
    pub fn of_model(options: &ModelCacheOptions) -> Result<Self> {
        let groups = options.page_options()?;
        let shapes = groups.iter().map(PagedShape::new).collect::<Result<Vec<_>>>()?;
        let keys = PrefixKeys::new(options.prefix_key, &options.namespace, &shapes)?;
        Ok(PrefixNamer { keys, block_size: options.block_size })
    }

    /// The names of the whole blocks of a prompt, as `keys` of the cache gives them. O(tokens).
    pub fn keys(&self, tokens: &[u32], options: PromptOptions<'_>) -> Result<Vec<BlockKey>> {
        Ok(self.keys.identity(options)?.keys(tokens, self.block_size)?)
    }

    /// Tokens of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }
}
