//! The same in candle's tensor operations alone: what a device without kernels of its own runs.
//!
//! Every operation is one of 32-bit floats that rounds as the loops do, so that the codes are the same. Rows are taken some at a
//! time, so that no tensor is over [`CHUNK`] elements, of which the widest operation keeps [`FINITE`] bytes each.

use candle_core::{D, DType, Device, Result, Tensor};
use half::f16;
use kvtide_core::paged::{PageFormat, Part};

use super::q4::{LEAST, NEXT, STEPS};
use super::{Codec, ROUND, f8e4m3};

/// Elements that are worked on at a time: times the codes of f8e4m3 they stay below 1 MiB.
const CHUNK: usize = 8192;
/// Positive codes of f8e4m3 that are not NaN, less one: as many bounds lie between them.
const FINITE: usize = 126;
/// Elements of a group of q4.
const GROUP: usize = 32;
const F16_MAX: f64 = 65504.;

impl Codec {
    /// As [`Codec::encode`].
    ///
    /// # Panics
    ///
    /// When candle refuses an operation on memory of its own, which it never does.
    pub(super) fn encode_portable(&self, values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
        self.encode_tensors(values, codes, scales).expect("operations on tensors of the right shapes");
    }

    /// As [`Codec::decode`]; it panics as `encode_portable` does.
    pub(super) fn decode_portable(&self, codes: &[u8], scales: &[u8], slot: usize, out: &mut [f32]) {
        self.decode_tensors(codes, scales, slot, out).expect("operations on tensors of the right shapes");
    }

    fn encode_tensors(&self, values: &[f32], codes: &mut [u8], scales: &mut [u8]) -> Result<()> {
        let rows = (CHUNK / self.dim).max(1);
        let channels = match (self.format, self.part) {
            (PageFormat::Q4, Part::Key) => Some(self.channel_scales(values, rows)?),
            _ => None,
        };
        for (chunk, values) in values.chunks(rows * self.dim).enumerate() {
            let (first, count) = (chunk * rows, values.len() / self.dim);
            let values = self.rotated_rows(Tensor::from_slice(values, (count, self.dim), &Device::Cpu)?)?;
            let found = match (self.format, &channels) {
                (PageFormat::F8E4M3, _) => f8_codes(&values)?,
                (PageFormat::Q8, _) => {
                    let scale = q8_scales(&values)?;
                    put_scales(&mut scales[2 * first..], &scale)?;
                    q8_codes(&values, &scale)?
                }
                (_, Some(channels)) => q4_codes(&values, &channels.narrow(0, 0, 1)?, &channels.narrow(0, 1, 1)?)?,
                (_, None) => {
                    let [scale, minimum] = q4_scales(&bounds(&values, 1)?)?;
                    put_scales(&mut scales[4 * first..], &Tensor::cat(&[&scale, &minimum], 1)?)?;
                    q4_codes(&values, &scale, &minimum)?
                }
            };
            codes[first * self.row_bytes..][..count * self.row_bytes].copy_from_slice(&bytes(&found)?);
        }
        match channels {
            Some(channels) => put_scales(scales, &channels),
            None => Ok(()),
        }
    }

    /// Scales and minimums of K in q4, `[2, dim]`: over the rows of the block.
    fn channel_scales(&self, values: &[f32], rows: usize) -> Result<Tensor> {
        let mut all: Option<Bounds> = None;
        for values in values.chunks(rows * self.dim) {
            let values = Tensor::from_slice(values, (values.len() / self.dim, self.dim), &Device::Cpu)?;
            let found = bounds(&self.rotated_rows(values)?, 0)?;
            all = Some(match all {
                None => found,
                Some(all) => Bounds {
                    low: all.low.minimum(&found.low)?,
                    high: all.high.maximum(&found.high)?,
                    finite: all.finite.minimum(&found.finite)?,
                },
            });
        }
        let [scale, minimum] = q4_scales(&all.ok_or_else(|| candle_core::Error::Msg("no rows".to_owned()))?)?;
        Tensor::cat(&[&scale, &minimum], 0)
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
                (PageFormat::Q8, _) => q8_values(&codes)?.broadcast_mul(&scales_of(scales, first, (count, 1))?)?,
                (_, Part::Value) => {
                    let pairs = scales_of(scales, 2 * first, (count, 2))?;
                    q4_values(&codes, self.dim, &pairs.narrow(1, 0, 1)?, &pairs.narrow(1, 1, 1)?)?
                }
                (_, Part::Key) => {
                    let pairs = scales_of(scales, 0, (2, self.dim))?;
                    q4_values(&codes, self.dim, &pairs.narrow(0, 0, 1)?, &pairs.narrow(0, 1, 1)?)?
                }
            };
            out.copy_from_slice(&self.rotated_rows(values)?.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(())
    }
}

