//! One attention call with the memory that it reads: the data that its units of work share.
//!
//! A [`Segment`] is neighbouring rows at one distance, keys and values alike, of a tensor or of a page, with the scales that
//! turn its codes into numbers. The places of heads within a page are the same in all pages, and are computed once per unit
//! of work; a segment costs a few additions.

use std::ops::Range;

use kvtide_core::paged::{HeadPlace, KeyOrValue, PageFormat, PageLayout};

use crate::attention::call::Call;
use crate::attention::call::asked::{Asked, Axes, ROWS};
use crate::attention::call::kv_rows::ResolvedRows;
use crate::attention::stem::Stems;
use crate::kernels::quantise::q4_at;
use crate::kernels::tile::{AHEAD, Ahead, Elements, TileKernels, TileRows};
use crate::paged::PageRows;
use crate::tensor::source::Resolved;

/// One call.
pub(super) struct Job<'a> {
    pub kernels: &'static TileKernels,
    pub asked: &'a Asked<'a>,
    pub queries: StridedRows<'a>,
    pub keys: Keys<'a>,
    pub stems: Stems,
    /// For each sequence with keys in pages, true if some of its pages are available both as floats and quantised.
    two_forms: Vec<bool>,
}

/// The place of keys and values.
pub(super) enum Keys<'a> {
    /// In tensors or views.
    Strided { k: StridedRows<'a>, v: StridedRows<'a> },
    /// In pages.
    Pages(Pages<'a>),
}

/// The places of some heads of keys and values.
#[expect(clippy::large_enum_variant, reason = "there is one for each unit, and it is not moved")]
pub(super) enum Heads {
    Strided(Range<usize>),
    Pages(PageHeads),
}

/// Some queries of one sequence or stem, all query heads of some KV heads, and a share of the keys that they attend to.
#[derive(Clone, Debug)]
pub(super) struct WorkUnit {
    /// The sequence whose keys are read.
    pub sequence: usize,
    /// The stem, if the queries belong to several sequences.
    pub stem: Option<usize>,
    /// The KV heads.
    pub heads: Range<usize>,
    /// The index of the first query within the sequence or the stem.
    pub first_query: usize,
    pub queries: usize,
    /// The index of the share of the keys, and the number of shares.
    pub split: usize,
    pub splits: usize,
    /// The index of the unit before it was divided into shares.
    pub group: usize,
}

impl WorkUnit {
    /// The number of rows of all its heads, ordered by KV head, query, and query head within the group.
    pub fn rows(&self, group: usize) -> usize {
        self.heads.len() * self.queries * group
    }

    /// The query of a row, by index within the sequence or the stem, and its query head.
    pub fn query_and_head(&self, row: usize, group: usize) -> (usize, usize) {
        let rows = self.queries * group;
        let (head, row) = (self.heads.start + row / rows, row % rows);
        (self.first_query + row / group, head * group + row % group)
    }
}

