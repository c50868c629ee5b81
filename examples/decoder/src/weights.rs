//! A model's weights by name, each checked against the shape from the configuration.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};

/// The names of the body's and the output's weights in a file: a model with images contains its text model.
const PLACES: [(&str, &str); 3] = [
    ("model.", "lm_head.weight"),
    ("language_model.model.", "language_model.lm_head.weight"),
    ("model.language_model.", "lm_head.weight"),
];

/// All weights of a file.
pub(crate) struct Weights {
    tensors: HashMap<String, Tensor>,
    body: &'static str,
    output: &'static str,
}

impl Weights {
    /// Reads a `model.safetensors`.
    pub fn read(path: &Path) -> Result<Self> {
        let tensors = candle_core::safetensors::load(path, &Device::Cpu)
            .map_err(|error| Error::File { path: path.to_owned(), reason: error.to_string() })?;
        let is_there = |body: &str| tensors.contains_key(&format!("{body}embed_tokens.weight"));
        let (body, output) = PLACES.into_iter().find(|(body, _)| is_there(body)).unwrap_or(PLACES[0]);
        Ok(Weights { tensors, body, output })
    }

    /// Returns a weight of the model's body, in 32-bit floats.
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.checked(&format!("{}{name}", self.body), shape)
    }

    /// Returns the weights of the output, which are outside the body.
    pub fn output(&self, shape: &[usize]) -> Result<Tensor> {
        self.checked(self.output, shape)
    }

    fn checked(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let wrong = |problem: String| Error::Weight { name: name.to_owned(), problem };
        let tensor = self.tensors.get(name).ok_or_else(|| wrong("is missing".to_owned()))?;
        if tensor.dims() != shape {
            return Err(wrong(format!("has shape {:?}, expected {shape:?}", tensor.dims())));
        }
        Ok(tensor.to_dtype(DType::F32)?)
    }
}
