//! Numbers that look random and are the same on every machine, in any dtype.

use half::{bf16, f16};
use kvtide_tensor::DType;

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
