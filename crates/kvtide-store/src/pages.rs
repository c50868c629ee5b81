//! The body of a file: pages first, then the lists that say what they are, and a sum over all of those.
//!
//! ```text
//! [ length, header ][ pages.0 ][ pages.1 ] ... [ lists: sums.0, tokens.0, ... ][ seal ]
//!                    `-- rows: one block each, all layers; a sum for each page --'
//! ```
//!
//! Pages are written as they are read, and the header last, into the place that was kept for it: so what made room meanwhile can be left
//! out. Sums are XXH3 of 64 bits: they find damage, not forgery. O(bytes), one copy.

use std::hash::Hasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kvtide_core::paged::PageLayout;
use kvtide_tensor::{PageReader, PageWriter};
use twox_hash::XxHash3_64;

use crate::container::Header;
use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::sink::Sink;
use crate::source::Source;
use crate::watch::Watch;

/// What the metadata of every file says of its format.
pub(crate) const FORMAT: &str = "kvtide";

/// The version of the format: files of others are refused.
pub(crate) const VERSION: &str = "1";

/// Bytes that are written or read at a time, or one row where that is more.
const PIECE: usize = 1 << 20;

/// A list behind the pages.
#[derive(Debug)]
pub(crate) struct List {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

impl List {
    pub fn new(name: impl Into<String>, dtype: &'static str, shape: &[u64], bytes: Vec<u8>) -> Self {
        List { name: name.into(), dtype, shape: shape.to_vec(), bytes }
    }

