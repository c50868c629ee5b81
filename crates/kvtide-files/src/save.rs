//! A save under way: of a paged cache, a sequence, or a cache of one layer.
//!
//! ```text
//! Save::cache      names                  the cache goes on; blocks that it evicts meanwhile ...
//! Save::sequence   held                   blocks are held until the save ends
//! write            pages -> file          on another thread than the cache's
//! leave_out        ... are left out       on the cache's thread
//! finish           lists, header, rename  on another thread than the cache's
//! ```

use std::path::Path;

use kvtide_core::paged::PageLayout;
use kvtide_tensor::pages::{FoundBlocks, SavedGroup};
use kvtide_tensor::{KvCache, PagedKvCache, RollbackCache, Rotating};

use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::pages::{List, PageFile, RowShape, RowSource};
use crate::sink::Sink;
use crate::tensors::SavedTensors;
use crate::watch::Watch;
use crate::{cache, sequence, tensors};

/// A save that has begun.
#[derive(Debug)]
pub struct Save {
    what: What,
    identity: String,
    content: String,
    layouts: [Vec<PageLayout>; 2],
    /// The rows of each group to leave out.
    gone: Vec<Vec<u32>>,
    file: Option<PageFile>,
}

#[derive(Debug)]
enum What {
    Cache(FoundBlocks),
    /// With the ids that the caller knows.
    Sequence(Vec<SavedGroup>, Option<Vec<u32>>),
    Tensors(SavedTensors),
}

impl Save {
    /// Notes the cached blocks. The cache may change afterwards.
    pub fn cache(cache: &mut PagedKvCache) -> Result<Self> {
        let found = cache.found_blocks()?;
        let content = cache::content(cache)?;
        Ok(Save::new(cache, What::Cache(found), content))
    }

    /// Holds the blocks of a sequence, which may go on afterwards. `ids` are those of its tokens, and of tokens that
    /// are to follow: they are saved with the sequence, even if a window has dropped the tokens.
    pub fn sequence(cache: &mut PagedKvCache, sequence: u64, ids: Option<&[u32]>) -> Result<Self> {
        let groups = cache.saved_sequence(sequence)?;
        let content = sequence::content(&groups);
        Ok(Save::new(cache, What::Sequence(groups, ids.map(<[u32]>::to_vec)), content))
    }

    /// Copies the content of a growing cache.
    pub fn kv_cache(cache: &KvCache) -> Result<Self> {
        Ok(Save::tensors(tensors::of_kv_cache(cache)?))
    }

    /// Copies the content of a rotating cache.
    pub fn rotating<const PARTS: usize>(cache: &Rotating<PARTS>) -> Result<Self> {
        Ok(Save::tensors(tensors::of_rotating(cache)?))
    }

    /// Copies the content of a cache with tentative tokens.
    pub fn rollback_cache(cache: &RollbackCache) -> Result<Self> {
        Ok(Save::tensors(tensors::of_rollback_cache(cache)?))
    }

    fn tensors((tensors, content): (SavedTensors, String)) -> Self {
        let (gone, layouts) = (vec![Vec::new(); tensors.parts.len()], [Vec::new(), Vec::new()]);
        Save {
            what: What::Tensors(tensors),
            identity: tensors::IDENTITY.to_owned(),
            content,
            layouts,
            gone,
            file: None,
        }
    }

    fn new(cache: &PagedKvCache, what: What, content: String) -> Self {
        let layouts = [cache.layouts().collect(), cache.staged_layouts().collect::<Vec<_>>()];
        let gone = vec![Vec::new(); layouts[0].len()];
        Save { what, identity: Identity::of(cache).text(), content, layouts, gone, file: None }
    }

    /// Writes the pages.
    pub fn write(&mut self, sink: Sink, watch: &Watch) -> Result<()> {
        let pages = self.pages();
        let groups = self.shapes().into_iter().zip(pages.iter().map(|pages| pages.rows().into())).collect();
        let mut file = PageFile::begin(sink, [self.kind(), &self.content], &self.identity, groups, &self.lists())?;
        file.write(&pages, watch)?;
        self.file = Some(file);
        Ok(())
    }

