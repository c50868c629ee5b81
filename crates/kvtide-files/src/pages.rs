//! The body of a file: first pages, then the lists that describe them, and a checksum over those lists and the header.
//!
//! ```text
//! [ length, header ][ pages.0 ][ pages.1 ] ... [ lists: sums.0, tokens.0, ... ][ seal ]
//!                    `-- rows: one block each, all layers; a checksum for each page --'
//! ```
//!
//! Pages are written as they are read. The header is written last, into space reserved for it, so that blocks evicted
//! meanwhile can be left out. Checksums are XXH3 of 64 bits: they find damage, not forgery. O(bytes), one copy.

use std::hash::Hasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kvtide_core::paged::PageLayout;
use kvtide_tensor::DType;
use kvtide_tensor::pages::{PageReader, PageWriter};
use twox_hash::XxHash3_64;

use crate::container::Header;
use crate::error::{Error, Result};
use crate::identity::Identity;
use crate::sink::Sink;
use crate::source::Source;
use crate::watch::Watch;

/// The value of `format` in the metadata of every file.
pub(crate) const FORMAT: &str = "kvtide";

/// The version of the format: files of other versions are refused.
pub(crate) const VERSION: &str = "1";

/// The number of bytes to write or read at a time; one row if a row is longer.
const PIECE: usize = 1 << 20;

/// A list that follows the pages.
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

/// The rows of a tensor of pages: their shape, and the number of pages with a checksum in each.
#[derive(Clone, Debug)]
pub(crate) struct RowShape {
    pub name: String,
    pub dtype: &'static str,
    /// The shape of one row.
    pub row: Vec<u64>,
    /// The length of one row in bytes.
    pub bytes: usize,
    /// The number of pages in one row; they have the same size.
    pub pages: usize,
}

impl RowShape {
    /// Describes the blocks of a group of layers, with a page for each layer.
    pub fn of_group(group: usize, layout: &PageLayout) -> Self {
        let dtype = layout.uniform().and_then(DType::of_format).map_or("U8", dtype_name);
        let row = layout.slab_shape(1)[1..].iter().map(|&size| size as u64).collect();
        let (bytes, pages) = (layout.block_bytes(), layout.shape().num_layers as usize);
        RowShape { name: format!("pages.{group}"), dtype, row, bytes, pages }
    }

    fn page_bytes(&self) -> usize {
        self.bytes / self.pages
    }

    fn shape(&self, rows: u64) -> Vec<u64> {
        [&[rows][..], &self.row].concat()
    }
}

/// Returns the name of a dtype in safetensors.
pub(crate) fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::U8 => "U8",
    }
}

/// Rows to save. They can be read on any thread.
pub(crate) trait RowSource {
    fn rows(&self) -> u32;
    fn read_row(&self, row: u32, out: &mut [u8]) -> Result<()>;
}

/// A target for rows that are loaded. They can be written on any thread.
pub(crate) trait RowTarget: Sync {
    fn write_row(&self, row: u32, bytes: &[u8]) -> Result<()>;
}

impl RowSource for PageReader {
    fn rows(&self) -> u32 {
        PageReader::rows(self)
    }

    fn read_row(&self, row: u32, out: &mut [u8]) -> Result<()> {
        Ok(self.read(row, out)?)
    }
}

impl RowTarget for PageWriter {
    fn write_row(&self, row: u32, bytes: &[u8]) -> Result<()> {
        Ok(self.write(row, bytes)?)
    }
}

/// A file of pages that is being written.
#[derive(Debug)]
pub(crate) struct PageFile {
    sink: Sink,
    metadata: Vec<(String, String)>,
    shapes: Vec<RowShape>,
    /// The number of rows written in each group, and the checksums of their pages.
    rows: Vec<u64>,
    sums: Vec<Vec<u64>>,
    /// The number of bytes reserved for the header.
    header: usize,
}

