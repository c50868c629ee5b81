//! One call as it was made, checked: nothing is read before everything is known to fit.

use candle_core::Tensor;

use super::job::{Job, Keys, Mask, Sequence, Sizes};
use super::kv_rows::{KvRows, ResolvedRows, check_offsets, key_positions};
use super::options::AttendOptions;
use super::strided::{Axes, Strided, check_rank, resolve};
use super::visible::{Family, KeyPositions};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernels::tile::TileKernels;
use crate::resolved::Resolved;
use crate::source::Source;

/// Nodes of a draft tree, at most.
const TREE_MAX: usize = 4096;

/// A checked call.
pub(super) struct Call<'a> {
    q: Resolved<'a>,
    rows: ResolvedRows<'a>,
    options: &'a AttendOptions<'a>,
    pub sizes: Sizes,
    sequences: Vec<Sequence>,
    positions: Option<Vec<i64>>,
    tree: Option<Family>,
    mask_strides: [usize; 4],
}

impl<'a> Call<'a> {
    pub fn new(q: &Source<'a>, kv: &KvRows<'a>, options: &'a AttendOptions<'a>) -> Result<Self> {
        let rows = ResolvedRows::new(kv)?;
        let ragged = matches!(kv, KvRows::Ragged { .. });
        let axes = if ragged { Axes::RAGGED } else { Axes::BATCHED };
        let q = resolve(q, "q", axes)?;
        let sizes = sizes(&q, &rows, ragged)?;
        let sequences = match kv {
            KvRows::Batched { .. } => batch(&q, &rows, kv, options)?,
            KvRows::Ragged { offsets, .. } => ragged_sequences(&q, &rows, offsets, options)?,
        };
        let mut call = Call { q, rows, options, sizes, sequences, positions: None, tree: None, mask_strides: [0; 4] };
        call.check_numbers()?;
        call.positions = call.checked_positions()?;
        call.tree = call.checked_tree()?;
        call.mask_strides = call.checked_mask()?;
        Ok(call)
    }

    /// The candle tensors that it reads: queries, keys, values.
    pub fn tensors(&self) -> [Option<&'a Tensor>; 3] {
        [self.q.tensor(), self.rows.k.tensor(), self.rows.v.tensor()]
    }

    /// The shape of its output.
    pub fn out_shape(&self) -> Vec<usize> {
        let mut shape = self.q.dims.to_vec();
        if let Some(last) = shape.last_mut() {
            *last = self.sizes.value_dim;
        }
        shape
    }

    /// The dtype of its output.
    pub fn dtype(&self) -> DType {
        self.q.dtype
    }

    /// Queries of all sequences, times their heads.
    pub fn rows_out(&self) -> usize {
        self.sequences.iter().map(|of| of.queries).sum::<usize>() * self.sizes.query_heads
    }

