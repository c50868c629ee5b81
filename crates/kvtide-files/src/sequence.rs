//! The file of a sequence: one conversation up to its last token, even if that is in the middle of a block.
//!
//! ```text
//! pages.0     its blocks                   places.0   the place of each block; blocks that left a window have none
//! tokens.0    ids, as far as they are known
//! marks.0     the slots that were written, for blocks that are not full
//! staging.0   staging pages: low-bit pages that are not full, in floats
//! ```

use kvtide_core::paged::{BlockKey, PageLayout, SavedChain, SavedContent, SavedRow};
use kvtide_tensor::pages::{NewBlocks, SavedGroup, StagedPage};
use kvtide_tensor::{PagedKvCache, PromptOptions};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::identity::{Identity, bytes, hex};
use crate::pages::{GroupRows, List, RowShape, RowTarget, SealedFile};
use crate::source::Source;
use crate::watch::Watch;

/// The kind of the file of a sequence.
pub(crate) const KIND: &str = "sequence";

/// The state of a sequence in its file, besides the identity.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Content {
    length: u32,
    /// A hash of the salt and the extras of its tokens.
    owner: String,
    groups: Vec<Group>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Group {
    cleared: u32,
    known: u32,
    keyed: u32,
    nameless: u32,
    root: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    passed: Option<String>,
}

/// Returns the state of a sequence besides its identity, as JSON.
pub(crate) fn content(groups: &[SavedGroup]) -> String {
    let group = |of: &SavedGroup| {
        let SavedChain { root, known, keyed, nameless, passed, .. } = of.content.chain;
        let (root, passed) = (hex(&root.0), passed.map(|key| hex(&key.0)));
        Group { cleared: of.content.cleared, known, keyed, nameless, root, passed }
    };
    let SavedContent { length, chain, .. } = groups[0].content;
    let content = Content { length, owner: hex(&chain.owner.0), groups: groups.iter().map(group).collect() };
    serde_json::to_string(&content).expect("numbers and text are JSON")
}

/// The name of the list of ids that the caller knew.
const IDS: &str = "ids";

/// Returns the lists that describe the blocks; `layouts` are those of pages and of staging pages.
pub(crate) fn lists(groups: &[SavedGroup], layouts: &[Vec<PageLayout>; 2], ids: Option<&[u32]>) -> Vec<List> {
    let mut lists: Vec<List> = ids.iter().map(|ids| List::u32s(IDS, &[ids.len() as u64], ids)).collect();
    for (group, of) in groups.iter().enumerate() {
        let (shape, rows) = (layouts[0][group].shape(), of.rows.len() as u64);
        let tokens: Vec<u32> = of.rows.iter().flat_map(|row| row.tokens.iter().copied()).collect();
        lists.push(List::u32s(format!("places.{group}"), &[rows], &of.content.places));
        lists.push(List::u32s(format!("tokens.{group}"), &[rows, shape.block_size.into()], &tokens));
        let marked = of.rows.iter().zip(0..).filter_map(|(row, at)| Some((at, row.marks.as_ref()?)));
        let (partial, marks): (Vec<u32>, Vec<&Vec<u8>>) = marked.unzip();
        let mark_shape = [partial.len() as u64, shape.num_layers.into(), mark_bytes(shape.block_size)];
        lists.push(List::u32s(format!("partial.{group}"), &[partial.len() as u64], &partial));
        lists.push(List::new(format!("marks.{group}"), "U8", &mark_shape, marks.concat_bytes()));
        let staged: Vec<u32> = of.staged.iter().flat_map(|page| [page.row, page.layer]).collect();
        let pages: Vec<&Vec<u8>> = of.staged.iter().map(|page| &page.bytes).collect();
        let bytes = layouts[1][group].page_bytes() as u64;
        lists.push(List::u32s(format!("staged.{group}"), &[pages.len() as u64, 2], &staged));
        lists.push(List::new(format!("staging.{group}"), "U8", &[pages.len() as u64, bytes], pages.concat_bytes()));
    }
    lists
}

/// Returns the number of bytes of the marks of a layer.
fn mark_bytes(block_size: u32) -> u64 {
    block_size.div_ceil(8).into()
}

trait ConcatBytes {
    fn concat_bytes(&self) -> Vec<u8>;
}

impl ConcatBytes for Vec<&Vec<u8>> {
    fn concat_bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|bytes| bytes.iter().copied()).collect()
    }
}