impl PageFile {
    /// Begins a file with at most this many rows in each group; `lists` have the greatest shapes that the lists will
    /// have.
    pub fn begin(
        mut sink: Sink,
        [kind, content]: [&str; 2],
        identity: &str,
        groups: Vec<(RowShape, u64)>,
        lists: &[List],
    ) -> Result<Self> {
        let (shapes, rows) = groups.into_iter().unzip();
        let said = [("format", FORMAT), ("version", VERSION), ("kind", kind), ("identity", identity)];
        let made = ("writer", concat!("kvtide ", env!("CARGO_PKG_VERSION")));
        let metadata = said.into_iter().chain([("content", content), made]);
        let metadata = metadata.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut file = PageFile { sink: Sink::memory(), metadata, shapes, rows, sums: Vec::new(), header: 0 };
        let mut header = file.header_of(lists);
        header.encode(0)?;
        file.header = header.raw.len();
        // Until the header is written, its place has an impossible length, so an unfinished file is never valid.
        sink.write(&vec![0xff; file.header])?;
        file.sink = sink;
        Ok(file)
    }

    fn header_of(&self, lists: &[List]) -> Header {
        let mut header = Header { metadata: self.metadata.clone(), ..Header::default() };
        for (shape, rows) in self.shapes.iter().zip(&self.rows) {
            header.add(&*shape.name, shape.dtype, &shape.shape(*rows));
        }
        for (group, (shape, rows)) in self.shapes.iter().zip(&self.rows).enumerate() {
            header.add(format!("sums.{group}"), "U64", &[*rows, shape.pages as u64]);
        }
        lists.iter().for_each(|list| header.add(&*list.name, list.dtype, &list.shape));
        header.add("seal", "U64", &[1]);
        header
    }

    /// Writes all rows.
    pub fn write(&mut self, sources: &[&dyn RowSource], watch: &Watch) -> Result<()> {
        let all = sources.iter().zip(&self.shapes);
        watch.begin(all.map(|(source, shape)| u64::from(source.rows()) * shape.bytes as u64).sum());
        for (source, shape) in sources.iter().zip(&self.shapes) {
            let at_once = (PIECE / shape.bytes.max(1)).clamp(1, source.rows().max(1) as usize);
            let mut buffer = room(at_once * shape.bytes)?;
            let mut sums = Vec::new();
            let rows: Vec<u32> = (0..source.rows()).collect();
            for rows in rows.chunks(at_once) {
                let buffer = &mut buffer[..rows.len() * shape.bytes];
                for (&row, out) in rows.iter().zip(buffer.chunks_exact_mut(shape.bytes)) {
                    source.read_row(row, out)?;
                }
                sums.extend(buffer.chunks_exact(shape.page_bytes()).map(XxHash3_64::oneshot));
                self.sink.write(buffer)?;
                watch.advance(buffer.len())?;
            }
            self.sums.push(sums);
        }
        Ok(())
    }