    /// The job, its memory at hand.
    pub fn job<'b>(&'b self, kernels: &'static TileKernels, memory: &[&'b [u8]]) -> Result<Job<'b>> {
        let mut memory = memory.iter().copied();
        let axes = self.rows.axes;
        let queries = Strided::new(&self.q, axes, self.q.bytes(&mut memory))?;
        let k = Strided::new(&self.rows.k, axes, self.rows.k.bytes(&mut memory))?;
        let v = Strided::new(&self.rows.v, axes, self.rows.v.bytes(&mut memory))?;
        let options = self.options;
        let scale = options.scale.unwrap_or_else(|| 1.0 / (self.sizes.dim as f32).sqrt());
        Ok(Job {
            kernels,
            sizes: self.sizes,
            sequences: self.sequences.clone(),
            queries,
            keys: Keys::Strided { k, v },
            causal: options.causal,
            window: options.window.map(i64::from),
            sinks: options.sinks.into(),
            tree: self.tree.clone(),
            mask: options.mask.as_ref().map(|mask| Mask { bytes: mask.bytes(), strides: self.mask_strides }),
            positions: self.positions.clone(),
            sink_logits: options.sink_logits,
            scale: if options.softcap.is_some() { scale } else { scale * std::f32::consts::LOG2_E },
            softcap: options.softcap,
            stop: options.stop,
        })
    }

    fn check_numbers(&self) -> Result<()> {
        let AttendOptions { scale, window, sinks, sink_logits, softcap, starts, threads, .. } = self.options;
        if scale.is_some_and(|scale| !scale.is_finite()) {
            return Err(Error::argument("scale", f64::from(scale.unwrap_or(0.0)), "a finite number"));
        }
        if *window == Some(0) {
            return Err(Error::argument("window", 0u32, "at least 1"));
        }
        if softcap.is_some_and(|cap| !cap.is_finite() || cap <= 0.0) {
            return Err(Error::argument("softcap", f64::from(softcap.unwrap_or(0.0)), "a finite number over 0"));
        }
        if *sinks > 0 && starts.is_some() {
            return Err(Error::argument("sinks", *sinks, "0 with starts: padding would stand where sinks do"));
        }
        if *threads == Some(0) {
            return Err(Error::argument("threads", 0u32, "at least 1"));
        }
        let heads = self.sizes.query_heads;
        match sink_logits {
            Some(logits) if logits.len() != heads => {
                let expected = format!("{heads}, one for each query head");
                Err(Error::ShapeMismatch { argument: "sinkLogits", value: vec![logits.len()], expected })
            }
            _ => Ok(()),
        }
    }

    fn checked_positions(&self) -> Result<Option<Vec<i64>>> {
        let Some(positions) = self.options.positions else { return Ok(None) };
        self.check_per_query("positions", positions.len())?;
        if let Some(&wrong) = positions.iter().find(|&&position| position < 0) {
            return Err(Error::argument("positions", wrong, "positions from 0 on"));
        }
        Ok(Some(positions.iter().copied().map(i64::from).collect()))
    }

    /// Refuses a list that is neither one for each query nor one for each query of every sequence alike.
    fn check_per_query(&self, argument: &'static str, len: usize) -> Result<()> {
        let each = self.sequences.first().map_or(0, |of| of.queries);
        let shared = self.sequences.iter().all(|of| of.queries == each);
        let all: usize = self.sequences.iter().map(|of| of.queries).sum();
        if len == all || (shared && len == each) {
            return Ok(());
        }
        let expected = format!("{all}, one for each query");
        Err(Error::ShapeMismatch { argument, value: vec![len], expected })
    }

    fn checked_tree(&self) -> Result<Option<Family>> {
        let Some(parents) = self.options.tree else { return Ok(None) };
        let fits = |of: &Sequence| of.queries == parents.len() && of.queries <= of.keys.len();
        if parents.len() > TREE_MAX || !self.sequences.iter().all(fits) {
            let expected = format!("a parent for each query, at most {TREE_MAX}, their keys the last ones");
            return Err(Error::ShapeMismatch { argument: "tree", value: vec![parents.len()], expected });
        }
        let depths = kvtide_core::Tree::new(parents)?.depths();
        Ok(Some(Family::new(parents, depths)))
    }

    /// The mask's strides in bytes, 0 where it is broadcast.
    fn checked_mask(&self) -> Result<[usize; 4]> {
        let Some(mask) = &self.options.mask else { return Ok([0; 4]) };
        if mask.dtype() != DType::F32 {
            let (value, expected) = (mask.dtype().to_string(), "f32".to_owned());
            return Err(Error::DtypeMismatch { argument: "mask", value, expected });
        }
        let first = self.sequences.first().map_or((0, 0), |of| (of.queries, of.keys.len()));
        let alike = self.sequences.iter().all(|of| (of.queries, of.keys.len()) == first);
        let full = [self.sequences.len(), self.sizes.query_heads, first.0, first.1];
        let (dims, strides) = (mask.dims(), mask.byte_strides());
        let missing = 4usize.checked_sub(dims.len());
        let broadcasts = missing
            .is_some_and(|missing| dims.iter().zip(&full[missing..]).all(|(&size, &whole)| size == whole || size == 1));
        let (Some(missing), true, true, None) = (missing, broadcasts, alike, mask.range()) else {
            let expected = match alike {
                true => format!("a shape that broadcasts to {full:?}"),
                false => "no mask for sequences of unequal length".to_owned(),
            };
            return Err(Error::ShapeMismatch { argument: "mask", value: dims.to_vec(), expected });
        };
        let mut out = [0; 4];
        for axis in 0..dims.len() {
            out[missing + axis] = if dims[axis] == 1 { 0 } else { strides[axis] };
        }
        Ok(out)
    }
}

