//! The feed-forward part of a block.

use candle_core::Tensor;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::linear::Linear;
use crate::weights::Weights;

/// The activation function of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    Silu,
    GeluTanh,
}

impl Activation {
    /// Reads the activation from the file, or uses `default`.
    pub fn of(fields: Fields<'_>, default: &str) -> Result<Self> {
        let (name, text) = match fields.text("hidden_activation") {
            Some(text) => ("hidden_activation", text),
            None => ("hidden_act", fields.text("hidden_act").unwrap_or(default)),
        };
        match text {
            "silu" | "swish" => Ok(Activation::Silu),
            "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
            other => Err(Error::config(name, other, "silu or gelu_pytorch_tanh")),
        }
    }
}

/// `down(activation(gate(x)) * up(x))`
pub(crate) struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl Mlp {
    pub fn new(weights: &Weights, layer: usize, config: &Config) -> Result<Self> {
        let Config { hidden_size, intermediate_size, mlp_bias, activation, .. } = *config;
        let linear =
            |part: &str, sizes| Linear::new(weights, &format!("layers.{layer}.mlp.{part}_proj"), sizes, mlp_bias);
        Ok(Mlp {
            gate: linear("gate", [hidden_size, intermediate_size])?,
            up: linear("up", [hidden_size, intermediate_size])?,
            down: linear("down", [intermediate_size, hidden_size])?,
            activation,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let gate = self.gate.forward(x)?;
        let gate = match self.activation {
            Activation::Silu => gate.silu()?,
            Activation::GeluTanh => gate.gelu()?,
        };
        self.down.forward(&(gate * self.up.forward(x)?)?)
    }
}
