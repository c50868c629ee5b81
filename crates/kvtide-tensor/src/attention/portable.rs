//! Attention in candle's tensor operations alone, for devices without kernels of this crate, and as the reference in tests.
//!
//! It is the same running softmax over tiles, for all heads at once. The keys of a tile and the queries of a chunk are few
//! enough that no tensor has more than 1 MiB.

use candle_core::{D, DType as CandleDType, Device, Tensor};
use kvtide_core::paged::KeyOrValue;

use super::call::asked::{Asked, Axes, CallSequence};
use super::call::kv_rows::KvRows;
use super::output::{Output, Suspect};
use super::own_page::OwnPage;
use crate::base::error::Result;
use crate::tensor::host::HostTensor;
use crate::tensor::source::Source;

/// The most floats of a tensor: 1 MiB.
const FLOATS_MAX: usize = 1 << 18;

/// The most keys of a tile.
const TILE: usize = 256;

/// A running softmax, `[kv heads, rows, 1]` and `[kv heads, rows, value dim]`.
struct Running {
    max: Tensor,
    sum: Tensor,
    out: Tensor,
}

/// Runs a whole call on a device, with its tensors in place.
pub(super) fn run(
    asked: &Asked<'_>,
    q: &Source<'_>,
    kv: &KvRows<'_>,
    device: &Device,
    output: &mut Output<'_>,
) -> Result<()> {
    let sizes = asked.sizes;
    let widest = sizes.dim.max(sizes.value_dim).max(TILE);
    let chunk = (FLOATS_MAX / (sizes.query_heads * widest)).max(1);
    for (index, of) in asked.sequences.iter().enumerate() {
        let alike = OwnPage::all(asked, kv.pages(), index);
        let chunks = alike.flat_map(|OwnPage { queries, place }| {
            queries.clone().step_by(chunk).map(move |first| (first, chunk.min(queries.end - first), place))
        });
        for (first, count, own) in chunks {
            let from = if sizes.is_ragged { of.first_query + first } else { first };
            // [query heads, n, dim] is [kv heads, rows, dim], because the heads of a group are adjacent.
            let queries = rows(q, asked.axes(), asked.batch(index), from, count)?
                .to_device(device)?
                .reshape((sizes.kv_heads, sizes.group() * count, sizes.dim))?
                .affine(f64::from(asked.rules.scale), 0.0)?;
            let chunk = Chunk { asked, sequence: index, of, first, count, own };
            let running = chunk.run(&queries, kv)?;
            chunk.write(running, output)?;
        }
    }
    Ok(())
}

/// Some queries of one sequence that read pages in the same form.
struct Chunk<'a> {
    asked: &'a Asked<'a>,
    sequence: usize,
    of: &'a CallSequence,
    first: usize,
    count: usize,
    /// The index of their own page.
    own: usize,
}

