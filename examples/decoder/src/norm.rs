//! RMS normalisation: division by the root of the mean of squares.

use candle_core::{D, Tensor};

use crate::config::Config;
use crate::error::Result;
use crate::weights::Weights;

/// `x / sqrt(mean(x²) + epsilon) * weight`, along the last axis.
pub(crate) struct Norm {
    weight: Tensor,
    epsilon: f64,
}

impl Norm {
    /// Reads the weights called `name`, of `size` elements. Gemma stores them minus 1.
    pub fn new(weights: &Weights, name: &str, size: usize, config: &Config) -> Result<Self> {
        let weight = weights.get(&format!("{name}.weight"), &[size])?;
        let weight = if config.family.is_gemma() { (weight + 1.)? } else { weight };
        Ok(Norm { weight, epsilon: config.norm_epsilon })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let root = (x.sqr()?.mean_keepdim(D::Minus1)? + self.epsilon)?.sqrt()?;
        Ok(x.broadcast_div(&root)?.broadcast_mul(&self.weight)?)
    }
}
