//! Attention of one layer: the projections before and after the cache's attention.

use candle_core::Tensor;

use crate::cache::Cache;
use crate::config::Config;
use crate::error::Result;
use crate::linear::Linear;
use crate::norm::Norm;
use crate::rope::Turns;
use crate::weights::Weights;

/// Projections of queries, keys, values and the output, and norms of heads if the family has them.
pub(crate) struct Attention {
    layer: usize,
    q: Linear,
    k: Linear,
    v: Linear,
    output: Linear,
    head_norms: Option<[Norm; 2]>,
    head_dim: usize,
}

impl Attention {
    pub fn new(weights: &Weights, layer: usize, config: &Config) -> Result<Self> {
        let described = config.model.layers()[layer];
        let head_dim = described.head_dim as usize;
        let (queries, keys) = (config.query_heads() * head_dim, described.num_kv_heads as usize * head_dim);
        let name = |part: &str| format!("layers.{layer}.self_attn.{part}");
        let [in_bias, out_bias] = config.attention_bias;
        let hidden = config.hidden_size;
        let head_norm = |part: &str| Norm::new(weights, &name(part), head_dim, config);
        Ok(Attention {
            layer,
            q: Linear::new(weights, &name("q_proj"), [hidden, queries], in_bias)?,
            k: Linear::new(weights, &name("k_proj"), [hidden, keys], in_bias)?,
            v: Linear::new(weights, &name("v_proj"), [hidden, keys], in_bias)?,
            output: Linear::new(weights, &name("o_proj"), [queries, hidden], out_bias)?,
            head_norms: match config.family.normalises_heads() {
                true => Some([head_norm("q_norm")?, head_norm("k_norm")?]),
                false => None,
            },
            head_dim,
        })
    }

    /// Computes the attention of the layer: `[rows, tokens, hidden]` in and out.
    pub fn forward(&self, x: &Tensor, turns: &Turns, cache: &mut dyn Cache) -> Result<Tensor> {
        let (q, k) = (self.heads(&self.q.forward(x)?)?, self.heads(&self.k.forward(x)?)?);
        let v = self.heads(&self.v.forward(x)?)?;
        let (q, k) = match &self.head_norms {
            Some([q_norm, k_norm]) => (q_norm.forward(&q)?, k_norm.forward(&k)?),
            None => (q, k),
        };
        cache.write(self.layer, &turns.turn(&k)?, &v)?;
        let attended = cache.attend(self.layer, &turns.turn(&q)?)?;
        let (rows, heads, tokens, dim) = attended.dims4()?;
        self.output.forward(&attended.transpose(1, 2)?.reshape((rows, tokens, heads * dim))?)
    }

    /// Views `[rows, tokens, heads * dim]` as `[rows, heads, tokens, dim]`, without a copy.
    fn heads(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, tokens, width) = x.dims3()?;
        Ok(x.reshape((rows, tokens, width / self.head_dim, self.head_dim))?.transpose(1, 2)?)
    }
}
