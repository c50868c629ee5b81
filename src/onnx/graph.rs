//! Graphs and their rewritten forms, for JavaScript. Reading, rewriting and writing are background tasks, because a
//! large model takes long.
//!
//! ```text
//! NativeOnnxGraph.open(path) / .of(bytes)     the graph; weights stay in the file
//!   .rewrite(logitRows, windows)              NativeOnnxRewritten
//!     .model(external) / .parts(external)     bytes; with `external`, weights are references into that file
//! ```
//!
//! An open graph keeps its file open and reads weights from it when it writes them, so replacing the file in the
//! meantime changes nothing. Files with weights are checked when a graph is opened: a missing or truncated file is
//! refused before anything is computed.

use std::path::Path;
use std::sync::Arc;

use kvtide_onnx::{ElementType, Options, Rewritten};
use kvtide_tensor::DType;
use kvtide_tensor::linear::{BlockWeights, PackedWeights};
use kvtide_tensor::runtime::Budget;
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result};
use napi_derive::napi;

use super::open_graph::{NativeOnnxPort, OpenGraph, weights};
use super::rewritten::{NativeOnnxRewritten, RewrittenGraph};
use super::shared::ELEMENTS;
use crate::border::argument::{ArrayArg, positive};
use crate::border::external_array::ExternalArray;
use crate::border::handle::guard;
use crate::border::refusal::Outcome;
use crate::border::shared;
use crate::border::task::PoolTask;

/// A parsed graph. Its weights have not been read.
#[napi]
pub struct NativeOnnxGraph {
    graph: Arc<OpenGraph>,
}

/// A file with weights, relative to the model's folder, and the number of its bytes that are used.
#[napi(object, object_from_js = false)]
pub struct NativeOnnxFile {
    pub file: String,
    pub bytes: f64,
}

#[napi]
impl NativeOnnxGraph {
    /// `level` replaces the accuracy level of products with weights of 4 bits, here and in `of`.
    #[napi(catch_unwind, ts_return_type = "Promise<NativeOnnxGraph>")]
    pub fn open(path: String, level: Option<u8>) -> AsyncTask<PoolTask<OpenGraph, NativeOnnxGraph>> {
        PoolTask::of(move || OpenGraph::open(Path::new(&path), level), NativeOnnxGraph::of_graph)
    }

    /// Parses a copy of the bytes.
    #[napi(ts_return_type = "Promise<NativeOnnxGraph>")]
    pub fn of(
        env: &Env,
        bytes: ArrayArg,
        level: Option<u8>,
    ) -> Result<AsyncTask<PoolTask<OpenGraph, NativeOnnxGraph>>> {
        guard(env, || {
            let given = bytes.memory("model")?.bytes();
            let mut copy = Vec::new();
            let refused = |_| Budget::process().refusal(given.len() as u64);
            copy.try_reserve_exact(given.len()).map_err(refused)?;
            copy.extend_from_slice(given);
            Ok(PoolTask::of(move || OpenGraph::read(Arc::new(copy), None, level), NativeOnnxGraph::of_graph))
        })
    }

    /// Shares the graph with another thread, which takes it by the returned number.
    #[napi(catch_unwind)]
    pub fn share(&self) -> f64 {
        shared::leave(self.graph.clone())
    }

    #[napi(factory)]
    pub fn taken(env: &Env, number: f64) -> Result<Self> {
        guard(env, || Ok(NativeOnnxGraph { graph: shared::take(number)? }))
    }

    pub(super) fn of_graph(graph: OpenGraph) -> Self {
        NativeOnnxGraph { graph: Arc::new(graph) }
    }

    /// The path that it was opened from; `None` for a graph from bytes.
    #[napi(catch_unwind, getter)]
    pub fn path(&self) -> Option<String> {
        self.graph.path.as_ref().map(|path| path.display().to_string())
    }

    #[napi(catch_unwind)]
    pub fn inputs(&self) -> Vec<NativeOnnxPort> {
        self.graph.model.inputs().into_iter().map(NativeOnnxPort::from).collect()
    }