/// Creates a sequence of a cache with the saved content; prompts with `options` find its blocks.
pub fn load_sequence(
    cache: &mut PagedKvCache,
    source: Source,
    options: PromptOptions<'_>,
    watch: &Watch,
) -> Result<u64> {
    let file = SequenceFile::open(source)?;
    file.check(cache, options)?;
    if file.evicts(cache) {
        file.verify(cache, watch)?;
    }
    let new = file.begin(cache)?;
    file.read(cache, &new, watch)?;
    file.end(cache, &new, options)
}

/// The file of a sequence, with its header, identity and lists checked.
#[derive(Debug)]
pub struct SequenceFile {
    file: SealedFile,
    identity: Identity,
    owner: [u8; 32],
    groups: Vec<SavedGroup<()>>,
    ids: Option<Vec<u32>>,
}

impl SequenceFile {
    /// Opens a file, and checks everything in it except the pages.
    pub fn open(source: Source) -> Result<Self> {
        let (file, identity) = SealedFile::of_model(source, KIND)?;
        let content = file.header.text("content")?;
        let content: Content = serde_json::from_str(content).map_err(|error| {
            Error::corrupt("the content", format!("other text: {error}"), "the content of a sequence")
        })?;
        if content.groups.len() != identity.groups() {
            let found = format!("{} groups", content.groups.len());
            return Err(Error::corrupt("the content", found, format!("{}", identity.groups())));
        }
        let owner = bytes(&content.owner, "owner")?;
        let of_all = (content.length, owner);
        let groups = content.groups.iter().enumerate().map(|(at, of)| group(&file, at, of_all, of, &identity));
        let groups = groups.collect::<Result<Vec<_>>>()?;
        let ids = match file.header.shape(IDS) {
            Some(_) => Some(file.u32s(IDS, &[file.first_size(IDS)?])?),
            None => known(&groups),
        };
        if let Some(ids) = ids.as_ref().filter(|ids| ids.len() < content.length as usize) {
            return Err(Error::corrupt(IDS, format!("{} ids", ids.len()), format!("at least {}", content.length)));
        }
        Ok(SequenceFile { owner, file, identity, groups, ids })
    }

    /// Returns the model and the form of the saved sequence.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the number of tokens.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.groups[0].content.length
    }

    /// Returns the ids of all tokens, and of those that are to follow, if they are known.
    #[must_use]
    pub fn ids(&self) -> Option<&[u32]> {
        self.ids.as_deref()
    }

    /// Refuses a cache of another identity, and a salt or extras that differ from the saved ones. Call it on the
    /// cache's thread.
    pub fn check(&self, cache: &mut PagedKvCache, options: PromptOptions<'_>) -> Result<()> {
        self.identity.check(cache)?;
        let namer = match self.identity.own_key()? {
            Some(key) => cache.namer().under(key),
            None => {
                self.identity.check_key(cache.namer())?;
                cache.namer().clone()
            }
        };
        let owner = namer.owner(options)?.0;
        if owner != self.owner {
            return Err(Error::incompatible("salt", "another", "the salt and the extras of the saved sequence"));
        }
        for (group, (layout, of)) in cache.layouts().zip(&self.groups).enumerate() {
            self.file.pages(group, &RowShape::of_group(group, &layout), of.rows.len() as u64)?;
        }
        cache.check_saved(&self.groups).map_err(Error::of_content)
    }

    /// True if cached blocks would be evicted for it: then the pages are verified first.
    #[must_use]
    pub fn evicts(&self, cache: &PagedKvCache) -> bool {
        cache.must_evict_for(&self.groups.iter().map(|of| of.rows.len()).collect::<Vec<_>>())
    }

    /// Compares the checksums of all pages. Can be called on any thread.
    pub fn verify(&self, cache: &PagedKvCache, watch: &Watch) -> Result<()> {
        self.verify_pages(&cache.layouts().collect::<Vec<_>>(), watch)
    }

    /// As [`SequenceFile::verify`], for callers that have the layouts of the cache.
    pub fn verify_pages(&self, layouts: &[PageLayout], watch: &Watch) -> Result<()> {
        self.file.read(&self.rows(layouts, None), watch)
    }

    /// Takes blocks for the sequence. Call it on the cache's thread.
    pub fn begin(&self, cache: &mut PagedKvCache) -> Result<NewBlocks> {
        Ok(cache.new_blocks_of(&self.groups.iter().map(|of| &of.content).collect::<Vec<_>>())?)
    }

    /// Reads the pages into those blocks, and compares their checksums. Can be called on any thread.
    pub fn read(&self, cache: &PagedKvCache, new: &NewBlocks, watch: &Watch) -> Result<()> {
        self.read_pages(&cache.layouts().collect::<Vec<_>>(), new, watch)
    }

    /// As [`SequenceFile::read`], for callers that have the layouts of the cache.
    pub fn read_pages(&self, layouts: &[PageLayout], new: &NewBlocks, watch: &Watch) -> Result<()> {
        self.file.read(&self.rows(layouts, Some(new)), watch)
    }

    /// Creates a sequence from those blocks. Call it on the cache's thread. Prompts do not find the blocks if prefixes
    /// were forgotten since the load was requested.
    pub fn end(&self, cache: &mut PagedKvCache, new: &NewBlocks, options: PromptOptions<'_>) -> Result<u64> {
        Ok(cache.settle_sequence(new, &self.groups, options)?)
    }

    fn rows<'a>(&self, layouts: &[PageLayout], new: Option<&'a NewBlocks>) -> Vec<GroupRows<'a>> {
        let group = |(group, (layout, of)): (usize, (&PageLayout, &SavedGroup<()>))| {
            let rows = of.rows.len() as u64;
            GroupRows {
                shape: RowShape::of_group(group, layout),
                rows,
                wanted: (0..rows as u32).collect(),
                writer: new.map(|new| &new.pages[group] as &dyn RowTarget),
            }
        };
        layouts.iter().zip(&self.groups).enumerate().map(group).collect()
    }
}