impl<'a> Job<'a> {
    /// A call with the memory of its tensors.
    pub fn new(call: &'a Call<'_>, kernels: &'static TileKernels, memory: &[&'a [u8]]) -> Self {
        let (mut memory, rows) = (memory.iter().copied(), call.rows());
        let queries = StridedRows::new(call.queries(), rows.axes(), call.queries().bytes(&mut memory));
        let keys = match rows {
            ResolvedRows::Strided { k, v, axes } => Keys::Strided {
                k: StridedRows::new(k, *axes, k.bytes(&mut memory)),
                v: StridedRows::new(v, *axes, v.bytes(&mut memory)),
            },
            ResolvedRows::Pages(rows) => Keys::Pages(Pages {
                slab: rows.slabs.slab.pages(memory.next().unwrap_or(&[])),
                staging: rows.slabs.staging.pages(memory.next().unwrap_or(&[])),
                rows,
            }),
        };
        let stems = match &keys {
            Keys::Pages(pages) => Stems::new(&call.asked, pages.rows, 1),
            Keys::Strided { .. } => Stems::default(),
        };
        let two_forms = match &keys {
            Keys::Pages(pages) => (0..pages.rows.count()).map(|sequence| pages.rows.has_two_forms(sequence)).collect(),
            Keys::Strided { .. } => Vec::new(),
        };
        Job { kernels, asked: &call.asked, queries, keys, stems, two_forms }
    }

    /// True if some pages of a sequence are available both as floats and quantised.
    pub fn has_two_forms(&self, sequence: usize) -> bool {
        self.two_forms.get(sequence).is_some_and(|has| *has)
    }

    /// The number of keys in a page; 1 for tensors.
    pub fn page_size(&self) -> usize {
        match &self.keys {
            Keys::Strided { .. } => 1,
            Keys::Pages(pages) => pages.rows.block_size(),
        }
    }

    /// The sequence of a unit's query, and the query's index there.
    pub fn query(&self, unit: &WorkUnit, query: usize) -> (usize, usize) {
        unit.stem.map_or((unit.sequence, query), |stem| self.stems.all[stem].queries[query])
    }

    /// True if some keys are rotated.
    pub fn has_rotated_keys(&self) -> bool {
        matches!(&self.keys, Keys::Pages(pages) if pages.rows.slabs.shape.rotated[KeyOrValue::Key as usize])
    }

    /// The number of KV heads in a unit with this many queries. Pages are read in memory order, all heads of one page before
    /// the next page; in tensors, all rows of a head are together.
    pub fn heads_max(&self, queries: usize) -> usize {
        match &self.keys {
            Keys::Strided { .. } => 1,
            Keys::Pages(_) => (ROWS / (queries * self.asked.sizes.group()).max(1)).clamp(1, self.asked.sizes.kv_heads),
        }
    }

    /// The places of some heads of keys and values.
    pub fn heads(&self, heads: &Range<usize>) -> Heads {
        match &self.keys {
            Keys::Strided { .. } => Heads::Strided(heads.clone()),
            Keys::Pages(pages) => Heads::Pages(pages.heads(heads)),
        }
    }

    /// The equidistant rows from key `index` of a sequence on. Of pages in both forms, those before the page `own` are read
    /// quantised.
    pub fn segment(&self, sequence: usize, heads: &Heads, index: usize, own: usize) -> Segment<'_> {
        match (&self.keys, heads) {
            (Keys::Strided { k, v }, Heads::Strided(heads)) => {
                let batch = self.asked.batch(sequence);
                let index = self.asked.sequences[sequence].first_key + index;
                let (keys, values) = (k.rows(batch, heads.clone(), index), v.rows(batch, heads.clone(), index));
                let count = keys.count.min(values.count);
                Segment {
                    keys: keys.part(0, count),
                    values: values.part(0, count),
                    key_scales: Scales::ONE,
                    value_scales: Scales::ONE,
                    rotated: [false; 2],
                }
            }
            (Keys::Pages(pages), Heads::Pages(heads)) => pages.segment(heads, sequence, index, own),
            _ => unreachable!("heads of these keys"),
        }
    }
}

/// Equidistant rows of some heads, from one key on, keys and values alike.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    pub keys: TileRows<'a>,
    pub values: TileRows<'a>,
    pub key_scales: Scales<'a>,
    pub value_scales: Scales<'a>,
    /// True for keys, and for values, that were rotated before they were quantised: queries, and sums of values, must then
    /// be rotated too.
    pub rotated: [bool; 2],
}

impl Segment<'_> {
    /// Its first rows, at most `count` of them.
    pub fn first(self, count: usize) -> Self {
        let count = count.min(self.keys.count);
        Segment { keys: self.keys.part(0, count), values: self.values.part(0, count), ..self }
    }

    /// The number of keys of each head.
    pub fn count(&self) -> usize {
        self.keys.count
    }
}

/// The way in which a code becomes a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// The code is the number.
    One,
    /// `code * scale`, with one scale per row.
    Row,
    /// `code * scale + minimum`, with one word per row.
    RowPair,
    /// `code * scale + minimum`, with one word per channel.
    Channel,
}

/// The scales of the rows of some heads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scales<'a> {
    pub scale: Scale,
    /// The scales, starting with the first row's.
    pub bytes: &'a [u8],
    /// The distance from one head to the next in bytes.
    pub head_stride: usize,
}

impl<'a> Scales<'a> {
    /// No scales: codes are the numbers.
    pub const ONE: Scales<'static> = Scales { scale: Scale::One, bytes: &[], head_stride: 0 };

