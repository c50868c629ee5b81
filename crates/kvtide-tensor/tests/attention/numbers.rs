//! Pseudo-random numbers that are the same on every machine, in any dtype.

use half::{bf16, f16};
use kvtide_tensor::DType;

/// A column of rows that are so long.
#[derive(Clone, Copy)]
pub struct Column {
    pub index: usize,
    pub of: usize,
}

/// A stream of numbers between -1 and 1.
#[derive(Clone)]
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 40) as f32 / (1 << 23) as f32) - 1.0
    }

    /// Puts a few of these in random places. Finite ones in rows all go into one column: with two products that large, the
    /// result would depend on the rounding of their sum.
    pub fn sprinkle(&mut self, among: &mut [f32], column: Option<Column>, extremes: &[f32]) {
        let mut below = |count: usize| ((self.next() + 1.0) / 2.0 * count as f32) as usize % count.max(1);
        for _ in 0..below(4) {
            let (place, extreme) = (below(among.len()), extremes[below(extremes.len())]);
            let place = match column.filter(|_| extreme.is_finite()) {
                Some(column) => place - place % column.of + column.index,
                None => place,
            };
            if let Some(float) = among.get_mut(place) {
                *float = extreme;
            }
        }
    }

    pub fn take(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }
}

/// Floats as elements of a dtype.
pub fn to_bytes(dtype: DType, floats: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => floats.iter().flat_map(|float| float.to_ne_bytes()).collect(),
        DType::F16 => floats.iter().flat_map(|float| f16::from_f32(*float).to_ne_bytes()).collect(),
        DType::BF16 => floats.iter().flat_map(|float| bf16::from_f32(*float).to_ne_bytes()).collect(),
        DType::U8 => unreachable!("no attention over bytes"),
    }
}

/// Elements of a dtype as floats.
pub fn to_f64(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let pairs = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    match dtype {
        DType::F32 => bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]).into()).collect(),
        DType::F16 => pairs().map(|pair| f16::from_ne_bytes(pair).to_f64()).collect(),
        DType::BF16 => pairs().map(|pair| bf16::from_ne_bytes(pair).to_f64()).collect(),
        DType::U8 => unreachable!("no attention over bytes"),
    }
}

/// The larger one; NaN if one is NaN, so that a comparison does not lose it.
pub fn larger(one: f64, other: f64) -> f64 {
    if one.is_nan() || one > other { one } else { other }
}

/// The largest numbers of a dtype and what is beyond them: of queries and keys, and of values. Scores of half floats would be so
/// large that their rounding decides.
pub fn extremes(dtype: DType) -> [&'static [f32]; 2] {
    match dtype {
        DType::F16 => {
            [&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN], &[f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 65504.0]]
        }
        _ => [&[1e38, 3e38, -3e38, -1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]; 2],
    }
}

/// The distance of two numbers; 0 if both are NaN.
pub fn distance(one: f64, other: f64) -> f64 {
    if one == other || (one.is_nan() && other.is_nan()) { 0.0 } else { (one - other).abs() }
}

/// True where the product of a query and a key may pass the largest 32-bit float.
pub fn products_pass(query: &[f64], mut keys: impl Iterator<Item = Vec<f64>>) -> bool {
    let size = |key: Vec<f64>| query.iter().zip(key).map(|(one, other)| (one * other).abs()).sum::<f64>();
    keys.any(|key| size(key) > f32::MAX.into())
}