/// Returns the ids of all tokens, if a group has them all.
fn known(groups: &[SavedGroup<()>]) -> Option<Vec<u32>> {
    let has_all = |of: &&SavedGroup<()>| of.content.chain.known == of.content.length && of.content.cleared == 0;
    let of = groups.iter().find(has_all)?;
    let ids = of.rows.iter().flat_map(|row| row.tokens.iter().copied());
    Some(ids.take(of.content.length as usize).collect())
}

/// Reads the state of a group from a file.
fn group(
    file: &SealedFile,
    at: usize,
    all: (u32, [u8; 32]),
    of: &Group,
    identity: &Identity,
) -> Result<SavedGroup<()>> {
    let (length, owner) = all;
    let name = |list: &str| format!("{list}.{at}");
    let size = identity.block_size();
    let rows = file.first_size(&name("places"))?;
    let places = file.u32s(&name("places"), &[rows])?;
    let tokens = file.u32s(&name("tokens"), &[rows, size.into()])?;
    let row = |tokens: &[u32]| SavedRow { tokens: tokens.to_vec(), ..SavedRow::default() };
    let mut saved: Vec<SavedRow> = tokens.chunks_exact(size as usize).map(row).collect();
    let outside = |list: &str, row: u32| Error::corrupt(name(list), format!("row {row}"), format!("rows below {rows}"));
    let partial = file.u32s(&name("partial"), &[file.first_size(&name("partial"))?])?;
    let layers = identity.layers_of(at);
    let marks = file.bytes(&name("marks"), "U8", &[partial.len() as u64, layers, mark_bytes(size)])?;
    for (&row, marks) in partial.iter().zip(marks.chunks_exact((layers * mark_bytes(size)) as usize)) {
        saved.get_mut(row as usize).ok_or_else(|| outside("partial", row))?.marks = Some(marks.to_vec());
    }
    let staged = file.u32s(&name("staged"), &[file.first_size(&name("staged"))?, 2])?;
    let pages = staged.as_chunks::<2>().0;
    let shape = file.header.shape(&name("staging")).unwrap_or(&[]).to_vec();
    let bytes = file.bytes(&name("staging"), "U8", &[pages.len() as u64, shape.get(1).copied().unwrap_or(0)])?;
    let mut floats = Vec::new();
    for (&[row, layer], bytes) in pages.iter().zip(bytes.chunks_exact((bytes.len() / pages.len().max(1)).max(1))) {
        saved.get_mut(row as usize).ok_or_else(|| outside("staged", row))?.staged.push(layer);
        floats.push(StagedPage { row, layer, bytes: bytes.to_vec() });
    }
    let key = |text: &String| Ok::<_, Error>(BlockKey(crate::identity::bytes(text, "a key")?));
    let passed = of.passed.as_ref().map(key).transpose()?;
    let Group { cleared, known, keyed, nameless, .. } = *of;
    let owner = BlockKey(owner);
    let chain = SavedChain { root: key(&of.root)?, owner, known, keyed, nameless, passed };
    Ok(SavedGroup { content: SavedContent { length, cleared, places, chain }, rows: saved, staged: floats, pages: () })
}
