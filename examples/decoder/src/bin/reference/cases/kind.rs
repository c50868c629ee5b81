//! The kinds of cache that cases run on.

use decoder::Sequences;
use kvtide_core::model::ModelDescription;
use kvtide_core::paged::PageFormat;
use kvtide_tensor::{ContiguousOptions, ModelCache, ModelCacheKind, ModelCacheOptions, PagedOptions, PoolRoom};

use crate::case::Failure;

/// Blocks of each group: room for the longest prompt and what follows, several times.
const BLOCKS: u32 = 512;

/// Tokens of a block.
pub const BLOCK_SIZE: u32 = 16;

/// A kind of cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In tensors, every token of every layer.
    Everything,
    /// In tensors, of layers that slide what their queries can still see.
    Windows,
    /// In blocks.
    Blocks,
}

impl Kind {
    /// How cases of it are called.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Everything => "contiguous",
            Kind::Windows => "contiguous/windows",
            Kind::Blocks => "paged",
        }
    }

    /// A cache for a model, with this many rows in lockstep.
    pub fn cache(self, model: &ModelDescription, rows: usize) -> Result<ModelCache, Failure> {
        let tensors = |keep_all| {
            ModelCacheKind::Contiguous(ContiguousOptions { batch_size: rows as u32, keep_all, ..Default::default() })
        };
        let kind = match self {
            Kind::Everything => tensors(true),
            Kind::Windows => tensors(false),
            Kind::Blocks => return blocks(model, None),
        };
        Ok(ModelCache::new(ModelCacheOptions::new(model.clone(), kind))?)
    }
}

/// A cache in blocks, its pages of this format.
pub fn blocks(model: &ModelDescription, format: Option<PageFormat>) -> Result<ModelCache, Failure> {
    let room = PoolRoom::Blocks(vec![BLOCKS; model.groups().len()]);
    let options =
        PagedOptions { block_size: BLOCK_SIZE, room, key_format: format, value_format: format, ..Default::default() };
    Ok(ModelCache::new(ModelCacheOptions::new(model.clone(), ModelCacheKind::Paged(options)))?)
}

/// A new sequence of a cache.
pub fn sequence(cache: &mut ModelCache) -> Result<Sequences<'_>, Failure> {
    let id = cache.create_sequence(Default::default())?;
    Ok(Sequences::new(cache, &[id]))
}