    /// Leaves out rows that were written: the rows after them move up. O(bytes after the first of them).
    pub fn leave_out(&mut self, gone: &[Vec<u32>]) -> Result<()> {
        if gone.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let (mut from, mut to) = (self.header as u64, self.header as u64);
        for group in 0..self.rows.len() {
            let (layers, bytes) = (self.shapes[group].pages, self.shapes[group].bytes);
            let mut buffer = room(bytes)?;
            let (mut kept, mut next) = (Vec::new(), gone[group].iter().peekable());
            for row in 0..self.rows[group] {
                if next.next_if(|&&gone| u64::from(gone) == row).is_none() {
                    if from != to {
                        self.sink.go(from);
                        self.sink.read(&mut buffer)?;
                        self.sink.go(to);
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
        self.sink.go(to);
        Ok(())
    }

    /// Writes the lists, the seal and the header, and moves the file to its final path. Returns the length of the file,
    /// and the bytes if it is in memory.
    pub fn finish(mut self, lists: &[List]) -> Result<(u64, Vec<u8>)> {
        let mut header = self.header_of(lists);
        header.encode(self.header)?;
        if header.raw.len() != self.header {
            let found = format!("{} bytes long", header.raw.len());
            return Err(Error::corrupt("the header", found, format!("{} bytes", self.header)));
        }
        let mut sum = XxHash3_64::with_seed(0);
        sum.write(&header.raw);
        let pages = self.shapes.iter().zip(&self.rows).map(|(shape, rows)| shape.bytes as u64 * rows);
        let mut end = self.header as u64 + pages.sum::<u64>();
        let sums = self.sums.iter().map(|sums| sums.iter().flat_map(|sum| sum.to_le_bytes()).collect::<Vec<u8>>());
        for bytes in sums.chain(lists.iter().map(|list| list.bytes.clone())) {
            sum.write(&bytes);
            self.sink.write(&bytes)?;
            end += bytes.len() as u64;
        }
        self.sink.write(&sum.finish().to_le_bytes())?;
        self.sink.cut(end + 8)?;
        self.sink.go(0);
        self.sink.write(&header.raw)?;
        Ok((end + 8, self.sink.finish()?))
    }
}

/// A finished file of pages, with its header and seal checked.
#[derive(Debug)]
pub(crate) struct SealedFile {
    pub source: Source,
    pub header: Header,
}

impl SealedFile {
    /// Reads the header and the seal; pages are checked when they are read. `tensors` returns the names of the tensors
    /// of pages, which come first.
    pub fn open<T>(
        source: Source,
        kind: &str,
        tensors: impl FnOnce(&Header) -> Result<(T, Vec<String>)>,
    ) -> Result<(Self, T)> {
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
        let (said, tensors) = tensors(&header)?;
        let file = SealedFile { source, header };
        file.check_seal(&tensors)?;
        Ok((file, said))
    }

    /// Opens the file of a model's cache; returns it with its identity.
    pub fn of_model(source: Source, kind: &str) -> Result<(Self, Identity)> {
        SealedFile::open(source, kind, |header| {
            let (identity, layouts) = Identity::parse(header.text("identity")?)?;
            // The pages are those of the identity, so the identity limits the size that a file can claim for them.
            for (group, layout) in layouts.iter().enumerate() {
                let of = RowShape::of_group(group, layout);
                let rows = header.shape(&of.name).and_then(|shape| shape.first().copied()).unwrap_or(0);
                header.place(&of.name, of.dtype, &of.shape(rows))?;
            }
            let names = (0..identity.groups()).map(|group| format!("pages.{group}")).collect();
            Ok((identity, names))
        })
    }

    /// Compares the checksum over everything except pages.
    fn check_seal(&self, tensors: &[String]) -> Result<()> {
        for (at, expected) in tensors.iter().enumerate() {
            let name = self.header.tensors.get(at).map_or("none", |(name, _)| name);
            if name != expected {
                return Err(Error::corrupt("a tensor", name, expected));
            }
        }
        let place = self.header.place("seal", "U64", &[1])?;
        if place + 8 != self.source.len() {
            return Err(Error::corrupt("the seal", format!("at {place}"), "the last of the file"));
        }
        let mut sum = XxHash3_64::with_seed(0);
        sum.write(&self.header.raw);
        let behind = self.header.tensors.iter().skip(tensors.len());
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
            false => Err(Error::corrupt("the seal", "another sum", "the sum of the header and the lists")),
        }
    }

    /// Returns the bytes of a list of this dtype and shape.
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

    /// Returns the first size of a list.
    pub fn first_size(&self, name: &str) -> Result<u64> {
        let shape = self.header.shape(name).and_then(|shape| shape.first().copied());
        shape.ok_or_else(|| Error::corrupt(format!("tensor {name:?}"), "missing", "a list"))
    }

    /// Returns the place of the pages of a group, and their checksums.
    pub fn pages(&self, group: usize, shape: &RowShape, rows: u64) -> Result<(u64, Vec<u64>)> {
        let place = self.header.place(&shape.name, shape.dtype, &shape.shape(rows))?;
        Ok((place, self.u64s(&format!("sums.{group}"), &[rows, shape.pages as u64])?))
    }

    /// Reads the wanted pages of each group, compares their checksums, and writes them to new blocks if there are any.
    /// If a page is refused, the pages written before it are not used.
    pub fn read(&self, groups: &[GroupRows<'_>], watch: &Watch) -> Result<()> {
        let mut pieces = Vec::new();
        for (group, of) in groups.iter().enumerate() {
            let (place, sums) = self.pages(group, &of.shape, of.rows)?;
            let at_once = (PIECE / of.shape.bytes.max(1)).max(1);
            let sums: Arc<[u64]> = sums.into();
            let neighbours = of.wanted.chunk_by(|row, next| row + 1 == *next);
            let mut first = 0;
            for rows in neighbours.flat_map(|rows| rows.chunks(at_once)) {
                let place = place + u64::from(rows[0]) * of.shape.bytes as u64;
                pieces.push(Piece { group, first, row: rows[0] as usize, rows: rows.len(), place, sums: sums.clone() });
                first += rows.len() as u32;
            }
        }
        watch.begin(pieces.iter().map(|of| (of.rows * groups[of.group].shape.bytes) as u64).sum());
        let (next, failed) = (AtomicU64::new(0), Mutex::new(None));
        let work = || {
            // One buffer for all pieces of a thread, because touching new memory costs more than the copy.
            let mut buffer = Vec::new();
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                if let Err(error) = self.read_piece(piece, &groups[piece.group], &mut buffer, watch) {
                    next.store(pieces.len() as u64, Ordering::Relaxed);
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    return;
                }
            }
        };
        // These threads wait for disks, so they are not those that compute.
        let helpers = kvtide_tensor::runtime::threads()?.min(4).min(pieces.len()).saturating_sub(1);
        std::thread::scope(|scope| {
            for _ in 0..helpers {
                // A thread that cannot be started is not needed.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn read_piece(&self, piece: &Piece, of: &GroupRows<'_>, buffer: &mut Vec<u8>, watch: &Watch) -> Result<()> {
        let (bytes, layers) = (of.shape.bytes, of.shape.pages);
        let wanted = piece.rows * bytes;
        if buffer.len() < wanted {
            *buffer = room(wanted)?;
        }
        let buffer = &mut buffer[..wanted];
        self.source.read(piece.place, buffer)?;
        let sums = &piece.sums[piece.row * layers..];
        for (at, (page, sum)) in buffer.chunks_exact(of.shape.page_bytes()).zip(sums).enumerate() {
            if XxHash3_64::oneshot(page) != *sum {
                let (row, layer) = (piece.row + at / layers, at % layers);
                let what = format!("page {layer} of row {row} of {}", of.shape.name);
                return Err(Error::corrupt(what, "damaged", "bytes of its sum"));
            }
        }
        if let Some(writer) = of.writer {
            for (row, page) in (piece.first..).zip(buffer.chunks_exact(bytes)) {
                writer.write_row(row, page)?;
            }
        }
        watch.advance(buffer.len())
    }
}

/// The rows of a group to read.
pub(crate) struct GroupRows<'a> {
    pub shape: RowShape,
    /// The number of rows in the file.
    pub rows: u64,
    /// The rows to read, ascending.
    pub wanted: Vec<u32>,
    /// Their target, where they are written back to back.
    pub writer: Option<&'a dyn RowTarget>,
}

/// Neighbouring rows that are read together.
struct Piece {
    group: usize,
    /// The index of the first one among the wanted rows.
    first: u32,
    row: usize,
    rows: usize,
    place: u64,
    sums: Arc<[u64]>,
}

/// Allocates zeroed memory; refused if there is too little.
pub(crate) fn room(bytes: usize) -> Result<Vec<u8>> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).map_err(|_| {
        let (requested_bytes, used_bytes) = (bytes as u64, 0);
        kvtide_tensor::Error::OutOfMemory { requested_bytes, used_bytes, limit_bytes: u64::MAX }
    })?;
    room.resize(bytes, 0);
    Ok(room)
}