    /// True if each row has its own scale.
    pub fn is_by_row(&self) -> bool {
        matches!(self.scale, Scale::Row | Scale::RowPair)
    }

    /// True if each channel of a head has its own scale.
    pub fn is_by_channel(&self) -> bool {
        self.scale == Scale::Channel
    }

    /// The scales of one head.
    pub fn head(self, head: usize) -> Scales<'a> {
        Scales { bytes: &self.bytes[head * self.head_stride..], ..self }
    }

    /// Writes the scales and minimums of the first `count` rows of the first head; 1 and 0 if rows have none. Both slices
    /// may also be overwritten from `count` on, up to a whole vector.
    pub fn of_rows(&self, kernels: &TileKernels, count: usize, scales: &mut [f32], minimums: &mut [f32]) {
        match self.scale {
            Scale::One | Scale::Channel => {
                scales[..count].fill(1.0);
                minimums[..count].fill(0.0);
            }
            Scale::Row => {
                kernels.widen(TileRows::new(Elements::Bf16, self.bytes, 0, 1, count), 0, scales);
                minimums[..count].fill(0.0);
            }
            Scale::RowPair => self.put_words(count, scales, minimums),
        }
    }

    /// Writes the scales and minimums of the `dim` channels of the first head, followed by zeros: an earlier call may have
    /// left NaN there, which multiplication with a query's zeros would not remove.
    pub fn of_channels(&self, dim: usize, scales: &mut [f32], minimums: &mut [f32]) {
        self.put_words(dim, scales, minimums);
        scales[dim..].fill(0.0);
        minimums[dim..].fill(0.0);
    }

    /// Unpacks the first `count` words.
    fn put_words(&self, count: usize, scales: &mut [f32], minimums: &mut [f32]) {
        let words = self.bytes.chunks_exact(4).take(count);
        for ((word, scale), minimum) in words.zip(&mut *scales).zip(&mut *minimums) {
            [*scale, *minimum] = q4_at(word, 0);
        }
    }
}

/// Rows in known memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct StridedRows<'a> {
    pub elements: Elements,
    pub bytes: &'a [u8],
    /// The distances in bytes from one batch row, head and token to the next; 0 for the batch of ragged rows.
    batch: usize,
    head: usize,
    token: usize,
    /// The byte offset and the number of tokens of each run.
    runs: [(usize, usize); 2],
    pub dim: usize,
}

impl<'a> StridedRows<'a> {
    /// The rows of a source, in `bytes`.
    fn new(source: &Resolved<'_>, axes: Axes, bytes: &'a [u8]) -> Self {
        let (strides, runs) = source.layout();
        StridedRows {
            elements: Elements::of(source.dtype.page_format()),
            bytes,
            batch: if axes.are_ragged() { 0 } else { strides[0] },
            head: strides[axes.heads],
            token: strides[axes.tokens],
            runs,
            dim: source.dims[axes.rank - 1],
        }
    }

    /// The equidistant rows of some heads, from token `index` on.
    pub fn rows(&self, batch: usize, heads: Range<usize>, index: usize) -> TileRows<'a> {
        let [(first, tokens), (second, more)] = self.runs;
        let (offset, within, count) =
            if index < tokens { (first, index, tokens) } else { (second, index - tokens, more) };
        TileRows {
            elements: self.elements,
            bytes: self.bytes,
            offset: offset + batch * self.batch + heads.start * self.head + within * self.token,
            heads: heads.len(),
            head_stride: self.head,
            stride: self.token,
            count: count - within,
            dim: self.dim,
            ahead: Ahead::STRAIGHT,
        }
    }
}

/// Pages, with the bytes of the slab and of the staging slab.
#[derive(Clone, Copy)]
pub(super) struct Pages<'a> {
    pub rows: &'a PageRows<'a>,
    pub slab: &'a [u8],
    pub staging: &'a [u8],
}

/// The places of some heads in the pages of the slab, and in those of the staging slab.
#[derive(Clone, Copy)]
pub(super) struct PageHeads {
    slab: [PartPlace; 2],
    staged: [PartPlace; 2],
}

