//! The file of a cache: all blocks that prompts find.
//!
//! ```text
//! CacheSave::begin  cache -> names            the cache goes on, and what makes room meanwhile ...
//!           write   pages -> file             ... off the thread of the cache
//!           finish  ... is left out           lists, header, rename
//!
//! CacheFile::open   header, identity, seal    nothing of the pages yet
//!           begin   new blocks                in a cache of the same identity
//!           read    file -> pages             sums compared; off the thread of the cache
//!           end     names                     prompts find them from here on
//! ```

use std::path::Path;

use kvtide_core::paged::{BlockKey, EvictionPolicy, PageLayout};
use kvtide_tensor::{BlockNames, FoundBlocks, NewBlocks, PagedKvCache, PagedModelOptions, PoolRoom};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::pages::{GroupRows, List, PageFile, SealedFile};
use crate::sink::Sink;
use crate::source::Source;
use crate::watch::Watch;

const KIND: &str = "cache";

/// What a file says of a cache beside its identity.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Content {
    /// Blocks that each group had.
    capacity: Vec<u32>,
}

/// A cache that is being saved.
#[derive(Debug)]
pub struct CacheSave {
    found: FoundBlocks,
    identity: Identity,
    content: String,
    layouts: Vec<PageLayout>,
    file: Option<PageFile>,
}

impl CacheSave {
    /// Notes what prompts find. The cache may change from here on.
    pub fn begin(cache: &mut PagedKvCache) -> Result<Self> {
        let found = cache.found_blocks()?;
        let content = Content { capacity: cache.pools()?.iter().map(|pool| pool.total).collect() };
        Ok(CacheSave {
            identity: Identity::of(cache),
            content: serde_json::to_string(&content).expect("numbers are JSON"),
            layouts: cache.layouts().collect(),
            found,
            file: None,
        })
    }

    /// Writes the pages: on any thread.
    pub fn write(&mut self, sink: Sink, watch: &Watch) -> Result<()> {
        let rows = self.found.pages.iter().map(|pages| pages.rows().into());
        let groups = self.layouts.iter().copied().zip(rows).collect();
        let lists = self.lists(&vec![Vec::new(); self.layouts.len()]);
        let mut file = PageFile::begin(sink, [KIND, &self.content], &self.identity, groups, &lists)?;
        file.write(&self.found.pages, watch)?;
        self.file = Some(file);
        Ok(())
    }

    /// What made room since the save began: on the cache's thread, once the pages are written.
    pub fn gone(&self, cache: &PagedKvCache) -> Result<Vec<Vec<u32>>> {
        Ok(cache.gone(&self.found)?)
    }

    /// Leaves that out, and puts the file in its place: on any thread. Answers its bytes, where it is memory.
    pub fn finish(self, gone: &[Vec<u32>]) -> Result<(u64, Vec<u8>)> {
        let lists = self.lists(gone);
        let mut file = self.file.ok_or_else(|| Error::corrupt("the save", "without pages", "written before"))?;
        file.leave_out(gone)?;
        file.finish(&lists)
    }

    /// The names of all rows but those that are gone.
    fn lists(&self, gone: &[Vec<u32>]) -> Vec<List> {
        let mut lists = Vec::new();
        for (group, (names, layout)) in self.found.names.iter().zip(&self.layouts).enumerate() {
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
        let roots: Vec<u8> = self.found.roots.iter().flat_map(|root| root.0).collect();
        lists.push(List::new("roots", "U8", &[self.found.roots.len() as u64, 32], roots));
        lists
    }
}

/// Saves what prompts find in a file: for who has no other thread for it.
pub fn save_cache(cache: &mut PagedKvCache, path: &Path, watch: &Watch) -> Result<u64> {
    Ok(save(cache, Sink::file(path)?, watch)?.0)
}

/// The same as bytes.
pub fn save_cache_bytes(cache: &mut PagedKvCache, watch: &Watch) -> Result<Vec<u8>> {
    Ok(save(cache, Sink::memory(), watch)?.1)
}

fn save(cache: &mut PagedKvCache, sink: Sink, watch: &Watch) -> Result<(u64, Vec<u8>)> {
    let mut save = CacheSave::begin(cache)?;
    save.write(sink, watch)?;
    let gone = save.gone(cache)?;
    save.finish(&gone)
}

/// How a saved cache is loaded. What is not said is as it was.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Blocks of each group. With fewer than were saved, those that would have made room first stay away.
    pub room: Option<PoolRoom>,
    /// The names of the devices, by the numbers that layers have; the CPU where none is given.
    pub devices: Vec<String>,
    /// The key of names, where the saved cache was given one.
    pub prefix_key: Option<[u8; 32]>,
    /// In which order blocks make room.
    pub eviction: Option<std::sync::Arc<dyn EvictionPolicy>>,
    /// Events that are kept.
    pub events: u32,
    /// The most bytes on each device.
    pub memory_limit_bytes: Option<u64>,
}

/// The file of a cache: its header, identity and lists were checked.
#[derive(Debug)]
pub struct CacheFile {
    file: SealedFile,
    identity: Identity,
    content: Content,
    names: Vec<BlockNames>,
    roots: Vec<BlockKey>,
}

