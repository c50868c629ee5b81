//! One transformer block: attention, then the feed-forward part, each added to its input.

use candle_core::Tensor;

use crate::attention::Attention;
use crate::cache::Cache;
use crate::config::Config;
use crate::error::Result;
use crate::mlp::Mlp;
use crate::norm::Norm;
use crate::rope::Turns;
use crate::weights::Weights;

/// A block. Gemma normalises the outputs of both parts as well as their inputs.
pub(crate) struct Block {
    before_attention: Norm,
    attention: Attention,
    after_attention: Option<Norm>,
    before_mlp: Norm,
    mlp: Mlp,
    after_mlp: Option<Norm>,
}

impl Block {
    pub fn new(weights: &Weights, layer: usize, config: &Config) -> Result<Self> {
        let norm = |name: &str| Norm::new(weights, &format!("layers.{layer}.{name}"), config.hidden_size, config);
        let (after_attention, before_mlp, after_mlp) = if config.family.is_gemma() {
            let after = [norm("post_attention_layernorm")?, norm("post_feedforward_layernorm")?].map(Some);
            let [after_attention, after_mlp] = after;
            (after_attention, norm("pre_feedforward_layernorm")?, after_mlp)
        } else {
            (None, norm("post_attention_layernorm")?, None)
        };
        Ok(Block {
            before_attention: norm("input_layernorm")?,
            attention: Attention::new(weights, layer, config)?,
            after_attention,
            before_mlp,
            mlp: Mlp::new(weights, layer, config)?,
            after_mlp,
        })
    }

    pub fn forward(&self, x: &Tensor, turns: &Turns, cache: &mut dyn Cache) -> Result<Tensor> {
        let attended = self.attention.forward(&self.before_attention.forward(x)?, turns, cache)?;
        let x = (x + normed(self.after_attention.as_ref(), attended)?)?;
        let fed = self.mlp.forward(&self.before_mlp.forward(&x)?)?;
        Ok((&x + normed(self.after_mlp.as_ref(), fed)?)?)
    }
}

fn normed(norm: Option<&Norm>, x: Tensor) -> Result<Tensor> {
    norm.map_or(Ok(x.clone()), |norm| norm.forward(&x))
}
