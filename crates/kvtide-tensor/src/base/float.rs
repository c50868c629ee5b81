//! Rows of a cache's dtype as 32-bit floats, and back.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::base::zeroed::zeroed_vec;

/// Elements that are converted at a time where the bytes are not aligned.
const CHUNK: usize = 64;

/// The values of `bytes`, elements of `dtype`.
pub(crate) fn floats(dtype: DType, bytes: &[u8]) -> Result<Vec<f32>> {
    let mut floats =
        zeroed_vec(bytes.len() / dtype.bytes()).ok_or_else(|| Budget::process().refusal(bytes.len() as u64))?;
    to_f32(dtype, bytes, &mut floats);
    Ok(floats)
}

/// The same in `out`.
pub(crate) fn to_f32(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * dtype.bytes(), "as many elements");
    match dtype {
        DType::F32 => bytemuck::cast_slice_mut(out).copy_from_slice(bytes),
        DType::F16 => halves(bytes, out, |bits, out| bits.reinterpret_cast::<f16>().convert_to_f32_slice(out)),
        DType::BF16 => halves(bytes, out, |bits, out| bits.reinterpret_cast::<bf16>().convert_to_f32_slice(out)),
        DType::U8 => out.iter_mut().zip(bytes).for_each(|(value, &byte)| *value = f32::from(byte)),
    }
}

/// The values as elements of `dtype` in `bytes`, rounded to nearest, halves to even.
pub(crate) fn from_f32(dtype: DType, values: &[f32], bytes: &mut [u8]) {
    assert_eq!(bytes.len(), values.len() * dtype.bytes(), "as many elements");
    let each = |bytes: &mut [u8], convert: fn(&mut [u16], &[f32])| {
        let mut aligned = [0u16; CHUNK];
        for (bytes, values) in bytes.chunks_mut(2 * CHUNK).zip(values.chunks(CHUNK)) {
            let bits = &mut aligned[..values.len()];
            convert(bits, values);
            bytes.copy_from_slice(bytemuck::cast_slice(bits));
        }
    };
    match dtype {
        DType::F32 => bytes.copy_from_slice(bytemuck::cast_slice(values)),
        DType::F16 => each(bytes, |bits, values| bits.reinterpret_cast_mut::<f16>().convert_from_f32_slice(values)),
        DType::BF16 => each(bytes, |bits, values| bits.reinterpret_cast_mut::<bf16>().convert_from_f32_slice(values)),
        DType::U8 => bytes.iter_mut().zip(values).for_each(|(byte, &value)| *byte = value as u8),
    }
}

/// Brings what was quantised back into the range of `dtype`: a code may stand for a little more than the largest number that went
/// in, and would be infinite as an element.
pub(crate) fn saturate(dtype: DType, values: &mut [f32]) {
    let most = match dtype {
        DType::F16 => f16::MAX.to_f32(),
        DType::BF16 => bf16::MAX.to_f32(),
        DType::F32 | DType::U8 => return,
    };
    values.iter_mut().for_each(|value| *value = value.clamp(-most, most));
}

fn halves(bytes: &[u8], out: &mut [f32], convert: impl Fn(&[u16], &mut [f32])) {
    if let Ok(bits) = bytemuck::try_cast_slice(bytes) {
        return convert(bits, out);
    }
    let mut aligned = [0u16; CHUNK];
    for (bytes, out) in bytes.chunks(2 * CHUNK).zip(out.chunks_mut(CHUNK)) {
        let bits = &mut aligned[..out.len()];
        bytemuck::cast_slice_mut(bits).copy_from_slice(bytes);
        convert(bits, out);
    }
}
