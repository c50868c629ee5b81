//! A `config.json`: the layers, which kvtide's `ModelDescription` reads, and the numbers of the arithmetic.

use kvtide_core::model::{LayerKind, ModelDescription};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::family::Family;
use crate::fields::Fields;
use crate::mlp::Activation;
use crate::rope::RopeSettings;

/// A model's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The layers, with their windows, and the parameters of attention.
    pub model: ModelDescription,
    /// The model's family.
    pub family: Family,
    /// The size of the vocabulary.
    pub vocab_size: usize,
    /// The number of elements of a token between two blocks.
    pub hidden_size: usize,
    /// The number of elements of a token inside the feed-forward part.
    pub intermediate_size: usize,
    pub(crate) norm_epsilon: f64,
    pub(crate) activation: Activation,
    /// True if the output uses the embedding's weights.
    pub(crate) is_tied: bool,
    /// True if projections have a bias: first those of queries, keys and values, then that of the output.
    pub(crate) attention_bias: [bool; 2],
    pub(crate) mlp_bias: bool,
    /// The soft cap of the logits.
    pub(crate) final_softcap: Option<f64>,
    /// The rotary settings: first of full layers, then of sliding layers.
    pub(crate) ropes: [RopeSettings; 2],
}

impl Config {
    /// Reads the text of a `config.json`.
    pub fn read(text: &str) -> Result<Self> {
        let model = ModelDescription::from_config(text)?;
        let root: Value = serde_json::from_str(text).map_err(|error| Error::config("config", error, "JSON"))?;
        let Some(outer) = root.as_object().map(Fields) else {
            return Err(Error::config("config", "no object", "a JSON object"));
        };
        let family = Family::of(&outer)?;
        let fields = outer.object("text_config").unwrap_or(outer);
        let attention_bias = fields.flag("attention_bias", false)?;
        Ok(Config {
            model,
            family,
            vocab_size: fields.size("vocab_size")?,
            hidden_size: fields.size("hidden_size")?,
            intermediate_size: fields.size("intermediate_size")?,
            norm_epsilon: fields.number("rms_norm_eps", 1e-6)?,
            activation: Activation::of(fields, if family.is_gemma() { "gelu_pytorch_tanh" } else { "silu" })?,
            is_tied: fields.flag("tie_word_embeddings", outer.flag("tie_word_embeddings", family.is_gemma())?)?,
            attention_bias: match family {
                Family::Qwen2 => [true, false],
                Family::Mistral => [false; 2],
                _ => [attention_bias; 2],
            },
            mlp_bias: family == Family::Llama && fields.flag("mlp_bias", false)?,
            final_softcap: fields.optional_number("final_logit_softcapping")?,
            ropes: [RopeSettings::of(fields, family, false)?, RopeSettings::of(fields, family, true)?],
        })
    }

    /// Returns the number of query heads.
    #[must_use]
    pub fn query_heads(&self) -> usize {
        let heads = self.model.attention().num_query_heads;
        heads.unwrap_or(self.model.layers()[0].num_kv_heads) as usize
    }

    /// Returns the index of a layer's rope: 0 for full layers, 1 for sliding layers.
    pub(crate) fn rope(&self, layer: usize) -> usize {
        usize::from(matches!(self.model.kind(layer as u32), LayerKind::Sliding { .. }))
    }
}