/// Smallest and largest along one axis, and 1 where all are finite, else 0.
struct Bounds {
    low: Tensor,
    high: Tensor,
    finite: Tensor,
}

fn bounds(values: &Tensor, axis: usize) -> Result<Bounds> {
    let finite = values.abs()?.le(f64::from(f32::MAX))?.to_dtype(DType::F32)?.min_keepdim(axis)?;
    Ok(Bounds { low: values.min_keepdim(axis)?, high: values.max_keepdim(axis)?, finite })
}

/// The nearest f16 as an f32; the largest one for what is beyond it.
fn rounded_f16(values: &Tensor) -> Result<Tensor> {
    values.clamp(-F16_MAX, F16_MAX)?.to_dtype(DType::F16)?.to_dtype(DType::F32)
}

/// `chosen` where `condition` is not 0, else `other`, which may be a number for all.
fn choose(condition: &Tensor, chosen: &Tensor, other: f64) -> Result<Tensor> {
    condition.where_cond(chosen, &chosen.ones_like()?.affine(other, 0.)?)
}

/// The nearest whole number, halves to even.
fn rounded(values: &Tensor) -> Result<Tensor> {
    values.affine(1., f64::from(ROUND))?.affine(1., -f64::from(ROUND))
}

fn inverse(scales: &Tensor) -> Result<Tensor> {
    choose(&scales.ne(0.)?, &scales.recip()?, 0.)
}

/// True where a scale is a number.
fn is_number(scales: &Tensor) -> Result<Tensor> {
    scales.eq(scales)
}

fn put_scales(bytes: &mut [u8], scales: &Tensor) -> Result<()> {
    for (bytes, scale) in bytes.chunks_exact_mut(2).zip(scales.to_dtype(DType::F16)?.flatten_all()?.to_vec1::<f16>()?) {
        let bits = if scale.is_nan() { super::scale::NOT_FINITE } else { scale.to_bits() };
        bytes.copy_from_slice(&bits.to_ne_bytes());
    }
    Ok(())
}

fn scales_of(bytes: &[u8], first: usize, shape: (usize, usize)) -> Result<Tensor> {
    let bytes = &bytes[2 * first..][..2 * shape.0 * shape.1];
    let scales: Vec<f16> = bytes.chunks_exact(2).map(|pair| f16::from_ne_bytes([pair[0], pair[1]])).collect();
    Tensor::from_vec(scales, shape, &Device::Cpu)?.to_dtype(DType::F32)
}

fn bytes(codes: &Tensor) -> Result<Vec<u8>> {
    codes.to_dtype(DType::U8)?.flatten_all()?.to_vec1::<u8>()
}

/// The codes of values in f8e4m3: how many of the bounds between codes lie below their magnitudes.
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
    // A zero has no sign but the one of its inverse.
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

/// The scales of rows, `[rows, 1]`; NaN where a value is not finite.
fn q8_scales(values: &Tensor) -> Result<Tensor> {
    let bounds = bounds(values, 1)?;
    let largest = values.abs()?.max_keepdim(D::Minus1)?;
    let scale = rounded_f16(&largest.broadcast_div(&Tensor::new(127f32, &Device::Cpu)?)?)?;
    choose(&bounds.finite.gt(0.)?, &scale, f64::NAN)
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

/// Scales and minimums; NaN where a value is not finite.
fn q4_scales(bounds: &Bounds) -> Result<[Tensor; 2]> {
    let low = bounds.low.affine(1., 0.)?;
    let nearest = rounded_f16(&low)?;
    let lower = rounded_f16(&(&low - low.abs()?.affine(f64::from(NEXT), 0.)?)?.affine(1., -f64::from(LEAST))?)?;
    let minimum = nearest.gt(&low)?.where_cond(&lower, &nearest)?;
    let step = (&bounds.high - &minimum)?.affine(f64::from(STEPS), 0.)?;
    let nearest = rounded_f16(&step)?;
    let higher = rounded_f16(&(&step + step.affine(f64::from(NEXT), 0.)?)?.affine(1., f64::from(LEAST))?)?;
    let scale = nearest.lt(&step)?.where_cond(&higher, &nearest)?;
    let finite = bounds.finite.gt(0.)?;
    Ok([choose(&finite, &scale, f64::NAN)?, choose(&finite, &minimum, f64::NAN)?])
}

/// The codes of rows, two to a byte.
fn q4_codes(values: &Tensor, scales: &Tensor, minimums: &Tensor) -> Result<Tensor> {
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

fn q4_values(codes: &Tensor, dim: usize, scales: &Tensor, minimums: &Tensor) -> Result<Tensor> {
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
