//! The file of a cache: its prefix cache, all blocks of it.
//!
//! ```text
//! names.0, parents.0, tokens.0, extras.0      of each block: its key and what the key stands for
//! roots                                       the keys of the empty prefix
//!
//! CacheFile::open   header, identity, seal    nothing of the pages yet
//!           begin   new blocks                in a cache of the same identity
//!           read    file -> pages             compares checksums; on another thread than the cache's
//!           end     names                     prompts find the blocks from here on
//! ```

use kvtide_core::COUNT_MAX;
use kvtide_core::paged::{BlockKey, EvictionPolicy, PageLayout};
use kvtide_tensor::pages::{BlockNames, FoundBlocks, NewBlocks, PageWriter};
use kvtide_tensor::{PagedKvCache, PagedModelOptions, PoolRoom};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::pages::{GroupRows, List, RowShape, RowTarget, SealedFile};
use crate::source::Source;
use crate::watch::Watch;

/// The kind of the file of a cache.
pub(crate) const KIND: &str = "cache";

/// The state of a cache in its file, besides the identity.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Content {
    /// The number of blocks of each group.
    capacity: Vec<u32>,
}

/// Returns the state of a cache besides its identity, as JSON.
pub(crate) fn content(cache: &mut PagedKvCache) -> Result<String> {
    let content = Content { capacity: cache.pools()?.iter().map(|pool| pool.total).collect() };
    Ok(serde_json::to_string(&content).expect("numbers are JSON"))
}

/// Returns the lists of all rows except those that were evicted during the save.
pub(crate) fn lists(found: &FoundBlocks, layouts: &[PageLayout], gone: &[Vec<u32>]) -> Vec<List> {
    let mut lists = Vec::new();
    for (group, (names, layout)) in found.names.iter().zip(layouts).enumerate() {
        let size = layout.shape().block_size as usize;
        let kept = |row: &usize| gone[group].binary_search(&(*row as u32)).is_err();
        let kept: Vec<usize> = (0..names.len()).filter(kept).collect();
        let rows = kept.len() as u64;
        let keys = |of: &[BlockKey]| kept.iter().flat_map(|&row| of[row].0).collect::<Vec<u8>>();
        lists.push(List::new(format!("names.{group}"), "U8", &[rows, 32], keys(&names.keys)));
        lists.push(List::new(format!("parents.{group}"), "U8", &[rows, 32], keys(&names.parents)));
        let tokens: Vec<u32> =
            kept.iter().flat_map(|&row| names.tokens[row * size..][..size].iter().copied()).collect();
        lists.push(List::u32s(format!("tokens.{group}"), &[rows, size as u64], &tokens));
        let (mut ends, mut extras) = (Vec::new(), Vec::new());
        for &row in &kept {
            extras.extend(&names.extras[row]);
            ends.push(extras.len() as u64);
        }
        lists.push(List::u64s(format!("extra_ends.{group}"), &[rows], &ends));
        lists.push(List::new(format!("extras.{group}"), "U8", &[extras.len() as u64], extras));
    }
    let roots: Vec<u8> = found.roots.iter().flat_map(|root| root.0).collect();
    lists.push(List::new("roots", "U8", &[found.roots.len() as u64, 32], roots));
    lists
}

/// Options of loading a saved cache. Options that are not set are as they were saved.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// The capacity of each group, in blocks. With less capacity than was saved, the lowest-ranked blocks are skipped.
    pub room: Option<PoolRoom>,
    /// The names of the devices, by the device numbers of the layers; the CPU if there is no name.
    pub devices: Vec<String>,
    /// The key under which block keys are made, if the saved cache was given one.
    pub prefix_key: Option<[u8; 32]>,
    /// The order of eviction.
    pub eviction: Option<std::sync::Arc<dyn EvictionPolicy>>,
    /// The number of events to keep.
    pub events: u32,
    /// The memory limit on each device, in bytes.
    pub memory_limit_bytes: Option<u64>,
}

/// The file of a cache, with its header, identity and lists checked.
#[derive(Debug)]
pub struct CacheFile {
    file: SealedFile,
    identity: Identity,
    content: Content,
    names: Vec<BlockNames>,
    roots: Vec<BlockKey>,
}

