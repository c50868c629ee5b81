//! An open graph: the model without its weights, and the source that its weights are read from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvtide_core::{Code, Error, details};
use kvtide_onnx::{FileSource, Model, Port, Source, Weights};
use kvtide_tensor::runtime::Budget;
use napi_derive::napi;

use crate::border::refusal::{Outcome, Refusal};

impl From<kvtide_onnx::Error> for Refusal {
    fn from(error: kvtide_onnx::Error) -> Self {
        use kvtide_onnx::Error as E;
        let message = error.to_string();
        let (code, details) = match error {
            E::Unrecognised { node, operator, reason, kind } => (
                Code::UnsupportedGraph,
                details![node: node, operator: operator, reason: reason, kind: kind.name().to_string()],
            ),
            E::Memory { bytes } => return Budget::process().refusal(bytes).into(),
            E::Read { offset, length, reason } => (
                Code::InvalidGraph,
                details![offset: offset, expected: format!("{length} bytes that can be read ({reason})")],
            ),
            E::Malformed { offset, expected, .. } => (Code::InvalidGraph, details![offset: offset, expected: expected]),
            E::TooLarge { offset, limit } => {
                let expected = format!("a graph of at most {limit} bytes without its weights");
                (Code::InvalidGraph, details![offset: offset, expected: expected])
            }
            E::Tensor { name, offset, expected } => {
                (Code::InvalidGraph, details![tensor: name, offset: offset, expected: expected])
            }
            E::Weights { file, tensor, expected } => {
                (Code::InvalidGraph, details![file: file, tensor: tensor, expected: expected])
            }
            E::Graph { node, expected, .. } => (Code::InvalidGraph, details![node: node, expected: expected]),
        };
        Refusal { code, message, details }
    }
}

/// A parsed model, and the source of its weights.
pub struct OpenGraph {
    pub source: Arc<dyn Source + Send + Sync>,
    pub model: Model,
    pub path: Option<PathBuf>,
    /// The files with weights, and the number of bytes of each that are used.
    pub files: Vec<(String, u64)>,
}

impl OpenGraph {
    /// `level` replaces the accuracy level of products with weights of 4 bits.
    pub fn open(path: &Path, level: Option<u8>) -> Outcome<Self> {
        let wrong = |expected| Error::argument("model", path.display().to_string(), expected);
        if path.is_dir() {
            return Err(wrong("the path of an ONNX file, not of a folder".into()).into());
        }
        let source = FileSource::open(path).map_err(|error| wrong(format!("a file that can be read ({error})")))?;
        Self::read(Arc::new(source), Some(path.to_owned()), level).map_err(|refusal| named(refusal, path))
    }

    pub fn read(source: Arc<dyn Source + Send + Sync>, path: Option<PathBuf>, level: Option<u8>) -> Outcome<Self> {
        let mut model = Model::read(&source.as_ref())?;
        if let Some(split) = model.split_pasts(&source.as_ref())? {
            model = split;
        }
        if let Some(level) = level {
            model.set_accuracy_level(level);
        }
        let files = model.check_weights(&source.as_ref())?;
        Ok(OpenGraph { source, model, path, files })
    }

    /// A model with weights of this one.
    pub fn part(&self, model: Model) -> Self {
        let (source, path, files) = (self.source.clone(), self.path.clone(), self.files.clone());
        OpenGraph { source, model, path, files }
    }
}

/// Adds the model's file to an error, unless the error is about another file.
fn named(mut refusal: Refusal, path: &Path) -> Refusal {
    if refusal.code == Code::InvalidGraph && refusal.details.iter().all(|detail| detail.name != "file") {
        refusal.message = format!("{}: {}", path.display(), refusal.message);
        refusal.details.extend(details![file: path.display().to_string()]);
    }
    refusal
}

/// An input or output. Its dimensions are sizes, names, or `?`.
#[napi(object, object_from_js = false)]
pub struct NativeOnnxPort {
    pub name: String,
    /// `f32`, `i64`, ..; empty if the graph does not say.
    pub element: String,
    pub dims: Vec<String>,
}

impl From<Port> for NativeOnnxPort {
    fn from(Port { name, element, dims }: Port) -> Self {
        NativeOnnxPort { name, element, dims }
    }
}

/// Chooses how weights are written: as references into a file, unchanged, or all inside the model.
pub(super) fn weights(external: Option<&str>, embedded: bool) -> Weights<'_> {
    let inside = if embedded { Weights::Embedded } else { Weights::Inline };
    external.map_or(inside, Weights::External)
}
