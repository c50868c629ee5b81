//! The checks of a call: nothing is read before everything is known to fit.
//!
//! ```text
//! options, kv_rows    the caller's arguments; checks their sizes, and that a window still has the keys that queries attend to
//! asked               the checked arguments: sizes, sequences, and the keys that a query attends to
//! ```

pub(super) mod asked;
pub(super) mod kv_rows;
pub(super) mod options;

use candle_core::{Device, Tensor};
use kvtide_core::paged::NO_BLOCK;
use kvtide_cuda::AttendSizes;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::device::device_name;
use crate::paged::PageRows;
use crate::tensor::source::{Resolved, Source};
use asked::{Asked, Axes, CallSequence, KeyPositions};
use kv_rows::{KvRows, ResolvedRows, check_kept, check_offsets, key_positions, resolve};
use options::{AttendOptions, check};

/// A checked call.
pub(in crate::attention) struct Call<'a> {
    q: Resolved<'a>,
    rows: ResolvedRows<'a>,
    pub asked: Asked<'a>,
}

impl<'a> Call<'a> {
    pub fn new(q: &Source<'a>, kv: &KvRows<'a>, options: &AttendOptions<'a>) -> Result<Self> {
        let options = &options.in_window(kv);
        let rows = ResolvedRows::new(kv)?;
        let q = resolve(q, "q", rows.axes())?;
        let sizes = sizes(&q, &rows)?;
        let sequences = match kv {
            KvRows::Batched { k, .. } => batch(&q, key_positions(k, rows.tokens()), options)?,
            KvRows::Ragged { offsets, .. } => {
                check_offsets("kvOffsets", offsets, rows.tokens())?;
                let keys = |index: usize| {
                    let tokens = (offsets[index + 1] - offsets[index]) as usize;
                    (offsets[index] as usize, KeyPositions::from_zero(tokens))
                };
                ragged(&q, offsets.len() - 1, keys, options)?
            }
            KvRows::Pages(pages) => ragged(&q, pages.count(), |index| (0, page_positions(pages, index)), options)?,
        };
        let own: Vec<_> = match kv {
            KvRows::Pages(pages) => (0..pages.count()).map(|index| pages.tree(index)).collect(),
            _ => Vec::new(),
        };
        let asked = check(options, sizes, sequences, &own)?;
        if let KvRows::Pages(pages) = kv {
            check_last_blocks(pages, &asked)?;
        }
        check_kept(kv, &asked)?;
        options.check_nodes(kv)?;
        Ok(Call { asked, q, rows })
    }

    /// The candle tensors that it reads: queries, keys, values.
    pub fn tensors(&self) -> [Option<&Tensor>; 3] {
        let [k, v] = self.rows.tensors();
        [self.q.tensor(), k, v]
    }

    /// The queries.
    pub fn queries(&self) -> &Resolved<'a> {
        &self.q
    }

    /// The keys and values.
    pub fn rows(&self) -> &ResolvedRows<'a> {
        &self.rows
    }

    /// The device that it runs on: that of keys and values, or else of the queries.
    pub fn device(&self) -> &Device {
        let [q, k, v] = self.tensors();
        [k, v, q].iter().flatten().next().map_or(&Device::Cpu, |tensor| tensor.device())
    }

    /// Fails if a tensor is on another device.
    pub fn check_devices(&self) -> Result<()> {
        for (argument, tensor) in ["q", "k", "v"].into_iter().zip(self.tensors()) {
            if let Some(tensor) = tensor.filter(|tensor| !tensor.device().same_device(self.device())) {
                let (value, expected) = (device_name(tensor.device()), device_name(self.device()));
                return Err(Error::DeviceMismatch { argument, value, expected });
            }
        }
        Ok(())
    }

    /// The shape of its output.
    pub fn out_shape(&self) -> Vec<usize> {
        let mut shape = self.q.dims.to_vec();
        if let Some(last) = shape.last_mut() {
            *last = self.asked.sizes.value_dim;
        }
        shape
    }

    /// The dtype of its output.
    pub fn dtype(&self) -> DType {
        self.q.dtype
    }

    /// The number of queries of all sequences, times their heads.
    pub fn rows_out(&self) -> usize {
        self.asked.queries() * self.asked.sizes.query_heads
    }
}

fn sizes(q: &Resolved<'_>, rows: &ResolvedRows<'_>) -> Result<AttendSizes> {
    let axes = rows.axes();
    let (last, [dim, value_dim]) = (axes.rank - 1, rows.head_dims());
    let (query_heads, kv_heads) = (q.dims[axes.heads], rows.heads());
    let wrong = |expected: String| Err(Error::ShapeMismatch { argument: "q", value: q.dims.to_vec(), expected });
    if kv_heads == 0 || query_heads == 0 || query_heads % kv_heads != 0 {
        return wrong(format!("{}, with at least one head and a multiple of the {kv_heads} heads of k", axes.names()));
    }
    if q.dims[last] != dim || dim == 0 {
        return wrong(format!("a head dim of {dim}, as k has, and at least 1"));
    }
    if let ResolvedRows::Strided { k, .. } = rows
        && axes.rank == Axes::BATCHED.rank
        && q.dims[0] != k.dims[0]
    {
        return wrong(format!("a batch of {}, as k has", k.dims[0]));
    }
    Ok(AttendSizes { query_heads, kv_heads, dim, value_dim, is_ragged: axes.are_ragged() })
}

