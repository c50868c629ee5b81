//! Quantisation in candle's tensor operations alone, for devices without kernels.
//!
//! Every operation is one on 32-bit floats that rounds as the loops do, so that the codes are the same. Scales, which need
//! bit operations, are few and are computed by the loops' own functions. Rows are processed in chunks, so that no tensor has
//! more than [`CHUNK`] elements; the widest operation uses [`FINITE`] bytes for each.

use candle_core::{D, DType, Device, Result, Tensor};
use kvtide_core::paged::{KeyOrValue, PageFormat};

use super::bits::ROUND;
use super::codec::Codec;
use super::{f8e4m3, q4, q8, scale};

/// The number of elements processed at a time: multiplied by the codes of f8e4m3 they stay below 1 MiB.
const CHUNK: usize = 8192;
/// The number of positive codes of f8e4m3 that are not NaN, minus one: the number of bounds between them.
const FINITE: usize = 126;
/// The elements of a group of q4.
const GROUP: usize = 32;

impl Codec {
    /// Like [`Codec::encode`].
    ///
    /// # Panics
    ///
    /// If candle rejects an operation on memory of its own, which it never does.
    pub(super) fn encode_portable(&self, values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
        self.encode_tensors(values, codes, scales).expect("operations on tensors of the right shapes");
    }

    /// Like [`Codec::decode`]; panics like `encode_portable`.
    pub(super) fn decode_portable(&self, codes: &[u8], scales: &[u8], slot: usize, out: &mut [f32]) {
        self.decode_tensors(codes, scales, slot, out).expect("operations on tensors of the right shapes");
    }

    fn encode_tensors(&self, values: &[f32], codes: &mut [u8], scales: &mut [u8]) -> Result<()> {
        let rows = (CHUNK / self.dim).max(1);
        let by_channel = (self.format, self.part) == (PageFormat::Q4, KeyOrValue::Key);
        if by_channel {
            q4_scales(&self.channel_bounds(values, rows)?, 0, scales)?;
        }
        for (chunk, values) in values.chunks(rows * self.dim).enumerate() {
            let (first, count) = (chunk * rows, values.len() / self.dim);
            let values = self.rotated_rows(Tensor::from_slice(values, (count, self.dim), &Device::Cpu)?)?;
            let found = match (self.format, by_channel) {
                (PageFormat::F8E4M3, _) => f8_codes(&values)?,
                (PageFormat::Q8, _) => {
                    q8_scales(&values, first, scales)?;
                    q8_codes(&values, &q8_scales_of(scales, first, count)?)?
                }
                (_, true) => q4_codes(&values, &q4_scales_of(scales, 0, (1, self.dim))?)?,
                (_, false) => {
                    q4_scales(&bounds(&values, 1)?, first, scales)?;
                    q4_codes(&values, &q4_scales_of(scales, first, (count, 1))?)?
                }
            };
            codes[first * self.row_bytes..][..count * self.row_bytes].copy_from_slice(&bytes(&found)?);
        }
        Ok(())
    }

    /// The bounds of the channels of K in q4 over the rows of the block, `[1, dim]`.
    fn channel_bounds(&self, values: &[f32], rows: usize) -> Result<TensorBounds> {
        let mut all: Option<TensorBounds> = None;
        for values in values.chunks(rows * self.dim) {
            let values = Tensor::from_slice(values, (values.len() / self.dim, self.dim), &Device::Cpu)?;
            let found = bounds(&self.rotated_rows(values)?, 0)?;
            all = Some(match all {
                None => found,
                Some(all) => TensorBounds {
                    low: all.low.minimum(&found.low)?,
                    high: all.high.maximum(&found.high)?,
                    finite: all.finite.minimum(&found.finite)?,
                },
            });
        }
        all.ok_or_else(|| candle_core::Error::Msg("no rows".to_owned()))
    }

    fn rotated_rows(&self, rows: Tensor) -> Result<Tensor> {
        if !self.rotated {
            return Ok(rows);
        }
        let (count, dim) = rows.dims2()?;
        let size = 1usize << dim.trailing_zeros();
        let (mut rows, mut half) = (rows, 1);
        while half < size {
            let pairs = rows.reshape((count, dim / (2 * half), 2, half))?;
            let (low, high) = (pairs.narrow(2, 0, 1)?, pairs.narrow(2, 1, 1)?);
            rows = Tensor::cat(&[&(&low + &high)?, &(&low - &high)?], 2)?.reshape((count, dim))?;
            half *= 2;
        }
        // Not `affine`, which adds 0 and so loses the sign of a zero.
        rows.broadcast_mul(&Tensor::new((1. / (size as f64).sqrt()) as f32, &Device::Cpu)?)
    }