/// A load that has begun: new blocks of a cache, and the names for them.
#[derive(Debug)]
pub struct CacheLoad {
    new: NewBlocks,
    names: Vec<BlockNames>,
    /// The rows to read, for each group.
    wanted: Vec<Vec<u32>>,
    layouts: Vec<PageLayout>,
}

impl CacheLoad {
    /// Returns the number of blocks to load in the group with the most.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.new.pages.iter().map(PageWriter::rows).max().unwrap_or(0)
    }

    /// Sets how often prefixes had been [forgotten](PagedKvCache::forgotten) when the caller requested the load.
    #[must_use]
    pub fn since(mut self, forgotten: u64) -> Self {
        self.new = self.new.since(forgotten);
        self
    }
}

impl CacheFile {
    /// Opens a file, and checks everything in it except the pages.
    pub fn open(source: Source) -> Result<Self> {
        let (file, identity) = SealedFile::of_model(source, KIND)?;
        let content = file.header.text("content")?;
        let content: Content = serde_json::from_str(content)
            .map_err(|error| Error::corrupt("the content", format!("other text: {error}"), "the content of a cache"))?;
        if content.capacity.len() != identity.groups() {
            let found = format!("{} numbers", content.capacity.len());
            return Err(Error::corrupt("capacity", found, format!("{}", identity.groups())));
        }
        if let Some(blocks) = content.capacity.iter().find(|&&blocks| blocks > COUNT_MAX) {
            return Err(Error::corrupt("capacity", blocks, format!("at most {COUNT_MAX} blocks")));
        }
        let names = (0..identity.groups()).map(|group| names(&file, group, identity.block_size().into()));
        let names = names.collect::<Result<Vec<_>>>()?;
        let roots = file.first_size("roots")?;
        let roots = keys(&file.bytes("roots", "U8", &[roots, 32])?);
        Ok(CacheFile { file, identity, content, names, roots })
    }

    /// Returns the model and the form of the saved cache.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the identity and the capacity of each group as JSON: the options to create a cache like the saved one.
    #[must_use]
    pub fn description(&self) -> String {
        let content = serde_json::to_string(&self.content).expect("numbers are JSON");
        format!("{{\"identity\":{},\"content\":{content}}}", self.identity.text())
    }

    /// Returns the number of saved blocks of each group.
    #[must_use]
    pub fn blocks(&self) -> Vec<usize> {
        self.names.iter().map(BlockNames::len).collect()
    }

    /// Creates a cache with the saved content.
    pub fn load(&self, options: LoadOptions, watch: &Watch) -> Result<PagedKvCache> {
        let mut cache = self.empty(options)?;
        let load = self.begin(&mut cache)?;
        self.read(&load, watch)?;
        self.end(&mut cache, &load)?;
        Ok(cache)
    }

    /// Creates an empty cache of the same identity.
    pub fn empty(&self, options: LoadOptions) -> Result<PagedKvCache> {
        let LoadOptions { room, devices, prefix_key, eviction, events, memory_limit_bytes } = options;
        let [key_format, value_format] = self.identity.formats()?.map(Some);
        let [hadamard, value_hadamard] = self.identity.rotated();
        let room = room.unwrap_or_else(|| PoolRoom::Blocks(self.content.capacity.clone()));
        let made = PagedModelOptions {
            block_size: self.identity.block_size(),
            dtype: self.identity.dtype()?,
            key_format,
            value_format,
            hadamard,
            value_hadamard,
            namespace: self.identity.namespace().to_owned(),
            prefix_key,
            eviction,
            events,
            memory_limit_bytes,
            ..PagedModelOptions::new(self.identity.model()?, room)
        };
        let devices =
            devices.iter().map(|name| Ok(kvtide_tensor::runtime::device(name)?)).collect::<Result<Vec<_>>>()?;
        let made = if devices.is_empty() { made } else { PagedModelOptions { devices, ..made } };
        Ok(PagedKvCache::of_model(made)?)
    }