fn batch(q: &Resolved<'_>, keys: KeyPositions, options: &AttendOptions<'_>) -> Result<Vec<CallSequence>> {
    if options.query_offsets.is_some() {
        return Err(Error::argument("qOffsets", "offsets", "none if all sequences have equally many queries and keys"));
    }
    let (batch, queries) = (q.dims[0], q.dims[Axes::BATCHED.tokens]);
    let starts = checked_starts(options, batch)?;
    let of = |row: usize| CallSequence { first_query: row * queries, queries, first_key: 0, keys, start: starts(row) };
    Ok((0..batch).map(of).collect())
}

/// The positions of the keys of a sequence in pages; with a gap if tokens have left its window.
fn page_positions(pages: &PageRows<'_>, sequence: usize) -> KeyPositions {
    let (tokens, gap) = (pages.tokens(sequence), pages.gap(sequence));
    match gap.is_empty() {
        true => KeyPositions::from_zero(tokens),
        false => KeyPositions::new([(0, gap.start as usize), (gap.end.into(), tokens - gap.start as usize)]),
    }
}

/// Fails if a row of a block table has no block for its last tokens and one of its queries is not before those tokens.
fn check_last_blocks(pages: &PageRows<'_>, asked: &Asked<'_>) -> Result<()> {
    let sees = |(index, of): (usize, &CallSequence)| {
        let gap = pages.gap(index);
        let reaches_end = !gap.is_empty() && i64::from(gap.end) == of.keys.end();
        let stands_there = |query| !asked.rules.is_causal || asked.position(index, query) >= i64::from(gap.start);
        reaches_end && (0..of.queries).any(stands_there)
    };
    match pages.are_of_tables() && asked.sequences.iter().enumerate().any(sees) {
        true => Err(kvtide_core::Error::InvalidBlock {
            block: NO_BLOCK.into(),
            reason: "a query attends to a token of this block",
        }
        .into()),
        false => Ok(()),
    }
}

/// Sequences of different lengths; `keys` returns the index of the first key of each, and the positions of its keys.
fn ragged(
    q: &Resolved<'_>,
    count: usize,
    keys: impl Fn(usize) -> (usize, KeyPositions),
    options: &AttendOptions<'_>,
) -> Result<Vec<CallSequence>> {
    let query_offsets = checked_query_offsets(options, count, q.dims[0])?;
    let starts = checked_starts(options, count)?;
    let sequence = |index: usize| {
        let (queries, (first_key, keys)) = (&query_offsets[index..=index + 1], keys(index));
        CallSequence {
            first_query: queries[0] as usize,
            queries: (queries[1] - queries[0]) as usize,
            first_key,
            keys,
            start: starts(index),
        }
    };
    Ok((0..count).map(sequence).collect())
}

/// The offsets of the queries: the given ones, or else one query per sequence.
fn checked_query_offsets(options: &AttendOptions<'_>, sequences: usize, tokens: usize) -> Result<Vec<i32>> {
    let Some(offsets) = options.query_offsets else {
        if tokens == sequences {
            return Ok((0..=sequences as i32).collect());
        }
        let expected =
            format!("offsets of the {tokens} queries, unless each of the {sequences} sequences has one query");
        return Err(Error::argument("qOffsets", "none", expected));
    };
    if offsets.len() != sequences + 1 {
        let expected = format!("{}, one more than there are sequences", sequences + 1);
        return Err(Error::ShapeMismatch { argument: "qOffsets", value: vec![offsets.len()], expected });
    }
    check_offsets("qOffsets", offsets, tokens)?;
    Ok(offsets.to_vec())
}

/// The first position of each sequence that is not padding; without `starts`, every position counts. If there are more
/// queries than keys, the first queries are before position 0 and are not padding either.
fn checked_starts<'a>(options: &AttendOptions<'a>, sequences: usize) -> Result<impl Fn(usize) -> i64 + use<'a>> {
    if let Some(starts) = options.starts {
        if starts.len() != sequences {
            let expected = format!("{sequences}, one for each row of the batch");
            return Err(Error::ShapeMismatch { argument: "starts", value: vec![starts.len()], expected });
        }
        if let Some(&wrong) = starts.iter().find(|&&start| start < 0) {
            return Err(Error::argument("starts", wrong, "slots of at least 0"));
        }
    }
    let starts = options.starts;
    Ok(move |row: usize| starts.map_or(i64::MIN, |starts| i64::from(starts[row])))
}