impl Chunk<'_> {
    fn run(&self, queries: &Tensor, kv: &KvRows<'_>) -> Result<Running> {
        let sizes = self.asked.sizes;
        let positions = (0..self.count).map(|query| self.position(query));
        let (lowest, highest) = positions.fold((i64::MAX, i64::MIN), |(low, high), at| (low.min(at), high.max(at)));
        let mut running = self.start(queries.device())?;
        let keys_max = (FLOATS_MAX / (sizes.kv_heads * sizes.dim.max(sizes.value_dim))).clamp(1, TILE);
        for range in self.asked.visible(self.sequence).ranges(lowest, highest) {
            for start in range.clone().step_by(keys_max) {
                self.asked.check_stop()?;
                let count = keys_max.min(range.end - start);
                let batch = self.asked.batch(self.sequence);
                let (keys, values) = kv.tile(self.own, self.sequence, batch, self.of.first_key + start, count)?;
                let (keys, values) = (keys.to_device(queries.device())?, values.to_device(queries.device())?);
                let mut scores = queries.matmul(&keys.t()?)?;
                if let Some(cap) = self.asked.rules.softcap.map(f64::from) {
                    scores = scores.affine((1.0 / cap).min(f32::MAX.into()), 0.0)?.tanh()?.affine(cap, 0.0)?;
                }
                scores = self.mask(&scores, start, count)?;
                running = running.add(&scores, &values)?;
            }
        }
        Ok(running)
    }

    fn position(&self, query: usize) -> i64 {
        self.asked.position(self.sequence, self.first + query)
    }

    /// The state before any key: only the sinks' logits.
    fn start(&self, device: &Device) -> Result<Running> {
        let sizes = self.asked.sizes;
        let rows = sizes.group() * self.count;
        let logits: Vec<f32> = (0..sizes.query_heads * self.count)
            .map(|row| self.asked.rules.sink_logits.map_or(f32::NEG_INFINITY, |logits| logits[row / self.count]))
            .collect();
        let seen = logits.iter().map(|logit| if *logit > f32::NEG_INFINITY { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
        Ok(Running {
            max: Tensor::from_vec(logits, (sizes.kv_heads, rows, 1), device)?,
            sum: Tensor::from_vec(seen, (sizes.kv_heads, rows, 1), device)?,
            out: Tensor::zeros((sizes.kv_heads, rows, sizes.value_dim), CandleDType::F32, device)?,
        })
    }

    /// Adds slopes and the mask, and sets the score to -infinity where a row does not attend to a key.
    fn mask(&self, scores: &Tensor, start: usize, count: usize) -> Result<Tensor> {
        let (asked, sizes) = (self.asked, self.asked.sizes);
        let rules = asked.visible(self.sequence);
        let mut added = vec![0f32; sizes.query_heads * self.count * count];
        let mut shown = vec![0u8; added.len()];
        for (row, (added, shown)) in added.chunks_exact_mut(count).zip(shown.chunks_exact_mut(count)).enumerate() {
            let (head, query) = (row / self.count, row % self.count);
            let position = self.position(query);
            for key in 0..count {
                let mask = asked.mask.as_ref();
                added[key] = mask.map_or(0.0, |mask| mask.at(self.sequence, head, self.first + query, start + key));
                let hidden = added[key] == f32::NEG_INFINITY || !rules.shows(position, self.first + query, start + key);
                shown[key] = u8::from(!hidden);
                added[key] += asked.slope(head).map_or(0.0, |slope| rules.bias(slope, position, start + key));
            }
        }
        let shape = scores.shape();
        let added = Tensor::from_vec(added, shape, scores.device())?;
        let shown = Tensor::from_vec(shown, shape, scores.device())?;
        Ok(shown.where_cond(&(scores + added)?, &Tensor::full(f32::NEG_INFINITY, shape, scores.device())?)?)
    }

    /// Writes the rows to the output.
    fn write(&self, running: Running, output: &mut Output<'_>) -> Result<()> {
        let (max, sum) = (host(&running.max)?, host(&running.sum)?);
        let out = host(&running.out)?;
        let (sizes, of) = (self.asked.sizes, self.of);
        for row in 0..sizes.query_heads * self.count {
            let (head, query) = (row / self.count, self.first + row % self.count);
            let factor = if sum[row] == 0.0 { 0.0 } else { 1.0 / sum[row] };
            let values: Vec<f32> =
                out[row * sizes.value_dim..][..sizes.value_dim].iter().map(|total| total * factor).collect();
            let lse = if sum[row] == 0.0 { f32::NEG_INFINITY } else { max[row] + sum[row].ln() };
            let token = of.first_query + query;
            let is_finite = values.iter().all(|value| value.is_finite());
            output.check(is_finite, Suspect { sequence: self.sequence, token, head }, lse);
            output.put(self.asked, self.sequence, token, head, &values, lse);
        }
        Ok(())
    }
}

impl Running {
    /// Adds a tile.
    fn add(self, scores: &Tensor, values: &Tensor) -> Result<Running> {
        let max = self.max.maximum(&scores.max_keepdim(D::Minus1)?)?;
        // If no key was visible yet, the base is still finite: infinity minus infinity would be NaN.
        let base = max.maximum(&Tensor::full(f32::MIN, max.shape(), max.device())?)?;
        let weights = scores.broadcast_sub(&base)?.exp()?;
        let before = (&self.max - &base)?.exp()?;
        let sum = ((&self.sum * &before)? + weights.sum_keepdim(D::Minus1)?)?;
        let out = (self.out.broadcast_mul(&before)? + weigh(scores, &weights, values)?)?;
        Ok(Running { max, sum, out })
    }
}

/// Weights times values. A value that is not finite counts only where it is visible, and makes the row NaN there; such rows
/// are recomputed (`exact.rs`).
fn weigh(scores: &Tensor, weights: &Tensor, values: &Tensor) -> Result<Tensor> {
    let zeros = values.zeros_like()?;
    let bad = (values * 0.0)?.ne(&zeros)?;
    if bad.to_dtype(CandleDType::F32)?.sum_all()?.to_scalar::<f32>()? == 0.0 {
        return Ok(weights.matmul(values)?);
    }
    let ones = values.ones_like()?;
    let hidden = Tensor::full(f32::NEG_INFINITY, scores.shape(), scores.device())?;
    let seen = scores.ne(&hidden)?.to_dtype(CandleDType::F32)?;
    let spoilt = seen.matmul(&bad.where_cond(&ones, &zeros)?)?.gt(0.0)?;
    let sums = weights.matmul(&bad.where_cond(&zeros, values)?)?;
    Ok(spoilt.where_cond(&Tensor::full(f32::NAN, sums.shape(), sums.device())?, &sums)?)
}

impl KvRows<'_> {
    /// Keys and values of some tokens, `[kv heads, tokens, dim]`, as floats, in the form that queries with the page `own`
    /// read.
    pub(super) fn tile(
        &self,
        own: usize,
        sequence: usize,
        batch: usize,
        first: usize,
        count: usize,
    ) -> Result<(Tensor, Tensor)> {
        let (k, v, axes) = match self {
            KvRows::Batched { k, v } => (k, v, Axes::BATCHED),
            KvRows::Ragged { k, v, .. } => (k, v, Axes::RAGGED),
            KvRows::Pages(pages) => {
                let part = |part| pages.floats(own, sequence, part, first..first + count);
                return Ok((part(KeyOrValue::Key)?, part(KeyOrValue::Value)?));
            }
        };
        Ok((rows(k, axes, batch, first, count)?, rows(v, axes, batch, first, count)?))
    }
}