fn sizes(q: &Resolved<'_>, rows: &ResolvedRows<'_>, ragged: bool) -> Result<Sizes> {
    let axes = rows.axes;
    check_rank("q", &q.dims, axes)?;
    let last = axes.rank - 1;
    let (query_heads, kv_heads) = (q.dims[axes.heads], rows.heads());
    let wrong = |expected: String| Err(Error::ShapeMismatch { argument: "q", value: q.dims.to_vec(), expected });
    if kv_heads == 0 || query_heads == 0 || query_heads % kv_heads != 0 {
        return wrong(format!("a multiple of the {kv_heads} heads of k, at least one"));
    }
    if q.dims[last] != rows.k.dims[last] || q.dims[last] == 0 {
        return wrong(format!("a head dim of {} as k, at least 1", rows.k.dims[last]));
    }
    if !ragged && q.dims[0] != rows.k.dims[0] {
        return wrong(format!("a batch of {} as k", rows.k.dims[0]));
    }
    Ok(Sizes { query_heads, kv_heads, dim: q.dims[last], value_dim: rows.v.dims[last], ragged })
}

fn batch(
    q: &Resolved<'_>,
    rows: &ResolvedRows<'_>,
    kv: &KvRows<'_>,
    options: &AttendOptions<'_>,
) -> Result<Vec<Sequence>> {
    if options.query_offsets.is_some() {
        return Err(Error::argument("qOffsets", "offsets", "none where every sequence has as many queries and keys"));
    }
    let (batch, queries) = (q.dims[0], q.dims[2]);
    let keys = key_positions(kv, rows.k.dims[2]);
    let starts = checked_starts(options, batch)?;
    let of = |row: usize| Sequence { first_query: row * queries, queries, first_key: 0, keys, start: starts(row) };
    Ok((0..batch).map(of).collect())
}

fn ragged_sequences(
    q: &Resolved<'_>,
    rows: &ResolvedRows<'_>,
    key_offsets: &[i32],
    options: &AttendOptions<'_>,
) -> Result<Vec<Sequence>> {
    check_offsets("kvOffsets", key_offsets, rows.k.dims[0])?;
    let count = key_offsets.len() - 1;
    let query_offsets = checked_query_offsets(options, count, q.dims[0])?;
    let starts = checked_starts(options, count)?;
    let sequence = |index: usize| {
        let (keys, queries) = (&key_offsets[index..=index + 1], &query_offsets[index..=index + 1]);
        Sequence {
            first_query: queries[0] as usize,
            queries: (queries[1] - queries[0]) as usize,
            first_key: keys[0] as usize,
            keys: KeyPositions::from_zero((keys[1] - keys[0]) as usize),
            start: starts(index),
        }
    };
    Ok((0..count).map(sequence).collect())
}

/// The offsets of the queries: those given, else one query for each sequence.
pub(super) fn checked_query_offsets(options: &AttendOptions<'_>, sequences: usize, tokens: usize) -> Result<Vec<i32>> {
    let Some(offsets) = options.query_offsets else {
        if tokens == sequences {
            return Ok((0..=sequences as i32).collect());
        }
        let expected =
            format!("offsets of the {tokens} queries, where there is not one for each of {sequences} sequences");
        return Err(Error::argument("qOffsets", "none", expected));
    };
    if offsets.len() != sequences + 1 {
        let expected = format!("{}, one more than sequences", sequences + 1);
        return Err(Error::ShapeMismatch { argument: "qOffsets", value: vec![offsets.len()], expected });
    }
    check_offsets("qOffsets", offsets, tokens)?;
    Ok(offsets.to_vec())
}

/// The first position that is no padding, for each sequence.
fn checked_starts<'a>(options: &AttendOptions<'a>, sequences: usize) -> Result<impl Fn(usize) -> i64 + use<'a>> {
    if let Some(starts) = options.starts {
        if starts.len() != sequences {
            let expected = format!("{sequences}, one for each row of the batch");
            return Err(Error::ShapeMismatch { argument: "starts", value: vec![starts.len()], expected });
        }
        if let Some(&wrong) = starts.iter().find(|&&start| start < 0) {
            return Err(Error::argument("starts", wrong, "slots from 0 on"));
        }
    }
    let starts = options.starts;
    Ok(move |row: usize| starts.map_or(0, |starts| i64::from(starts[row])))
}