/// A load that has begun: new blocks of a cache, and the names of what goes into them.
#[derive(Debug)]
pub struct CacheLoad {
    new: NewBlocks,
    names: Vec<BlockNames>,
    layouts: Vec<PageLayout>,
}

impl CacheFile {
    /// Opens a file, and checks all of it but the pages.
    pub fn open(source: Source) -> Result<Self> {
        let (file, identity) = SealedFile::open(source, KIND)?;
        let content = file.header.text("content")?;
        let content: Content = serde_json::from_str(content)
            .map_err(|error| Error::corrupt("the content", format!("other text: {error}"), "that of a cache"))?;
        if content.capacity.len() != identity.groups() {
            let found = format!("{} numbers", content.capacity.len());
            return Err(Error::corrupt("capacity", found, format!("{}", identity.groups())));
        }
        let names = (0..identity.groups()).map(|group| names(&file, group, identity.block_size().into()));
        let names = names.collect::<Result<Vec<_>>>()?;
        let roots = file.first_size("roots")?;
        let roots = keys(&file.bytes("roots", "U8", &[roots, 32])?);
        Ok(CacheFile { file, identity, content, names, roots })
    }

    /// Of which model it is, and in which form.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Blocks that were saved, of each group.
    #[must_use]
    pub fn blocks(&self) -> Vec<usize> {
        self.names.iter().map(BlockNames::len).collect()
    }

    /// A new cache with what was saved.
    pub fn load(&self, options: LoadOptions, watch: &Watch) -> Result<PagedKvCache> {
        let mut cache = self.empty(options)?;
        let load = self.begin(&mut cache)?;
        self.read(&load, watch)?;
        self.end(&mut cache, load)?;
        Ok(cache)
    }

    /// A new cache of the same identity, with nothing in it.
    pub fn empty(&self, options: LoadOptions) -> Result<PagedKvCache> {
        let LoadOptions { room, devices, prefix_key, eviction, events, memory_limit_bytes } = options;
        let [key_format, value_format] = self.identity.formats()?.map(Some);
        let room = room.unwrap_or_else(|| PoolRoom::Blocks(self.content.capacity.clone()));
        let made = PagedModelOptions {
            block_size: self.identity.block_size(),
            dtype: self.identity.dtype()?,
            key_format,
            value_format,
            hadamard: self.identity.hadamard(),
            namespace: self.identity.namespace().to_owned(),
            prefix_key,
            eviction,
            events,
            memory_limit_bytes,
            ..PagedModelOptions::new(self.identity.model()?, room)
        };
        let devices = devices.iter().map(|name| Ok(kvtide_tensor::device(name)?)).collect::<Result<Vec<_>>>()?;
        let made = if devices.is_empty() { made } else { PagedModelOptions { devices, ..made } };
        let mut cache = PagedKvCache::of_model(made)?;
        if prefix_key.is_none() {
            self.adopt_key(&mut cache)?;
        }
        Ok(cache)
    }

    /// Lets an empty cache name its blocks as the saved one did, where nobody chose the key.
    pub fn adopt_key(&self, cache: &mut PagedKvCache) -> Result<()> {
        match self.identity.own_key()? {
            Some(key) => Ok(cache.adopt_key(key)?),
            None => Ok(()),
        }
    }

    /// Takes free blocks for what was saved, as many as there are: on the cache's thread. Refused where the cache is of another identity.
    pub fn begin(&self, cache: &mut PagedKvCache) -> Result<CacheLoad> {
        self.identity.check(cache)?;
        self.identity.check_key(cache)?;
        let layouts: Vec<PageLayout> = cache.layouts().collect();
        for (group, layout) in layouts.iter().enumerate() {
            self.file.pages(group, layout, self.names[group].len() as u64)?;
        }
        // What is there already does not make room.
        let free = cache.pools()?.into_iter().map(|pool| pool.free as usize);
        let wanted: Vec<u32> = self.names.iter().zip(free).map(|(names, free)| names.len().min(free) as u32).collect();
        let size = self.identity.block_size() as usize;
        let last = |(names, &wanted): (&BlockNames, &u32)| names.last(wanted as usize, size);
        let names = self.names.iter().zip(&wanted).map(last).collect();
        Ok(CacheLoad { new: cache.new_blocks(&wanted)?, names, layouts })
    }

    /// Reads the pages into those blocks, and compares their sums: on any thread.
    pub fn read(&self, load: &CacheLoad, watch: &Watch) -> Result<()> {
        let groups = load.layouts.iter().zip(&load.new.pages).zip(&self.names);
        let rows = groups.map(|((layout, pages), names)| GroupRows {
            layout: *layout,
            rows: names.len() as u64,
            wanted: pages.rows().into(),
            writer: Some(pages),
        });
        self.file.read(&rows.collect::<Vec<_>>(), watch)
    }

    /// Lets prompts find them: on the cache's thread.
    pub fn end(&self, cache: &mut PagedKvCache, load: CacheLoad) -> Result<()> {
        Ok(cache.name_blocks(load.new, &load.names, &self.roots)?)
    }
}

/// The names of the rows of a group.
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
