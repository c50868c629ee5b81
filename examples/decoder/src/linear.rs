//! A linear layer: a matrix, with or without a bias.

use candle_core::{D, Tensor};

use crate::error::Result;
use crate::weights::Weights;

/// `x` times the transposed weight, plus the bias.
pub(crate) struct Linear {
    /// `[inputs, outputs]`, a transposed view of the file's weight.
    transposed: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// Reads the weights called `name`.
    pub fn new(weights: &Weights, name: &str, [inputs, outputs]: [usize; 2], has_bias: bool) -> Result<Self> {
        let weight = weights.get(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = if has_bias { Some(weights.get(&format!("{name}.bias"), &[outputs])?) } else { None };
        Ok(Linear { bias, ..Linear::from_weight(&weight)? })
    }

    /// Makes a layer of a loaded weight `[outputs, inputs]`, without a bias.
    pub fn from_weight(weight: &Tensor) -> Result<Self> {
        Ok(Linear { transposed: weight.t()?, bias: None })
    }

    /// Maps `[rows, tokens, inputs]` to `[rows, tokens, outputs]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, tokens, inputs) = x.dims3()?;
        let flat = x.reshape((rows * tokens, inputs))?.matmul(&self.transposed)?;
        let out = match &self.bias {
            Some(bias) => flat.broadcast_add(bias)?,
            None => flat,
        };
        let outputs = self.transposed.dim(D::Minus1)?;
        Ok(out.reshape((rows, tokens, outputs))?)
    }
}
