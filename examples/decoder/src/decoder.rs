//! A whole model: from tokens to logits, on any [`Cache`].

use std::path::Path;

use candle_core::{D, Device, Tensor};

use crate::block::Block;
use crate::cache::Cache;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::linear::Linear;
use crate::norm::Norm;
use crate::rope::Turns;
use crate::weights::Weights;

/// A model from a folder. It is immutable: one model can be used with many caches.
pub struct Decoder {
    config: Config,
    embedding: Tensor,
    blocks: Vec<Block>,
    norm: Norm,
    output: Linear,
    /// The frequencies of both ropes: first full layers, then sliding layers.
    frequencies: [Vec<f32>; 2],
}

impl Decoder {
    /// Reads `config.json` and `model.safetensors` from a folder.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(|error| Error::File { path, reason: error.to_string() })?;
        let config = Config::read(&text)?;
        let weights = Weights::read(&folder.join("model.safetensors"))?;
        let shape = [config.vocab_size, config.hidden_size];
        let embedding = weights.get("embed_tokens.weight", &shape)?;
        let output = if config.is_tied { embedding.clone() } else { weights.output(&shape)? };
        let layers = config.model.layers();
        let head_dim = layers[0].head_dim as usize;
        if !head_dim.is_multiple_of(2) {
            return Err(Error::config("head_dim", head_dim, "an even number: elements are rotated in pairs"));
        }
        Ok(Decoder {
            blocks: (0..layers.len()).map(|layer| Block::new(&weights, layer, &config)).collect::<Result<_>>()?,
            norm: Norm::new(&weights, "norm", config.hidden_size, &config)?,
            output: Linear::from_weight(&output)?,
            frequencies: config.ropes.map(|rope| rope.frequencies(head_dim)),
            embedding,
            config,
        })
    }

    /// Returns the model's configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Computes new tokens, row by row, and writes their keys and values to the cache, in one step.
    ///
    /// Returns the output of the last block, `[rows, tokens, hidden]`, for [`logits`](Self::logits).
    pub fn forward(&self, tokens: &[u32], cache: &mut dyn Cache) -> Result<Tensor> {
        let (rows, vocabulary) = (cache.rows(), self.config.vocab_size);
        if rows == 0 || tokens.is_empty() || !tokens.len().is_multiple_of(rows) {
            return Err(Error::step(format!("{} tokens cannot be divided among {rows} rows", tokens.len())));
        }
        if let Some(place) = tokens.iter().position(|&token| token as usize >= vocabulary) {
            return Err(Error::Token { token: tokens[place], place, vocabulary });
        }
        let positions = cache.begin(tokens)?;
        let [full, sliding] = &self.frequencies;
        let turns = [Turns::new(full, &positions, rows)?, Turns::new(sliding, &positions, rows)?];
        let mut x = self.embed(tokens, rows)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            x = block.forward(&x, &turns[self.config.rope(layer)], cache)?;
        }
        cache.commit()?;
        Ok(x)
    }

    /// Returns the logits for the output of [`forward`](Self::forward): `[rows, tokens, vocabulary]`.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let logits = self.output.forward(&self.norm.forward(hidden)?)?;
        Ok(match self.config.final_softcap {
            Some(softcap) => ((logits / softcap)?.tanh()? * softcap)?,
            None => logits,
        })
    }

    /// Returns the logits of the last token of each row: `[rows, vocabulary]`.
    pub fn last_logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let last = hidden.dim(1)? - 1;
        Ok(self.logits(&hidden.narrow(1, last, 1)?)?.squeeze(1)?)
    }

    fn embed(&self, tokens: &[u32], rows: usize) -> Result<Tensor> {
        let numbers = Tensor::from_slice(tokens, tokens.len(), &Device::Cpu)?;
        let width = self.embedding.dim(D::Minus1)?;
        let embedded = self.embedding.index_select(&numbers, 0)?.reshape((rows, tokens.len() / rows, width))?;
        Ok(if self.config.family.is_gemma() { (embedded * (width as f64).sqrt())? } else { embedded })
    }
}