/// Some tokens of a source, `[heads, tokens, dim]`, as floats.
pub(super) fn rows(source: &Source<'_>, axes: Axes, batch: usize, first: usize, count: usize) -> Result<Tensor> {
    let tensor = match source {
        Source::Tensor(tensor) => (*tensor).clone(),
        Source::View(view) => {
            let view = if axes.rank == 4 { view.narrow(0, batch, 1)? } else { (*view).clone() };
            let view = view.narrow(axes.tokens, first, count)?;
            let view = if view.runs().single().is_some() { view.tensor()? } else { view.to_tensor()? };
            return heads_first(view, axes);
        }
        Source::Host(host) => return host_rows(host, axes, batch, first, count),
    };
    let tensor = if axes.rank == 4 { tensor.narrow(0, batch, 1)? } else { tensor };
    heads_first(tensor.narrow(axes.tokens, first, count)?, axes)
}

/// Like [`rows`], from the caller's memory.
fn host_rows(host: &HostTensor<'_>, axes: Axes, batch: usize, first: usize, count: usize) -> Result<Tensor> {
    let (dims, strides) = (host.dims(), host.byte_strides());
    let (heads, dim) = (dims[axes.heads], dims[axes.rank - 1]);
    let width = dim * host.dtype().bytes();
    let begin = if axes.rank == 4 { batch * strides[0] } else { 0 };
    let token = host.range().map_or(0, |range| range.0) + first;
    let mut bytes = Vec::with_capacity(heads * count * width);
    for (head, token) in (0..heads).flat_map(|head| (token..token + count).map(move |token| (head, token))) {
        let at = begin + head * strides[axes.heads] + token * strides[axes.tokens];
        bytes.extend_from_slice(&host.bytes()[at..at + width]);
    }
    let tensor = Tensor::from_raw_buffer(&bytes, host.dtype().candle(), &[heads, count, dim], &Device::Cpu)?;
    Ok(tensor.to_dtype(CandleDType::F32)?)
}

fn heads_first(tensor: Tensor, axes: Axes) -> Result<Tensor> {
    let tensor = if axes.rank == 4 { tensor.squeeze(0)? } else { tensor.transpose(0, 1)? };
    Ok(tensor.to_dtype(CandleDType::F32)?.contiguous()?)
}

/// A tensor's floats.
pub(super) fn host(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.flatten_all()?.to_vec1()?)
}
