//! The files of caches of one layer: their tensors, oldest token first, and their state.
//!
//! ```text
//! k, v     [batch, kvHeads, tokens, headDim]     of a KvCache, a RotatingKvCache, a RollbackCache
//! data     any shape                             of a RotatingCache
//! ```
//!
//! The tensors are copied when the save begins, so that the cache goes on; an empty cache has none. O(bytes).

use std::sync::{Arc, Mutex, PoisonError};

use kvtide_tensor::runtime::{Budget, device};
use kvtide_tensor::{
    DType, HostTensor, KvCache, KvCacheOptions, RollbackCache, RollbackCacheOptions, Rotating, RotatingCacheOptions,
    View,
};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::pages::{GroupRows, RowShape, RowSource, RowTarget, SealedFile, dtype_name, room};
use crate::source::Source;
use crate::watch::Watch;

/// The identity: the byte order of the tensors.
pub(crate) const IDENTITY: &str =
    if cfg!(target_endian = "little") { r#"{"byteOrder":"little"}"# } else { r#"{"byteOrder":"big"}"# };

const KV: &str = "kv";
const ROTATING: [&str; 2] = ["rotating", "rotating-kv"];
const ROLLBACK: &str = "rollback";

/// The options and state of a growing cache.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KvContent {
    batch_size: u32,
    num_kv_heads: u32,
    head_dim: u32,
    dtype: String,
    max_seq_len: u32,
    capacity: u32,
    seq_len: u32,
}

/// The options and state of a rotating cache.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RotatingContent {
    dim: usize,
    max_seq_len: u32,
    sinks: u32,
    slack: Option<u32>,
    capacity_seq_len: u32,
    current_seq_len: u64,
}

/// The options and state of a cache with tentative tokens.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RollbackContent {
    committed_len: u32,
    /// The parents of the tentative tokens.
    parents: Vec<i32>,
}

/// Tensors that are being saved.
#[derive(Debug)]
pub(crate) struct SavedTensors {
    pub kind: &'static str,
    pub parts: Vec<Part>,
}

/// One tensor, with its rows along the first dimension.
#[derive(Debug)]
pub(crate) struct Part {
    pub shape: RowShape,
    bytes: Vec<u8>,
}

impl Part {
    fn new(name: &str, view: &View) -> Result<Self> {
        let sizes: Vec<u64> = view.shape().iter().map(|&size| size as u64).collect();
        let bytes = view.to_bytes()?;
        let rows = sizes[0].max(1) as usize;
        let dtype = dtype_name(view.dtype());
        let shape =
            RowShape { name: name.to_owned(), dtype, row: sizes[1..].to_vec(), bytes: bytes.len() / rows, pages: 1 };
        Ok(Part { shape, bytes })
    }

    /// Returns K and V; no tensors if the cache is empty.
    fn pair(k: &View, v: &View) -> Result<Vec<Part>> {
        let parts = vec![Part::new("k", k)?, Part::new("v", v)?];
        Ok(if parts.iter().all(|part| part.bytes.is_empty()) { Vec::new() } else { parts })
    }
}

impl RowSource for Part {
    fn rows(&self) -> u32 {
        (self.bytes.len() / self.shape.bytes) as u32
    }

    fn read_row(&self, row: u32, out: &mut [u8]) -> Result<()> {
        out.copy_from_slice(&self.bytes[row as usize * self.shape.bytes..][..self.shape.bytes]);
        Ok(())
    }
}

fn text(content: &impl Serialize) -> String {
    serde_json::to_string(content).expect("numbers and text are JSON")
}

pub(crate) fn of_kv_cache(cache: &KvCache) -> Result<(SavedTensors, String)> {
    cache.check_undrafted()?;
    let [batch_size, num_kv_heads, head_dim] = cache.sizes();
    let content = KvContent {
        batch_size,
        num_kv_heads,
        head_dim,
        dtype: cache.dtype().to_string(),
        max_seq_len: cache.max_seq_len(),
        capacity: cache.capacity(),
        seq_len: cache.seq_len(),
    };
    let parts = if cache.is_empty() {
        Vec::new()
    } else {
        let kv = cache.get_kv()?;
        Part::pair(&kv.k, &kv.v)?
    };
    Ok((SavedTensors { kind: KV, parts }, text(&content)))
}

pub(crate) fn of_rotating<const PARTS: usize>(cache: &Rotating<PARTS>) -> Result<(SavedTensors, String)> {
    cache.check_undrafted()?;
    let content = RotatingContent {
        dim: cache.dim(),
        max_seq_len: cache.max_seq_len(),
        sinks: cache.sinks(),
        slack: cache.slack(),
        capacity_seq_len: cache.capacity_seq_len(),
        current_seq_len: cache.current_seq_len(),
    };
    let parts = match cache.retained()? {
        None => Vec::new(),
        Some(views) if PARTS == 2 => Part::pair(&views[0], &views[1])?,
        Some(views) => vec![Part::new("data", &views[0])?].into_iter().filter(|part| !part.bytes.is_empty()).collect(),
    };
    Ok((SavedTensors { kind: ROTATING[PARTS - 1], parts }, text(&content)))
}

