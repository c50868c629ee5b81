//! The families, and the differences between their blocks. Windows and shared layers are in the `ModelDescription`.

use crate::error::{Error, Result};
use crate::fields::Fields;

/// A family of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama, and models with the same architecture.
    Llama,
    /// Mistral: like Llama, with or without a sliding window.
    Mistral,
    /// Qwen2: projections of queries, keys and values add a bias.
    Qwen2,
    /// Qwen3: each head of queries and keys is normalised.
    Qwen3,
    /// The text model of Gemma 3.
    Gemma3,
}

impl Family {
    /// Returns the family that `model_type` names.
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

    /// True if each head of queries and keys is normalised before its rotation.
    #[must_use]
    pub fn normalises_heads(self) -> bool {
        matches!(self, Family::Qwen3 | Family::Gemma3)
    }

    /// True for Gemma: the outputs of attention and of the feed-forward part are normalised before they are added;
    /// embeddings are scaled; the weights of norms are stored minus 1; the output uses the embedding's weights.
    #[must_use]
    pub fn is_gemma(self) -> bool {
        self == Family::Gemma3
    }
}
