//! Merges the attention of the same queries over parts of the keys, as if it had been one call.
//!
//! ```text
//! out = Σ part.out * exp(part.lse - lse)        lse = log Σ exp(part.lse)
//! ```

use super::call::asked::Axes;
use super::call::options::Attended;
use super::output::larger;
use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::dtype::{floats, from_f32};
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::zeroed::zeroed_bytes;
use crate::tensor::host::HostTensor;
use crate::tensor::source::Source;
use crate::tensor::view::View;

/// The result of one attention call: its output, and the logarithm of each row's sum.
#[derive(Clone, Debug)]
pub struct AttendedPart<'a> {
    /// `[batch, heads, n, dim]` or `[tokens, heads, dim]`.
    pub out: Source<'a>,
    /// `[tokens, heads]`
    pub lse: &'a [f32],
}

impl<'a> From<&'a Attended> for AttendedPart<'a> {
    fn from(attended: &'a Attended) -> Self {
        AttendedPart { out: (&attended.out).into(), lse: &attended.lse }
    }
}

/// Merges parts that attended to disjoint keys. Sink logits count in each part that had them, so pass them to one part only.
/// Shares are as precise as the sums, which are 32-bit floats: if the sums are in the millions, the shares are only
/// approximate.
pub fn merge_attention<'a>(parts: impl IntoIterator<Item = impl Into<AttendedPart<'a>>>) -> Result<Attended> {
    let parts: Vec<AttendedPart<'a>> = parts.into_iter().map(Into::into).collect();
    let Some(first) = parts.first() else {
        return Err(Error::argument("parts", 0u32, "at least one part"));
    };
    let shape = shape(first)?;
    let (dtype, dims) = shape;
    let rows = dims[..dims.len() - 1].iter().product::<usize>();
    let mut outs = Vec::with_capacity(parts.len());
    for part in &parts {
        let actual = self::shape(part)?;
        if actual != shape {
            let expected = format!("{:?} {dtype}, as in the first part", &dims[..]);
            return Err(Error::ShapeMismatch { argument: "parts", value: actual.1.to_vec(), expected });
        }
        if part.lse.len() != rows {
            let expected = format!("{rows}, one for each query and head");
            return Err(Error::ShapeMismatch { argument: "lse", value: vec![part.lse.len()], expected });
        }
        outs.push(floats(dtype, &part.out.row_major("out")?.1)?);
    }
    let width = dims[dims.len() - 1];
    let refused = || Budget::process().refusal((4 * rows * (width + 1)) as u64);
    let mut out: Vec<f32> = crate::base::zeroed::zeroed_vec(rows * width).ok_or_else(refused)?;
    let mut lse: Vec<f32> = crate::base::zeroed::zeroed_vec(rows).ok_or_else(refused)?;
    for row in 0..rows {
        let place = place_of_sum(&dims, row);
        let sums = || parts.iter().map(|part| part.lse[place]);
        let max = sums().fold(f32::NEG_INFINITY, larger);
        let total: f64 = sums().map(|sum| weight(sum, max)).sum();
        lse[place] = if total == 0.0 { f32::NEG_INFINITY } else { (f64::from(max) + total.ln()) as f32 };
        for (part, sum) in outs.iter().zip(sums()) {
            // A part that attended to no key is left out: its output is zeros.
            if sum == f32::NEG_INFINITY {
                continue;
            }
            let factor = weight(sum, max) / total;
            for (total, &value) in out[row * width..][..width].iter_mut().zip(&part[row * width..]) {
                // An infinity stays one, however small its share.
                *total += if value.is_finite() || factor.is_nan() { (factor * f64::from(value)) as f32 } else { value };
            }
        }
    }
    let mut bytes = zeroed_bytes(out.len() * dtype.bytes())?;
    from_f32(dtype, &out, &mut bytes);
    let out = View::from_host(&HostTensor::new("out", &bytes, dtype, &dims)?, &Budget::process())?;
    Ok(Attended { out, lse })
}

/// `e^(sum - max)`; 0 if the part attended to no key, NaN if a part is NaN.
fn weight(sum: f32, max: f32) -> f64 {
    if sum == f32::NEG_INFINITY { 0.0 } else { (f64::from(sum) - f64::from(max)).exp() }
}

/// The index in `[tokens, heads]` of a row of the output.
fn place_of_sum(dims: &Dims, row: usize) -> usize {
    if dims.len() == Axes::RAGGED.rank {
        return row;
    }
    let (heads, queries) = (dims[1], dims[2]);
    let (batch, head, query) = (row / (heads * queries), row / queries % heads, row % queries);
    (batch * queries + query) * heads + head
}

fn shape(part: &AttendedPart<'_>) -> Result<(DType, Dims)> {
    let resolved = part.out.resolve("out", 0)?;
    if resolved.dims.len() != Axes::BATCHED.rank && resolved.dims.len() != Axes::RAGGED.rank {
        let expected = "[batch, heads, n, headDim] or [tokens, heads, headDim]".to_owned();
        return Err(Error::ShapeMismatch { argument: "out", value: resolved.dims.to_vec(), expected });
    }
    if resolved.dtype == DType::U8 {
        let expected = "f32, f16 or bf16".to_owned();
        return Err(Error::DtypeMismatch { argument: "out", value: "u8".to_owned(), expected });
    }
    Ok((resolved.dtype, resolved.dims))
}