    /// Looks up the blocks that were evicted since the save began: they will not be in the file.
    pub fn leave_out(&mut self, cache: &PagedKvCache) -> Result<()> {
        if let What::Cache(found) = &self.what {
            self.gone = cache.gone(found)?;
        }
        Ok(())
    }

    /// Moves the file to its final path, after its pages were written. Returns the length of the file, and the bytes if
    /// it is in memory.
    pub fn finish(mut self) -> Result<(u64, Vec<u8>)> {
        let not_written = || Error::corrupt("the save", "without pages", "written before it is finished");
        let mut file = self.file.take().ok_or_else(not_written)?;
        file.leave_out(&self.gone)?;
        file.finish(&self.lists())
    }

    fn kind(&self) -> &'static str {
        match &self.what {
            What::Cache(_) => cache::KIND,
            What::Sequence(..) => sequence::KIND,
            What::Tensors(tensors) => tensors.kind,
        }
    }

    fn pages(&self) -> Vec<&dyn RowSource> {
        match &self.what {
            What::Cache(found) => found.pages.iter().map(|pages| pages as &dyn RowSource).collect(),
            What::Sequence(groups, _) => groups.iter().map(|group| &group.pages as &dyn RowSource).collect(),
            What::Tensors(tensors) => tensors.parts.iter().map(|part| part as &dyn RowSource).collect(),
        }
    }

    fn shapes(&self) -> Vec<RowShape> {
        match &self.what {
            What::Tensors(tensors) => tensors.parts.iter().map(|part| part.shape.clone()).collect(),
            _ => (0..).zip(&self.layouts[0]).map(|(group, layout)| RowShape::of_group(group, layout)).collect(),
        }
    }

    fn lists(&self) -> Vec<List> {
        match &self.what {
            What::Cache(found) => cache::lists(found, &self.layouts[0], &self.gone),
            What::Sequence(groups, ids) => sequence::lists(groups, &self.layouts, ids.as_deref()),
            What::Tensors(_) => Vec::new(),
        }
    }

    /// Writes everything in one call, for callers without another thread.
    pub fn to_sink(mut self, sink: Sink, watch: &Watch) -> Result<(u64, Vec<u8>)> {
        self.write(sink, watch)?;
        self.finish()
    }

    fn run(mut self, cache: &PagedKvCache, sink: Sink, watch: &Watch) -> Result<(u64, Vec<u8>)> {
        self.write(sink, watch)?;
        self.leave_out(cache)?;
        self.finish()
    }
}

/// Saves the prefix cache to a file, and returns its length in bytes, for callers without another thread.
pub fn save_cache(cache: &mut PagedKvCache, path: &Path, watch: &Watch) -> Result<u64> {
    Ok(Save::cache(cache)?.run(cache, Sink::file(path)?, watch)?.0)
}

/// As [`save_cache`], to bytes.
pub fn save_cache_bytes(cache: &mut PagedKvCache, watch: &Watch) -> Result<Vec<u8>> {
    Ok(Save::cache(cache)?.run(cache, Sink::memory(), watch)?.1)
}

/// Saves a sequence to a file, and returns its length in bytes, for callers without another thread.
pub fn save_sequence(cache: &mut PagedKvCache, sequence: u64, path: &Path, watch: &Watch) -> Result<u64> {
    Ok(Save::sequence(cache, sequence, None)?.run(cache, Sink::file(path)?, watch)?.0)
}

/// As [`save_sequence`], to bytes.
pub fn save_sequence_bytes(cache: &mut PagedKvCache, sequence: u64, watch: &Watch) -> Result<Vec<u8>> {
    Ok(Save::sequence(cache, sequence, None)?.run(cache, Sink::memory(), watch)?.1)
}