/// The place in a page of K or V of some heads.
#[derive(Clone, Copy)]
struct PartPlace {
    scale: Scale,
    elements: Elements,
    dim: usize,
    heads: usize,
    /// The place of the first head.
    place: HeadPlace,
    /// The distances in bytes from one head's codes to the next head's, and from its scales to the next.
    strides: [usize; 2],
    /// The bytes of a row's scale; 0 if scales are not per row.
    row_scales: usize,
}

impl<'a> Pages<'a> {
    /// The places of some heads in every page.
    pub fn heads(&self, heads: &Range<usize>) -> PageHeads {
        let places = |layout| KeyOrValue::BOTH.map(|part| self.place(layout, part, heads));
        PageHeads { slab: places(&self.rows.slabs.shape.pages), staged: places(&self.rows.slabs.shape.staged) }
    }

    fn place(&self, layout: &PageLayout, part: KeyOrValue, heads: &Range<usize>) -> PartPlace {
        let section = layout.section(part);
        let (scale, row_scales) = scale(section.format, part);
        PartPlace {
            scale,
            elements: Elements::of(section.format),
            dim: section.head_dim,
            heads: heads.len(),
            place: layout.head_in_page(part, heads.start as u32),
            strides: [section.head_bytes, section.scale_bytes],
            row_scales,
        }
    }

    /// The rows from a token of a sequence on, up to the end of its page.
    pub fn segment(&self, heads: &PageHeads, sequence: usize, token: usize, own: usize) -> Segment<'a> {
        let block_size = self.rows.block_size();
        let page = self.rows.page_for(own, sequence, token).expect("a token of the sequence");
        let slot = token % block_size;
        let (bytes, places) = match page.staged {
            Some(_) => (self.staging, &heads.staged),
            None => (self.slab, &heads.slab),
        };
        let start = self.rows.start(&page);
        let part = |place: &PartPlace| {
            let HeadPlace { codes, row_bytes, scales } = place.place;
            let length = place.heads * place.strides[0];
            let rows = TileRows {
                elements: place.elements,
                bytes,
                offset: start + codes + slot * row_bytes,
                heads: place.heads,
                head_stride: place.strides[0],
                stride: row_bytes,
                count: page.tokens as usize - slot,
                dim: place.dim,
                ahead: self.ahead(sequence, token, length, own),
            };
            let scales = scales.map_or(Scales::ONE, |scales| Scales {
                scale: place.scale,
                bytes: &bytes[start + scales + slot * place.row_scales..],
                head_stride: place.strides[1],
            });
            (rows, scales)
        };
        let ((keys, key_scales), (values, value_scales)) = (part(&places[0]), part(&places[1]));
        Segment {
            keys,
            values,
            key_scales,
            value_scales,
            rotated: if page.staged.is_none() { self.rows.slabs.shape.rotated } else { [false; 2] },
        }
    }

    /// The prefetch distances while the rows of a token are read, in pages of which `length` bytes each are read.
    fn ahead(&self, sequence: usize, token: usize, length: usize, own: usize) -> Ahead {
        let block_size = self.rows.block_size();
        let page = |pages: usize| self.rows.page_for(own, sequence, token + pages * block_size);
        let Some(this) = page(0) else { return Ahead::NOTHING };
        // The distance in bytes from the rows to the same place in a later page, plus `further`.
        let distance = |pages: usize, further: isize| match page(pages) {
            Some(next) if next.staged.is_some() == this.staged.is_some() => {
                self.rows.start(&next) as isize - self.rows.start(&this) as isize + further
            }
            _ => 0,
        };
        let (pages, rest) = (AHEAD / length.max(1), AHEAD % length.max(1));
        let (near, far) = (distance(pages, rest as isize), distance(pages + 1, rest as isize - length as isize));
        Ahead { near, far, turn: length - rest }
    }
}

/// The kind of scale, and the bytes of a row's scale.
fn scale(format: PageFormat, part: KeyOrValue) -> (Scale, usize) {
    match (format, part) {
        (PageFormat::Q8, _) => (Scale::Row, 2),
        (PageFormat::Q4, KeyOrValue::Value) => (Scale::RowPair, 4),
        (PageFormat::Q4, KeyOrValue::Key) => (Scale::Channel, 0),
        _ => (Scale::One, 0),
    }
}
