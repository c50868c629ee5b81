//! The input of every lane: tokens of K and V, with the same numbers as a tensor and as plain memory.

use candle_core::{Device, Tensor, WithDType};
use kvtide_bench::Result;

pub const HEADS: usize = 8;
pub const HEAD_DIM: usize = 128;
pub const TOKEN: usize = HEADS * HEAD_DIM;

/// `[1, HEADS, count, HEAD_DIM]` of K, and of V.
pub struct Tokens<T> {
    pub count: usize,
    pub k: Vec<T>,
    pub v: Vec<T>,
    pub k_tensor: Tensor,
    pub v_tensor: Tensor,
}

impl<T: WithDType> Tokens<T> {
    /// Makes `count` tokens whose numbers follow from `seed`.
    pub fn new(count: usize, seed: usize) -> Result<Self> {
        // Small whole numbers: they are the same in every element type.
        let fill = |salt: usize| -> Vec<T> {
            (0..count * TOKEN).map(|index| T::from_f64(((index * 7 + seed * 31 + salt) % 251) as f64)).collect()
        };
        let (k, v) = (fill(0), fill(101));
        let tensor = |data: &[T]| Tensor::from_slice(data, (1, HEADS, count, HEAD_DIM), &Device::Cpu);
        let (k_tensor, v_tensor) = (tensor(&k)?, tensor(&v)?);
        Ok(Tokens { count, k, v, k_tensor, v_tensor })
    }

    /// Returns the bytes of K and V of `tokens` tokens.
    pub fn bytes(tokens: usize) -> usize {
        2 * tokens * TOKEN * size_of::<T>()
    }
}
