//! The families, and how their blocks differ. What their layers keep is not told here: a description says it.

use crate::error::{Error, Result};
use crate::fields::Fields;

/// A family of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama, and what is built like it.
    Llama,
    /// Mistral: as Llama, and may slide.
    Mistral,
    /// Qwen2: projections of queries, keys and values add a bias.
    Qwen2,
    /// Qwen3: each head of queries and keys is normalised.
    Qwen3,
    /// Gemma 3, its text model.
    Gemma3,
}

impl Family {
    /// The family that `model_type` names.
    pub(crate) fn of(fields: &Fields<'_>) -> Result<Self> {
        let named = fields.text("model_type").or_else(|| fields.text("architectures")).unwrap_or_default();
        Ok(match named {
            "llama" | "LlamaForCausalLM" => Family::Llama,
            "mistral" | "MistralForCausalLM" => Family::Mistral,
            "qwen2" | "Qwen2ForCausalLM" => Family::Qwen2,
            "qwen3" | "Qwen3ForCausalLM" => Family::Qwen3,
            "gemma3" | "gemma3_text" | "Gemma3ForCausalLM" | "Gemma3ForConditionalGeneration" => Family::Gemma3,
            other => {
                let expected = "a family of this decoder: llama, mistral, qwen2, qwen3 or gemma3_text";
                return Err(Error::config("model_type", other, expected));
            }
        })
    }

    /// Each head of queries and keys is normalised before it is turned.
    #[must_use]
    pub fn normalises_heads(self) -> bool {
        matches!(self, Family::Qwen3 | Family::Gemma3)
    }

    /// What attention and the feed-forward part give is normalised before it is added; embeddings are scaled; the weights of
    /// norms count from 1; the vocabulary's weights are used twice.
    #[must_use]
    pub fn is_gemma(self) -> bool {
        self == Family::Gemma3
    }
}