pub(crate) fn of_rollback_cache(cache: &RollbackCache) -> Result<(SavedTensors, String)> {
    cache.check_undrafted()?;
    let content = RollbackContent { committed_len: cache.committed_len(), parents: cache.tree().parents().to_vec() };
    let parts = match cache.current()? {
        Some(kv) => Part::pair(&kv.k, &kv.v)?,
        None => Vec::new(),
    };
    Ok((SavedTensors { kind: ROLLBACK, parts }, text(&content)))
}

/// The device and the memory of a cache of one layer that is loaded.
#[derive(Clone, Debug)]
pub struct Place {
    /// The name of the device.
    pub device: String,
    /// The memory limit in bytes.
    pub memory_limit_bytes: Option<u64>,
    /// The budget for its memory.
    pub budget: Option<Arc<Budget>>,
}

impl Default for Place {
    fn default() -> Self {
        Place { device: "cpu".to_owned(), memory_limit_bytes: None, budget: None }
    }
}

/// The file of a cache of one layer, read and verified as a whole.
#[derive(Debug)]
pub struct TensorFile {
    content: String,
    kind: &'static str,
    parts: Vec<Loaded>,
}

/// One tensor of the file.
#[derive(Debug)]
struct Loaded {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// Rows that are gathered back to back.
struct Gathered {
    bytes: Mutex<Vec<u8>>,
    row: usize,
}

impl RowTarget for Gathered {
    fn write_row(&self, row: u32, bytes: &[u8]) -> Result<()> {
        let mut all = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        all[row as usize * self.row..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

impl TensorFile {
    /// Reads a file of a `KvCache`.
    pub fn kv_cache(source: Source, watch: &Watch) -> Result<Self> {
        TensorFile::read(source, KV, &["k", "v"], watch)
    }

    /// Reads a file of a rotating cache with this many tensors: 1, or 2 for K and V.
    pub fn rotating(source: Source, parts: usize, watch: &Watch) -> Result<Self> {
        let names: &[&str] = if parts == 2 { &["k", "v"] } else { &["data"] };
        TensorFile::read(source, ROTATING[parts.clamp(1, 2) - 1], names, watch)
    }

    /// Reads a file of a `RollbackCache`.
    pub fn rollback_cache(source: Source, watch: &Watch) -> Result<Self> {
        TensorFile::read(source, ROLLBACK, &["k", "v"], watch)
    }

    fn read(source: Source, kind: &'static str, names: &[&str], watch: &Watch) -> Result<Self> {
        let (file, names) = SealedFile::open(source, kind, |header| {
            let identity = header.text("identity")?;
            if identity != IDENTITY {
                return Err(Error::incompatible("byteOrder", identity, IDENTITY));
            }
            // An empty cache has no tensors.
            let there = names.iter().any(|name| header.shape(name).is_some());
            let names: Vec<String> = names.iter().filter(|_| there).map(ToString::to_string).collect();
            Ok((names.clone(), names))
        })?;
        let content = file.header.text("content")?.to_owned();
        let mut parts = Vec::new();
        let shapes = names.iter().map(|name| tensor_shape(&file, name)).collect::<Result<Vec<_>>>()?;
        let targets = shapes.iter().map(|(_, shape, _)| {
            let bytes = room(shape.bytes * shape.rows())?;
            Ok(Gathered { bytes: Mutex::new(bytes), row: shape.bytes })
        });
        let targets = targets.collect::<Result<Vec<_>>>()?;
        let rows = shapes.iter().zip(&targets).map(|((_, shape, _), target)| GroupRows {
            rows: shape.rows() as u64,
            wanted: (0..shape.rows() as u32).collect(),
            shape: shape.of.clone(),
            writer: Some(target as &dyn RowTarget),
        });
        file.read(&rows.collect::<Vec<_>>(), watch)?;
        for ((dtype, _, sizes), target) in shapes.into_iter().zip(targets) {
            let bytes = target.bytes.into_inner().unwrap_or_else(PoisonError::into_inner);
            parts.push(Loaded { dtype, shape: sizes, bytes });
        }
        Ok(TensorFile { content, kind, parts })
    }

    /// Returns the options and state of the cache, as JSON.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.content
    }

    fn content<'a, T: Deserialize<'a>>(&'a self, kinds: &[&str]) -> Result<T> {
        if !kinds.contains(&self.kind) {
            return Err(Error::incompatible("kind", self.kind, kinds.join(" or ")));
        }
        serde_json::from_str(&self.content)
            .map_err(|error| Error::corrupt("the content", format!("other text: {error}"), format!("of {}", self.kind)))
    }

    fn tensor(&self, part: usize) -> Result<HostTensor<'_>> {
        let Loaded { dtype, shape, bytes } = &self.parts[part];
        HostTensor::new(["k", "v"][part], bytes, *dtype, shape).map_err(Error::of_content)
    }

    /// Creates the growing cache that was saved.
    pub fn to_kv_cache(&self, place: Place) -> Result<KvCache> {
        let of: KvContent = self.content(&[KV])?;
        if let Some(Loaded { shape, .. }) = self.parts.first() {
            let sizes = [of.batch_size, of.num_kv_heads, of.seq_len, of.head_dim].map(|size| size as usize);
            agree("batchSize, numKvHeads, seqLen, headDim", format!("{sizes:?}"), format!("{shape:?}"))?;
        }
        let mut cache = KvCache::new(KvCacheOptions {
            batch_size: of.batch_size,
            num_kv_heads: of.num_kv_heads,
            head_dim: of.head_dim,
            dtype: of.dtype.parse().map_err(|names| Error::corrupt("dtype", &of.dtype, names))?,
            max_seq_len: of.max_seq_len,
            initial_capacity: of.capacity.min(of.max_seq_len),
            device: device(&place.device)?,
            memory_limit_bytes: place.memory_limit_bytes,
            budget: place.budget,
            ..KvCacheOptions::default()
        })
        .map_err(Error::of_content)?;
        if !self.parts.is_empty() {
            cache.update(self.tensor(0)?, self.tensor(1)?).map_err(Error::of_content)?;
        }
        agree("seqLen", cache.seq_len(), of.seq_len)?;
        Ok(cache)
    }

    /// Creates the rotating cache that was saved.
    pub fn to_rotating<const PARTS: usize>(&self, place: Place) -> Result<Rotating<PARTS>> {
        let of: RotatingContent = self.content(&[ROTATING[PARTS - 1]])?;
        let options = RotatingCacheOptions {
            dim: of.dim,
            max_seq_len: of.max_seq_len,
            sinks: of.sinks,
            slack: of.slack,
            capacity_seq_len: Some(of.capacity_seq_len),
            device: device(&place.device)?,
            memory_limit_bytes: place.memory_limit_bytes,
            budget: place.budget,
        };
        let sources = (0..self.parts.len()).map(|part| Ok(self.tensor(part)?.into())).collect::<Result<Vec<_>>>()?;
        Rotating::resumed(options, &sources, of.current_seq_len).map_err(Error::of_content)
    }

    /// Creates the cache with tentative tokens that was saved.
    pub fn to_rollback_cache(&self, place: Place) -> Result<RollbackCache> {
        let of: RollbackContent = self.content(&[ROLLBACK])?;
        let mut cache = RollbackCache::new(RollbackCacheOptions {
            device: device(&place.device)?,
            memory_limit_bytes: place.memory_limit_bytes,
            budget: place.budget,
        })?;
        if self.parts.is_empty() {
            agree("committedLen", of.committed_len, 0)?;
            return Ok(cache);
        }
        let tokens = self.parts[0].shape.get(2).copied().unwrap_or(0);
        agree("parents", of.parents.len() as u64 + u64::from(of.committed_len), tokens as u64)?;
        cache.resume(self.tensor(0)?, self.tensor(1)?, of.committed_len, &of.parents).map_err(Error::of_content)?;
        Ok(cache)
    }
}

fn agree<T: PartialEq + ToString>(what: &str, found: T, expected: T) -> Result<()> {
    if found == expected { Ok(()) } else { Err(Error::corrupt(what, found, expected)) }
}

/// The rows of a tensor.
struct Sized {
    of: RowShape,
    bytes: usize,
    rows: u64,
}

impl Sized {
    fn rows(&self) -> usize {
        self.rows as usize
    }
}

/// Returns the dtype, the row and the shape of a tensor whose bytes are in the file.
fn tensor_shape(file: &SealedFile, name: &str) -> Result<(DType, Sized, Vec<usize>)> {
    let found = file.header.tensors.iter().find(|(own, _)| own == name);
    let (_, info) = found.ok_or_else(|| Error::corrupt(format!("tensor {name:?}"), "missing", "a tensor"))?;
    let all = [DType::F32, DType::F16, DType::BF16, DType::U8];
    let dtype = all.into_iter().find(|dtype| dtype_name(*dtype) == info.dtype);
    let is_empty = info.shape.contains(&0);
    let (Some(dtype), Some((&rows, row)), false) = (dtype, info.shape.split_first(), is_empty) else {
        let found = format!("{} {:?}", info.dtype, info.shape);
        return Err(Error::corrupt(format!("tensor {name:?}"), found, "numbers of a cache"));
    };
    if rows > u64::from(u32::MAX) {
        return Err(Error::corrupt(format!("tensor {name:?}"), format!("{rows} rows"), "fewer than 2^32"));
    }
    // The sizes in the header were checked against the length of the file.
    let bytes = ((info.data_offsets[1] - info.data_offsets[0]) / rows) as usize;
    let sizes = info.shape.iter().map(|&size| size as usize).collect();
    let of = RowShape { name: name.to_owned(), dtype: dtype_name(dtype), row: row.to_vec(), bytes, pages: 1 };
    Ok((dtype, Sized { of, bytes, rows }, sizes))
}