    /// Takes free blocks for the saved blocks that the cache lacks, as many as there are. Call it on the cache's
    /// thread. A cache of another identity is refused. An empty cache takes over the key under which block keys are
    /// made, if neither key was chosen; it keeps that key if the load fails later.
    pub fn begin(&self, cache: &mut PagedKvCache) -> Result<CacheLoad> {
        self.identity.check(cache)?;
        let layouts: Vec<PageLayout> = cache.layouts().collect();
        for (group, layout) in layouts.iter().enumerate() {
            self.file.pages(group, &RowShape::of_group(group, layout), self.names[group].len() as u64)?;
        }
        match self.identity.own_key()?.filter(|_| cache.namer().own_key().is_some() && cache.is_unused()) {
            Some(key) => {
                self.identity.check_key(&cache.namer().under(key))?;
                cache.adopt_key(key)?;
            }
            None => self.identity.check_key(cache.namer())?,
        }
        // Cached blocks are not evicted.
        let free: Vec<usize> = cache.pools()?.into_iter().map(|pool| pool.free as usize).collect();
        let mut wanted: Vec<Vec<u32>> = Vec::new();
        for (group, names) in self.names.iter().enumerate() {
            let is_new = |&row: &u32| !cache.is_found(group, &names.keys[row as usize]);
            let rows: Vec<u32> = (0..names.len() as u32).filter(is_new).collect();
            wanted.push(rows[rows.len() - rows.len().min(free[group])..].to_vec());
        }
        let size = self.identity.block_size() as usize;
        let names = self.names.iter().zip(&wanted).map(|(names, rows)| names.at(rows, size)).collect();
        let rows: Vec<u32> = wanted.iter().map(|rows| rows.len() as u32).collect();
        Ok(CacheLoad { new: cache.new_blocks(&rows)?, names, wanted, layouts })
    }

    /// Reads the pages into those blocks, and compares their checksums. Can be called on any thread.
    pub fn read(&self, load: &CacheLoad, watch: &Watch) -> Result<()> {
        let groups = load.layouts.iter().zip(&load.new.pages).zip(&self.names).zip(&load.wanted).enumerate();
        let rows = groups.map(|(group, (((layout, pages), names), wanted))| GroupRows {
            shape: RowShape::of_group(group, layout),
            rows: names.len() as u64,
            wanted: wanted.clone(),
            writer: Some(pages as &dyn RowTarget),
        });
        self.file.read(&rows.collect::<Vec<_>>(), watch)
    }

    /// Makes the blocks available to prompts. Call it on the cache's thread. Returns false, and makes none available,
    /// if prefixes were forgotten since the load was requested.
    pub fn end(&self, cache: &mut PagedKvCache, load: &CacheLoad) -> Result<bool> {
        cache.name_blocks(&load.new, &load.names, &self.roots).map_err(Error::of_content)
    }
}

/// Returns the names of the rows of a group.
fn names(file: &SealedFile, group: usize, block_size: u64) -> Result<BlockNames> {
    let rows = file.first_size(&format!("names.{group}"))?;
    let list = |name: &str, shape: &[u64]| file.bytes(&format!("{name}.{group}"), "U8", shape);
    let ends = file.u64s(&format!("extra_ends.{group}"), &[rows])?;
    let all = list("extras", &[file.first_size(&format!("extras.{group}"))?])?;
    let mut start = 0;
    let mut extras = Vec::new();
    for end in ends {
        let part = usize::try_from(end).ok().and_then(|end| all.get(start..end).map(|part| (end, part)));
        let Some((end, part)) = part else {
            return Err(Error::corrupt(format!("extra_ends.{group}"), end, format!("{start} to {}", all.len())));
        };
        extras.push(part.to_vec());
        start = end;
    }
    if start != all.len() {
        return Err(Error::corrupt(format!("extras.{group}"), format!("{} bytes", all.len()), format!("{start}")));
    }
    Ok(BlockNames {
        keys: keys(&list("names", &[rows, 32])?),
        parents: keys(&list("parents", &[rows, 32])?),
        tokens: file.u32s(&format!("tokens.{group}"), &[rows, block_size])?,
        extras,
    })
}

fn keys(bytes: &[u8]) -> Vec<BlockKey> {
    bytes.as_chunks().0.iter().map(|key| BlockKey(*key)).collect()
}