    #[napi(catch_unwind)]
    pub fn outputs(&self) -> Vec<NativeOnnxPort> {
        self.graph.model.outputs().into_iter().map(NativeOnnxPort::from).collect()
    }

    /// The number of rows of the graph's position tables, if it has any: the most tokens that it supports.
    #[napi(catch_unwind)]
    pub fn context_length(&self) -> Option<f64> {
        self.graph.model.context_length().map(|rows| rows as f64)
    }

    #[napi(catch_unwind)]
    pub fn external_files(&self) -> Vec<NativeOnnxFile> {
        let files = self.graph.files.iter();
        files.map(|(file, bytes)| NativeOnnxFile { file: file.clone(), bytes: *bytes as f64 }).collect()
    }

    /// The unmodified model with its weights. With `external`, the weights inside the model become references into that
    /// file; with `embedded`, all weights are inside.
    #[napi(catch_unwind, ts_return_type = "Promise<Uint8Array>")]
    pub fn model(
        &self,
        external: Option<String>,
        embedded: Option<bool>,
    ) -> AsyncTask<PoolTask<Vec<u8>, ExternalArray>> {
        let graph = self.graph.clone();
        let embedded = embedded.unwrap_or(false);
        let write = move || Ok(graph.model.to_bytes(&graph.source.as_ref(), weights(external.as_deref(), embedded))?);
        PoolTask::of(write, ExternalArray::bytes)
    }

    /// Bytes of its weights, which tell models with equal nodes apart.
    #[napi(catch_unwind, ts_return_type = "Promise<Uint8Array>")]
    pub fn samples(&self) -> AsyncTask<PoolTask<Vec<u8>, ExternalArray>> {
        let graph = self.graph.clone();
        PoolTask::of(move || Ok(graph.model.samples(&graph.source.as_ref())?), ExternalArray::bytes)
    }

    /// Bytes to append to the model's own. The model then also returns those rows of these outputs that its input
    /// `kvtide.new_rows` names.
    #[napi(ts_return_type = "Uint8Array")]
    pub fn new_rows_suffix(&self, env: &Env, presents: Vec<String>) -> Result<ExternalArray> {
        guard(env, || {
            let names: Vec<&str> = presents.iter().map(String::as_str).collect();
            Ok(ExternalArray::bytes(self.graph.model.new_rows_suffix(&names)?))
        })
    }

    /// Windows as a config declares them, one for each layer; `null` where one has none. `embedded` has the inputs that
    /// come from a model of embeddings.
    #[napi(ts_return_type = "Promise<NativeOnnxRewritten>")]
    pub fn rewrite(
        &self,
        env: &Env,
        logit_rows: bool,
        windows: Option<Vec<Option<f64>>>,
        embedded: Option<Vec<String>>,
    ) -> Result<AsyncTask<PoolTask<RewrittenGraph, NativeOnnxRewritten>>> {
        let graph = self.graph.clone();
        guard(env, || {
            let window = |window: Option<f64>| window.map(|window| positive("windows", window)).transpose();
            let windows = windows.map(|windows| windows.into_iter().map(window).collect::<Outcome<_>>()).transpose()?;
            let embedded = embedded.unwrap_or_default();
            let mut packed_products = Vec::new();
            for (element, dtype) in ELEMENTS {
                // onnxruntime keeps weights of a model that has no file. It packs floats too, and frees them then.
                let is_kept_twice = dtype == DType::F32 && graph.path.is_none();
                if !is_kept_twice && PackedWeights::is_fast(dtype)? {
                    packed_products.push(ElementType(element));
                }
            }
            let block_products = BlockWeights::is_fast()?;
            let options = Options { logit_rows, windows, embedded, block_products, packed_products };
            let rewrite = move || {
                let rewritten = Rewritten::new(&graph.source.as_ref(), &graph.model, &options)?;
                Ok(RewrittenGraph { graph, rewritten })
            };
            Ok(PoolTask::of(rewrite, NativeOnnxRewritten::of))
        })
    }
}