    pub fn u32s(name: impl Into<String>, shape: &[u64], numbers: &[u32]) -> Self {
        List::new(name, "U32", shape, numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
    }

    pub fn u64s(name: impl Into<String>, shape: &[u64], numbers: &[u64]) -> Self {
        List::new(name, "U64", shape, numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
    }
}

/// The dtype of pages, and the shape of one row of them.
pub(crate) fn page_shape(layout: &PageLayout) -> (&'static str, Vec<u64>) {
    use kvtide_core::paged::PageFormat;
    let dtype = match layout.uniform() {
        Some(PageFormat::F32) => "F32",
        Some(PageFormat::F16) => "F16",
        Some(PageFormat::BF16) => "BF16",
        _ => "U8",
    };
    (dtype, layout.slab_shape(1)[1..].iter().map(|&size| size as u64).collect())
}

/// A file of pages on its way.
#[derive(Debug)]
pub(crate) struct PageFile {
    sink: Sink,
    metadata: Vec<(String, String)>,
    layouts: Vec<PageLayout>,
    /// Rows that were written of each group, and the sums of their pages.
    rows: Vec<u64>,
    sums: Vec<Vec<u64>>,
    /// Bytes kept for the header.
    header: usize,
}

impl PageFile {
    /// Begins a file of so many rows in each group at most; `lists` have the shapes that the lists will have at most.
    pub fn begin(
        mut sink: Sink,
        [kind, content]: [&str; 2],
        identity: &Identity,
        groups: Vec<(PageLayout, u64)>,
        lists: &[List],
    ) -> Result<Self> {
        let (layouts, rows) = groups.into_iter().unzip();
        let said = [("format", FORMAT), ("version", VERSION), ("kind", kind), ("identity", &identity.text())];
        let made = ("writer", concat!("kvtide ", env!("CARGO_PKG_VERSION")));
        let metadata = said.into_iter().chain([("content", content), made]);
        let metadata = metadata.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut file = PageFile { sink: Sink::memory(), metadata, layouts, rows, sums: Vec::new(), header: 0 };
        let mut header = file.header_of(lists);
        header.encode(0)?;
        file.header = header.raw.len();
        // What is there until the end is no header: it says that it is longer than any may be.
        sink.write(&vec![0xff; file.header])?;
        file.sink = sink;
        Ok(file)
    }

    fn header_of(&self, lists: &[List]) -> Header {
        let mut header = Header { metadata: self.metadata.clone(), ..Header::default() };
        for (group, (layout, rows)) in self.layouts.iter().zip(&self.rows).enumerate() {
            let (dtype, row) = page_shape(layout);
            header.add(format!("pages.{group}"), dtype, &[&[*rows][..], &row].concat());
        }
        for (group, (layout, rows)) in self.layouts.iter().zip(&self.rows).enumerate() {
            header.add(format!("sums.{group}"), "U64", &[*rows, layout.shape().num_layers.into()]);
        }
        lists.iter().for_each(|list| header.add(&*list.name, list.dtype, &list.shape));
        header.add("seal", "U64", &[1]);
        header
    }

    /// Writes all rows.
    pub fn write(&mut self, readers: &[&PageReader], watch: &Watch) -> Result<()> {
        watch.begin(readers.iter().map(|reader| u64::from(reader.rows()) * reader.row_bytes() as u64).sum());
        for (reader, layout) in readers.iter().zip(&self.layouts) {
            let bytes = reader.row_bytes();
            let at_once = (PIECE / bytes.max(1)).max(1).min(reader.rows() as usize);
            let mut buffer = room(at_once * bytes)?;
            let mut sums = Vec::new();
            let rows: Vec<u32> = (0..reader.rows()).collect();
            for rows in rows.chunks(at_once.max(1)) {
                let buffer = &mut buffer[..rows.len() * bytes];
                for (&row, out) in rows.iter().zip(buffer.chunks_exact_mut(bytes)) {
                    reader.read(row, out)?;
                }
                sums.extend(buffer.chunks_exact(layout.page_bytes()).map(XxHash3_64::oneshot));
                self.sink.write(buffer)?;
                watch.advance(buffer.len())?;
            }
            self.sums.push(sums);
        }
        Ok(())
    }

    /// Leaves rows out that were written: those behind them move up. O(bytes behind the first of them).
    pub fn leave_out(&mut self, gone: &[Vec<u32>]) -> Result<()> {
        if gone.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let (mut from, mut to) = (self.header as u64, self.header as u64);
        for group in 0..self.rows.len() {
            let (layers, bytes) = (self.layouts[group].shape().num_layers as usize, self.layouts[group].block_bytes());
            let mut buffer = room(bytes)?;
            let (mut kept, mut next) = (Vec::new(), gone[group].iter().peekable());
            for row in 0..self.rows[group] {
                if next.next_if(|&&gone| u64::from(gone) == row).is_none() {
                    if from != to {
                        self.sink.go(from)?;
                        self.sink.read(&mut buffer)?;
                        self.sink.go(to)?;
                        self.sink.write(&buffer)?;
                    }
                    kept.extend(&self.sums[group][row as usize * layers..][..layers]);
                    to += bytes as u64;
                }
                from += bytes as u64;
            }
            self.rows[group] -= gone[group].len() as u64;
            self.sums[group] = kept;
        }
        self.sink.go(to)
    }

    /// Writes the lists, the seal and the header, and puts the file in its place. Answers how many bytes it has, and the bytes where it is
    /// memory.
    pub fn finish(mut self, lists: &[List]) -> Result<(u64, Vec<u8>)> {
        let mut header = self.header_of(lists);
        header.encode(self.header)?;
        if header.raw.len() != self.header {
            let found = format!("{} bytes long", header.raw.len());
            return Err(Error::corrupt("the header", found, format!("{} bytes", self.header)));
        }
        let mut sum = XxHash3_64::with_seed(0);
        sum.write(&header.raw);
        let pages = self.layouts.iter().zip(&self.rows).map(|(layout, rows)| layout.block_bytes() as u64 * rows);
        let mut end = self.header as u64 + pages.sum::<u64>();
        let sums = self.sums.iter().map(|sums| sums.iter().flat_map(|sum| sum.to_le_bytes()).collect::<Vec<u8>>());
        for bytes in sums.chain(lists.iter().map(|list| list.bytes.clone())) {
            sum.write(&bytes);
            self.sink.write(&bytes)?;
            end += bytes.len() as u64;
        }
        self.sink.write(&sum.finish().to_le_bytes())?;
        self.sink.cut(end + 8)?;
        self.sink.go(0)?;
        self.sink.write(&header.raw)?;
        Ok((end + 8, self.sink.finish()?))
    }
}

/// A file of pages that is there: its header is checked, and its seal.
#[derive(Debug)]
pub(crate) struct SealedFile {
    pub source: Source,
    pub header: Header,
}

impl SealedFile {
    /// Reads the header and the seal; the pages are looked at when they are read.
    pub fn open(source: Source, kind: &str) -> Result<(Self, Identity)> {
        let header = Header::read(&source)?;
        let format = header.text("format")?;
        if format != FORMAT {
            return Err(Error::corrupt("format", format, FORMAT));
        }
        for (field, expected) in [("version", VERSION), ("kind", kind)] {
            let found = header.text(field)?;
            if found != expected {
                return Err(Error::incompatible(field, found, expected));
            }
        }
        let identity = Identity::parse(header.text("identity")?)?;
        let file = SealedFile { source, header };
        file.check_seal(identity.groups())?;
        Ok((file, identity))
    }

    /// The sum over all that is no page.
    fn check_seal(&self, groups: usize) -> Result<()> {
        for (group, (name, _)) in self.header.tensors.iter().take(groups).enumerate() {
            if *name != format!("pages.{group}") {
                return Err(Error::corrupt("a tensor", name, format!("pages.{group}")));
            }
        }
        let place = self.header.place("seal", "U64", &[1])?;
        if place + 8 != self.source.len() {
            return Err(Error::corrupt("the seal", format!("at {place}"), "the last of the file"));
        }
        let mut sum = XxHash3_64::with_seed(0);
        sum.write(&self.header.raw);
        let behind = self.header.tensors.iter().skip(groups);
        let first = behind.map(|(_, info)| info.data_offsets[0]).next().unwrap_or(0) + self.header.raw.len() as u64;
        let mut buffer = room(PIECE.min((place - first) as usize))?;
        let mut at = first;
        while at < place {
            let bytes = buffer.len().min((place - at) as usize);
            let piece = &mut buffer[..bytes];
            self.source.read(at, piece)?;
            sum.write(piece);
            at += bytes as u64;
        }
        let mut seal = [0; 8];
        self.source.read(place, &mut seal)?;
        match u64::from_le_bytes(seal) == sum.finish() {
            true => Ok(()),
            false => Err(Error::corrupt("the seal", "another sum", "that of the header and the lists")),
        }
    }

    /// The bytes of a list of this dtype and shape.
    pub fn bytes(&self, name: &str, dtype: &str, shape: &[u64]) -> Result<Vec<u8>> {
        let place = self.header.place(name, dtype, shape)?;
        let [start, end] =
            self.header.tensors.iter().find(|(own, _)| own == name).map_or([0; 2], |of| of.1.data_offsets);
        let mut bytes = room((end - start) as usize)?;
        self.source.read(place, &mut bytes)?;
        Ok(bytes)
    }

    pub fn u32s(&self, name: &str, shape: &[u64]) -> Result<Vec<u32>> {
        let bytes = self.bytes(name, "U32", shape)?;
        Ok(bytes.as_chunks().0.iter().map(|four| u32::from_le_bytes(*four)).collect())
    }

    pub fn u64s(&self, name: &str, shape: &[u64]) -> Result<Vec<u64>> {
        let bytes = self.bytes(name, "U64", shape)?;
        Ok(bytes.as_chunks().0.iter().map(|eight| u64::from_le_bytes(*eight)).collect())
    }

    /// The sizes of a list whose first one the file says.
    pub fn first_size(&self, name: &str) -> Result<u64> {
        let shape = self.header.shape(name).and_then(|shape| shape.first().copied());
        shape.ok_or_else(|| Error::corrupt(format!("tensor {name:?}"), "missing", "a list"))
    }

    /// The place of the pages of a group, and their sums.
    pub fn pages(&self, group: usize, layout: &PageLayout, rows: u64) -> Result<(u64, Vec<u64>)> {
        let (dtype, row) = page_shape(layout);
        let place = self.header.place(&format!("pages.{group}"), dtype, &[&[rows][..], &row].concat())?;
        Ok((place, self.u64s(&format!("sums.{group}"), &[rows, layout.shape().num_layers.into()])?))
    }

    /// Reads pages of each group, from a row on, and compares their sums; writes them to new blocks, where there are some. Whatever was
    /// written before a refusal is nobody's.
    pub fn read(&self, groups: &[GroupRows<'_>], watch: &Watch) -> Result<()> {
        let mut pieces = Vec::new();
        for (group, of) in groups.iter().enumerate() {
            let (place, sums) = self.pages(group, &of.layout, of.rows)?;
            let at_once = (PIECE / of.layout.block_bytes().max(1)).max(1);
            let sums: Arc<[u64]> = sums.into();
            let neighbours = of.wanted.chunk_by(|row, next| row + 1 == *next);
            let mut first = 0;
            for rows in neighbours.flat_map(|rows| rows.chunks(at_once)) {
                let place = place + u64::from(rows[0]) * of.layout.block_bytes() as u64;
                pieces.push(Piece { group, first, row: rows[0] as usize, rows: rows.len(), place, sums: sums.clone() });
                first += rows.len() as u32;
            }
        }
        watch.begin(pieces.iter().map(|of| (of.rows * groups[of.group].layout.block_bytes()) as u64).sum());
        let (next, failed) = (AtomicU64::new(0), Mutex::new(None));
        let work = || {
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                if let Err(error) = self.read_piece(piece, &groups[piece.group], watch) {
                    next.store(pieces.len() as u64, Ordering::Relaxed);
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    return;
                }
            }
        };
        // Threads of their own: this waits for disks.
        let helpers = kvtide_tensor::threads()?.min(4).min(pieces.len()).saturating_sub(1);
        std::thread::scope(|scope| {
            for _ in 0..helpers {
                // One that cannot be started is not needed.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn read_piece(&self, piece: &Piece, of: &GroupRows<'_>, watch: &Watch) -> Result<()> {
        let (bytes, layers) = (of.layout.block_bytes(), of.layout.shape().num_layers as usize);
        let mut buffer = room(piece.rows * bytes)?;
        self.source.read(piece.place, &mut buffer)?;
        let sums = &piece.sums[piece.row * layers..];
        for (at, (page, sum)) in buffer.chunks_exact(of.layout.page_bytes()).zip(sums).enumerate() {
            if XxHash3_64::oneshot(page) != *sum {
                let (row, layer) = (piece.row + at / layers, at % layers);
                let what = format!("layer {layer} of block {row} of group {}", piece.group);
                return Err(Error::corrupt(what, "damaged", "bytes of its sum"));
            }
        }
        if let Some(writer) = of.writer {
            for (row, page) in (piece.first..).zip(buffer.chunks_exact(bytes)) {
                writer.write(row, page)?;
            }
        }
        watch.advance(buffer.len())
    }
}

/// The rows of a group that are read.
#[derive(Debug)]
pub(crate) struct GroupRows<'a> {
    pub layout: PageLayout,
    /// In the file.
    pub rows: u64,
    /// Which of them, ascending.
    pub wanted: Vec<u32>,
    /// Where they go, one behind the other.
    pub writer: Option<&'a PageWriter>,
}

/// Neighbouring rows that are read at a time.
struct Piece {
    group: usize,
    /// Which of those that are wanted is the first.
    first: u32,
    row: usize,
    rows: usize,
    place: u64,
    sums: Arc<[u64]>,
}

/// Zeroed memory, or a refusal.
pub(crate) fn room(bytes: usize) -> Result<Vec<u8>> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).map_err(|_| {
        let (requested_bytes, used_bytes) = (bytes as u64, 0);
        kvtide_tensor::Error::OutOfMemory { requested_bytes, used_bytes, limit_bytes: u64::MAX }
    })?;
    room.resize(bytes, 0);
    Ok(room)
}