    fn decode_tensors(&self, codes: &[u8], scales: &[u8], slot: usize, out: &mut [f32]) -> Result<()> {
        let rows = (CHUNK / self.dim).max(1);
        for (chunk, out) in out.chunks_mut(rows * self.dim).enumerate() {
            let (first, count) = (slot + chunk * rows, out.len() / self.dim);
            let codes = &codes[first * self.row_bytes..][..count * self.row_bytes];
            let codes = Tensor::from_slice(codes, (count, self.row_bytes), &Device::Cpu)?;
            let values = match (self.format, self.part) {
                (PageFormat::F8E4M3, _) => f8_values(&codes)?,
                (PageFormat::Q8, _) => q8_values(&codes)?.broadcast_mul(&q8_scales_of(scales, first, count)?)?,
                (_, KeyOrValue::Value) => q4_values(&codes, self.dim, &q4_scales_of(scales, first, (count, 1))?)?,
                (_, KeyOrValue::Key) => q4_values(&codes, self.dim, &q4_scales_of(scales, 0, (1, self.dim))?)?,
            };
            out.copy_from_slice(&self.rotated_rows(values)?.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(())
    }
}

/// The smallest and largest values along one axis, and 1 where all are finite, else 0.
struct TensorBounds {
    low: Tensor,
    high: Tensor,
    finite: Tensor,
}

fn bounds(values: &Tensor, axis: usize) -> Result<TensorBounds> {
    let finite = values.abs()?.le(f64::from(f32::MAX))?.to_dtype(DType::F32)?.min_keepdim(axis)?;
    Ok(TensorBounds { low: values.min_keepdim(axis)?, high: values.max_keepdim(axis)?, finite })
}

/// `chosen` where `condition` is not 0, else the number `other`.
fn choose(condition: &Tensor, chosen: &Tensor, other: f64) -> Result<Tensor> {
    condition.where_cond(chosen, &chosen.ones_like()?.affine(other, 0.)?)
}

/// The nearest integers, ties to even.
fn rounded(values: &Tensor) -> Result<Tensor> {
    values.affine(1., f64::from(ROUND))?.affine(1., -f64::from(ROUND))
}

fn inverse(scales: &Tensor) -> Result<Tensor> {
    choose(&scales.ne(0.)?, &scales.recip()?, 0.)
}

/// True where a scale is not NaN.
fn is_number(scales: &Tensor) -> Result<Tensor> {
    scales.eq(scales)
}

fn bytes(codes: &Tensor) -> Result<Vec<u8>> {
    codes.to_dtype(DType::U8)?.flatten_all()?.to_vec1::<u8>()
}

/// The codes of values in f8e4m3: the number of bounds between codes that are not above their magnitudes.
fn f8_codes(values: &Tensor) -> Result<Tensor> {
    let magnitudes = values.abs()?;
    let bounds = Tensor::from_slice(&f8e4m3::bounds::<FINITE>(), (1, FINITE), &Device::Cpu)?;
    let mut rows = Vec::new();
    for row in 0..values.dim(0)? {
        let mut pieces = Vec::new();
        let row = magnitudes.get(row)?;
        for start in (0..row.dim(0)?).step_by(CHUNK) {
            let piece = row.narrow(0, start, CHUNK.min(row.dim(0)? - start))?.unsqueeze(1)?;
            pieces.push(piece.broadcast_ge(&bounds)?.to_dtype(DType::U8)?.sum(1)?.to_dtype(DType::F32)?);
        }
        rows.push(Tensor::cat(&pieces, 0)?);
    }
    let finite = magnitudes.le(f64::from(f32::MAX))?;
    let codes = choose(&finite, &Tensor::stack(&rows, 0)?, 127.)?;
    // The sign of a zero is visible only in its reciprocal.
    let negative = (values.lt(0.)?.to_dtype(DType::F32)? + values.recip()?.lt(0.)?.to_dtype(DType::F32)?)?;
    let negative = (negative.ge(1.)?.to_dtype(DType::F32)? * finite.to_dtype(DType::F32)?)?;
    codes + negative.affine(128., 0.)?
}

fn f8_values(codes: &Tensor) -> Result<Tensor> {
    let all: Vec<u8> = (0..=u8::MAX).collect();
    let mut table = [0.; 256];
    f8e4m3::decode(&all, &mut table);
    let table = Tensor::from_slice(&table, 256, &Device::Cpu)?;
    let shape = codes.shape().clone();
    table.index_select(&codes.flatten_all()?.to_dtype(DType::U32)?, 0)?.reshape(shape)
}

/// Writes the scales of rows; the first row has the index `first`.
fn q8_scales(values: &Tensor, first: usize, scales: &mut [u8]) -> Result<()> {
    let finite = numbers(&bounds(values, 1)?.finite)?;
    let largest = numbers(&values.abs()?.max_keepdim(D::Minus1)?)?;
    for (row, (largest, finite)) in largest.into_iter().zip(finite).enumerate() {
        let largest = if finite > 0. { largest } else { f32::NAN };
        scale::set_q8(scales, first + row, q8::scale_of(largest.to_bits()));
    }
    Ok(())
}

/// The scales of rows, `[count, 1]`.
fn q8_scales_of(scales: &[u8], first: usize, count: usize) -> Result<Tensor> {
    let found: Vec<f32> = (first..first + count).map(|row| scale::q8_at(scales, row)).collect();
    Tensor::from_vec(found, (count, 1), &Device::Cpu)
}

fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.flatten_all()?.to_vec1()
}

fn q8_codes(values: &Tensor, scales: &Tensor) -> Result<Tensor> {
    let steps = rounded(&values.broadcast_mul(&inverse(scales)?)?.clamp(-127f64, 127f64)?)?;
    let bytes = (&steps + steps.lt(0.)?.to_dtype(DType::F32)?.affine(256., 0.)?)?;
    choose(&is_number(scales)?.broadcast_as(bytes.shape())?, &bytes, 0.)
}

fn q8_values(codes: &Tensor) -> Result<Tensor> {
    let codes = codes.to_dtype(DType::F32)?;
    let negative = codes.ge(128.)?.to_dtype(DType::F32)?;
    codes - negative.affine(256., 0.)?
}

/// Writes scales and minimums; the first ones have the index `first`.
fn q4_scales(bounds: &TensorBounds, first: usize, scales: &mut [u8]) -> Result<()> {
    let bounds = numbers(&bounds.low)?.into_iter().zip(numbers(&bounds.high)?).zip(numbers(&bounds.finite)?);
    for (place, ((low, high), finite)) in bounds.enumerate() {
        let word = if finite > 0. { q4::word_of(low, high) } else { scale::Q4_NOT_FINITE };
        scale::set_q4(scales, first + place, &[word]);
    }
    Ok(())
}

/// Scales and minimums, as one tensor each.
fn q4_scales_of(scales: &[u8], first: usize, shape: (usize, usize)) -> Result<[Tensor; 2]> {
    let words: Vec<[f32; 2]> = (first..first + shape.0 * shape.1).map(|place| scale::q4_at(scales, place)).collect();
    let of =
        |part: usize| Tensor::from_vec(words.iter().map(|word| word[part]).collect::<Vec<_>>(), shape, &Device::Cpu);
    Ok([of(0)?, of(1)?])
}

/// The codes of rows, two per byte.
fn q4_codes(values: &Tensor, [scales, minimums]: &[Tensor; 2]) -> Result<Tensor> {
    let steps = values.broadcast_sub(minimums)?.broadcast_mul(&inverse(scales)?)?;
    let codes = rounded(&choose(&is_number(&steps)?, &steps, 0.)?.clamp(0f64, 15f64)?)?;
    let (rows, dim) = codes.dims2()?;
    let mut groups = Vec::new();
    for start in (0..dim).step_by(GROUP) {
        let (size, half) = (GROUP.min(dim - start), GROUP.min(dim - start).div_ceil(2));
        let low = codes.narrow(1, start, half)?;
        let high = codes.narrow(1, start + half, size - half)?.pad_with_zeros(1, 0, 2 * half - size)?;
        groups.push((low + high.affine(16., 0.)?)?.reshape((rows, half))?);
    }
    Tensor::cat(&groups, 1)
}

fn q4_values(codes: &Tensor, dim: usize, [scales, minimums]: &[Tensor; 2]) -> Result<Tensor> {
    let codes = codes.to_dtype(DType::F32)?;
    let high = codes.affine(1. / 16., 0.)?.floor()?;
    let low = (&codes - high.affine(16., 0.)?)?;
    let mut groups = Vec::new();
    for start in (0..dim).step_by(GROUP) {
        let (size, half) = (GROUP.min(dim - start), GROUP.min(dim - start).div_ceil(2));
        groups.push(low.narrow(1, start / 2, half)?);
        groups.push(high.narrow(1, start / 2, size - half)?);
    }
    Tensor::cat(&groups, 1)?.broadcast_mul(scales)?.broadcast_add(minimums)
}
