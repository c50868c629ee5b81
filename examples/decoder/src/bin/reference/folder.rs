//! A folder with a model and its expected results.
//!
//! ```text
//! hf/config.json  hf/model.safetensors     the model
//! references.json                          prompts, greedy tokens, batches, rules: integers
//! references.safetensors                   logits, keys and values: floats
//! ```
//!
//! Everything except the model and the prompts may be missing; cases that need it are then skipped.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use decoder::Decoder;
use kvtide_core::model::{LayerKind, ModelDescription};
use serde_json::Value;

use crate::case::Failure;

/// A model and its expected results.
pub struct Reference {
    /// The model's name.
    pub name: String,
    /// The model.
    pub decoder: Decoder,
    /// The prompts by name, the shortest first.
    pub prompts: Vec<(String, Vec<u32>)>,
    /// The whole of `references.json`.
    pub json: Value,
    tensors: HashMap<String, Tensor>,
}

/// Expected results under a window, for a model of full layers.
pub struct Masked {
    /// The name of the masking rule.
    pub rule: String,
    /// The name of the prompt.
    pub prompt: String,
    /// The same model with the window.
    pub model: ModelDescription,
    /// The expected greedy tokens.
    pub greedy: Vec<u32>,
}

impl Reference {
    /// Reads a folder.
    pub fn read(folder: &Path) -> Result<Self, Failure> {
        let decoder = Decoder::read(&folder.join("hf"))?;
        let path = folder.join("references.json");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let json: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let prompts = json["prompts"].as_object().ok_or("references.json has no prompts")?;
        let mut prompts: Vec<_> = prompts
            .iter()
            .map(|(name, prompt)| Ok((name.clone(), tokens(prompt).ok_or(format!("the prompt {name} is not a list"))?)))
            .collect::<Result<_, Failure>>()?;
        prompts.sort_by_key(|(_, prompt)| prompt.len());
        let path = folder.join("references.safetensors");
        let tensors = candle_core::safetensors::load(&path, &Device::Cpu)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let name = json["model"].as_str().unwrap_or("model").to_owned();
        Ok(Reference { name, decoder, prompts, json, tensors })
    }

    /// Returns the model's description.
    pub fn model(&self) -> &ModelDescription {
        &self.decoder.config().model
    }

    /// Returns a prompt by name.
    pub fn prompt(&self, name: &str) -> Option<&[u32]> {
        self.prompts.iter().find(|(found, _)| found == name).map(|(_, prompt)| prompt.as_slice())
    }

    /// Returns the expected greedy tokens after a prompt.
    pub fn greedy(&self, prompt: &str) -> Option<Vec<u32>> {
        tokens(&self.json["greedy"][prompt])
    }

    /// Returns expected floats by name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// True if a layer has a window of its own.
    pub fn slides(&self) -> bool {
        self.model().groups().iter().any(|group| matches!(group.kind, LayerKind::Sliding { .. }))
    }

    /// Returns the results under a masking rule, if the folder has them.
    pub fn masked(&self, rule: &str) -> Result<Option<Masked>, Failure> {
        let found = &self.json["masked"][rule];
        let (Some(greedy), Some(prompt)) = (tokens(&found["greedy"]), found["prompt"].as_str()) else {
            return Ok(None);
        };
        let count = |field: &str| found[field].as_u64().and_then(|count| u32::try_from(count).ok()).unwrap_or(0);
        let kind = LayerKind::Sliding { window: count("window"), sinks: count("sinks") };
        let layers = self.model().layers().iter().map(|layer| layer.with_kind(kind)).collect();
        let model = ModelDescription::new(layers)?.with_attention(*self.model().attention())?;
        Ok(Some(Masked { rule: rule.to_owned(), prompt: prompt.to_owned(), model, greedy }))
    }
}

/// Reads a list of tokens.
pub fn tokens(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|token| u32::try_from(token.as_u64()?).ok()).collect()
}
