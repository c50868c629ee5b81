//! The kinds of caches that cases run on.

use decoder::{Cache, Layers, Sequences};
use kvtide_core::model::ModelDescription;
use kvtide_core::paged::PageFormat;
use kvtide_tensor::{Kv, PagedKvCache, PagedModelOptions, PoolRoom};

use crate::case::Failure;

/// The number of blocks per group: several times the longest prompt and its continuation.
const BLOCKS: u32 = 512;

/// The number of tokens per block.
pub const BLOCK_SIZE: u32 = 16;

/// A kind of cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Contiguous caches that keep every token of every layer.
    Everything,
    /// Contiguous caches; sliding layers keep their window only.
    Windows,
    /// A paged cache.
    Blocks,
}

impl Kind {
    /// Returns the first part of the names of its cases.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Everything => "contiguous",
            Kind::Windows => "contiguous/windows",
            Kind::Blocks => "paged",
        }
    }

    /// Runs `work` on an empty cache for a model, and returns the content of each layer.
    pub fn run(
        self,
        model: &ModelDescription,
        work: impl FnOnce(&mut dyn Cache) -> Result<(), Failure>,
    ) -> Result<Vec<Option<Kv>>, Failure> {
        let layers = model.layers().len();
        if self == Kind::Blocks {
            let mut cache = blocks(model, None)?;
            work(&mut sequence(&mut cache)?)?;
            cache.check_invariants()?;
            let id = cache.sequence_ids()[0];
            return Ok((0..layers as u32).map(|layer| cache.kv(id, layer).map(Some)).collect::<Result<_, _>>()?);
        }
        let mut cache = Layers::new(model, &[0], self == Kind::Windows)?;
        work(&mut cache)?;
        Ok((0..layers).map(|layer| cache.kv(layer)).collect::<Result<_, _>>()?)
    }
}

/// Makes a paged cache with pages of this format.
pub fn blocks(model: &ModelDescription, format: Option<PageFormat>) -> Result<PagedKvCache, Failure> {
    let room = PoolRoom::Blocks(vec![BLOCKS; model.groups().len()]);
    let options = PagedModelOptions::new(model.clone(), room);
    let options = PagedModelOptions { block_size: BLOCK_SIZE, key_format: format, value_format: format, ..options };
    Ok(PagedKvCache::of_model(options)?)
}

/// Makes a new sequence in a cache.
pub fn sequence(cache: &mut PagedKvCache) -> Result<Sequences<'_>, Failure> {
    let id = cache.create_sequence()?;
    Ok(Sequences::new(cache, &[id]))
}
