//! Tokens with plain numbers, of shape `[rows, 1, n, 1]`, for readable tests.

use candle_core::{DType, Device, Tensor};
use kvtide_tensor::View;

/// One row of these numbers.
pub fn tokens(numbers: impl IntoIterator<Item = u32>) -> Tensor {
    rows(&[&numbers.into_iter().collect::<Vec<_>>()])
}

/// A batch of rows of equal length.
pub fn rows(rows: &[&[u32]]) -> Tensor {
    let values: Vec<f32> = rows.concat().into_iter().map(|number| number as f32).collect();
    Tensor::from_vec(values, (rows.len(), 1, rows[0].len(), 1), &Device::Cpu).expect("rows of equal length")
}

/// Zeros of any shape and dtype.
pub fn zeros(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, &Device::Cpu).expect("a small tensor")
}

/// The numbers that a view shows.
pub fn shown(view: &View) -> Vec<u32> {
    view.to_f32().expect("a view that can be read").into_iter().map(|number| number as u32).collect()
}
