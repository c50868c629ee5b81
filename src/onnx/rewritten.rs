//! A rewritten graph: its layers, and its bytes as one model or as subgraphs.

use std::sync::Arc;

use kvtide_onnx::{Layout, Port, Rewritten, Weights};
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result};
use napi_derive::napi;

use super::graph::NativeOnnxGraph;
use super::open_graph::{NativeOnnxPort, OpenGraph, weights};
use crate::border::external_array::ExternalArray;
use crate::border::handle::guard;
use crate::border::refusal::Outcome;
use crate::border::shared;
use crate::border::task::PoolTask;

/// A rewritten graph, and the original graph, from which its weights are read.
pub struct RewrittenGraph {
    pub graph: Arc<OpenGraph>,
    pub rewritten: Rewritten,
}

/// A graph with kvtide's attention operators.
#[napi]
pub struct NativeOnnxRewritten {
    rewritten: Arc<RewrittenGraph>,
}

#[napi(object, object_from_js = false)]
pub struct NativeOnnxLayer {
    pub layer: u32,
    /// `GroupQueryAttention`, `MultiHeadAttention`, `Attention`, `contrib Attention` or `plain`.
    pub form: String,
    pub node: String,
    pub num_heads: u32,
    pub num_kv_heads: u32,
    pub head_dim: u32,
    pub value_head_dim: u32,
    /// True if q, k, v and the output are `[batch, heads, tokens, dim]`; otherwise they are `[batch, tokens, heads *
    /// dim]`.
    pub heads_first: bool,
    /// `f32`, `f16` or `bf16`.
    pub element: String,
    /// The bits of a number in the past, if the graph quantises it: 8 or 4.
    pub past_bits: Option<u32>,
    pub scale: f64,
    pub softcap: Option<f64>,
    pub window: Option<u32>,
    #[napi(ts_type = "Float32Array | undefined")]
    pub sinks: Option<ExternalArray>,
    /// The layer whose keys and values it reads, if it has none of its own.
    pub source: Option<u32>,
    #[napi(ts_type = "Float32Array | undefined")]
    pub alibi_slopes: Option<ExternalArray>,
    /// The graph's former inputs and outputs for keys and values.
    pub pasts: Vec<String>,
    pub presents: Vec<String>,
}

/// A state of a layer.
#[napi(object, object_from_js = false)]
pub struct NativeOnnxState {
    pub layer: u32,
    /// `conv`, `ssm` or `recurrent`.
    pub name: String,
    /// The dimensions without the batch.
    pub shape: Vec<u32>,
    /// `f32`, `f16` or `bf16`.
    pub element: String,
    /// The node by which it was recognised.
    pub node: String,
    /// The graph's former input and output.
    pub past: String,
    pub present: String,
}

/// The findings and changes of a rewrite.
#[napi(object, object_from_js = false)]
pub struct NativeOnnxInspection {
    pub layers: Vec<NativeOnnxLayer>,
    pub states: Vec<NativeOnnxState>,
    pub inputs: Vec<NativeOnnxPort>,
    pub outputs: Vec<NativeOnnxPort>,
    pub dropped_inputs: Vec<String>,
    pub dropped_outputs: Vec<String>,
    pub added_inputs: Vec<String>,
    /// Node counts before and after the rewrite.
    pub nodes: Vec<f64>,
    pub inline_bytes: f64,
    pub external_bytes: f64,
    pub external_files: Vec<String>,
    /// Logits per row, if the graph declares the number.
    pub vocabulary: Option<u32>,
    /// The inspection as readable text.
    pub text: String,
}

/// Rotary tables for short and long sequences, one after the other.
#[napi(object, object_from_js = false)]
pub struct NativeLongRope {
    /// The most tokens of a sequence that uses the first table.
    pub threshold: f64,
    /// A longer sequence adds this to its positions.
    pub offset: f64,
}

/// A subgraph, and the attentions and states to compute after it.
#[napi(object, object_from_js = false)]
pub struct NativeOnnxPart {
    #[napi(ts_type = "Uint8Array")]
    pub bytes: ExternalArray,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub attentions: Vec<NativeOnnxPartAttention>,
    pub states: Vec<NativeOnnxPartState>,
}

/// The tensor names of one attention.
#[napi(object, object_from_js = false)]
pub struct NativeOnnxPartAttention {
    pub layer: u32,
    /// True for an attention over the states of an encoder, which reads no `k` and `v`.
    pub is_crossed: bool,
    pub q: String,
    pub k: String,
    pub v: String,
    pub out: String,
}

/// One node of a layer that keeps a state.
#[napi(object, object_from_js = false)]
pub struct NativeOnnxPartState {
    pub node: String,
    /// `ShortConv`, `LinearAttention` or `StateSpace`.
    pub operator: String,
    pub attributes: Vec<NativeOnnxAttribute>,
    /// The names of its inputs; empty for one that is left out.
    pub inputs: Vec<String>,
    pub output: String,
    /// `f32`, `f16` or `bf16`.
    pub element: String,
}

/// An attribute: a list of numbers, or one.
#[napi(object)]
pub struct NativeOnnxAttribute {
    pub name: String,
    pub values: Vec<f64>,
}

/// A subgraph, written in the background.
pub struct WrittenPart {
    bytes: Vec<u8>,
    inputs: Vec<String>,
    outputs: Vec<String>,
    attentions: Vec<kvtide_onnx::PartAttention>,
    states: Vec<kvtide_onnx::PartState>,
}

impl From<kvtide_onnx::PartState> for NativeOnnxPartState {
    fn from(state: kvtide_onnx::PartState) -> Self {
        let kvtide_onnx::PartState { node, operator, attributes, inputs, output, element } = state;
        let attribute = |(name, values)| NativeOnnxAttribute { name, values };
        NativeOnnxPartState {
            node,
            operator,
            attributes: attributes.into_iter().map(attribute).collect(),
            inputs: inputs.into_iter().map(Option::unwrap_or_default).collect(),
            output,
            element: element.to_string(),
        }
    }
}

impl From<WrittenPart> for NativeOnnxPart {
    fn from(part: WrittenPart) -> Self {
        let attention = |kvtide_onnx::PartAttention { layer, is_crossed, inputs: [q, k, v], output }| {
            NativeOnnxPartAttention { layer, is_crossed, q, k, v, out: output }
        };
        NativeOnnxPart {
            bytes: ExternalArray::bytes(part.bytes),
            inputs: part.inputs,
            outputs: part.outputs,
            attentions: part.attentions.into_iter().map(attention).collect(),
            states: part.states.into_iter().map(NativeOnnxPartState::from).collect(),
        }
    }
}

impl RewrittenGraph {
    fn parts(&self, weights: Weights<'_>) -> Outcome<Vec<WrittenPart>> {
        let source = &self.graph.source.as_ref();
        let part = |part: kvtide_onnx::GraphPart| {
            let bytes = part.model.to_bytes(source, weights)?;
            let kvtide_onnx::GraphPart { inputs, outputs, attentions, states, .. } = part;
            Ok(WrittenPart { bytes, inputs, outputs, attentions, states })
        };
        self.rewritten.parts(source)?.into_iter().map(part).collect()
    }
}

impl NativeOnnxRewritten {
    pub(super) fn of(rewritten: RewrittenGraph) -> Self {
        NativeOnnxRewritten { rewritten: Arc::new(rewritten) }
    }
}

#[napi]
impl NativeOnnxRewritten {
    /// Shares the graph with another thread, which takes it by the returned number.
    #[napi(catch_unwind)]
    pub fn share(&self) -> f64 {
        shared::leave(self.rewritten.clone())
    }

    #[napi(factory)]
    pub fn taken(env: &Env, number: f64) -> Result<Self> {
        guard(env, || Ok(NativeOnnxRewritten { rewritten: shared::take(number)? }))
    }

    #[napi(catch_unwind)]
    pub fn layers(&self) -> Vec<NativeOnnxLayer> {
        self.rewritten.rewritten.layers().iter().map(NativeOnnxLayer::from).collect()
    }

    /// The attentions over the states of an encoder. Empty for a model without an encoder.
    #[napi(catch_unwind)]
    pub fn crossed(&self) -> Vec<NativeOnnxLayer> {
        self.rewritten.rewritten.crossed().iter().map(NativeOnnxLayer::from).collect()
    }

    /// The distance of the numbers in the mask of the encoder that belong to neighbouring states, if these attentions read it.
    #[napi(catch_unwind)]
    pub fn mask_stride(&self) -> Option<u32> {
        self.rewritten.rewritten.mask_stride()
    }

    /// The graph that computes their keys and values of the encoder's states, if the encoder does not give them.
    #[napi(catch_unwind)]
    pub fn crossing(&self) -> Option<NativeOnnxGraph> {
        let model = self.rewritten.rewritten.crossing()?;
        Some(NativeOnnxGraph::of_graph(self.rewritten.graph.part(model.clone())))
    }

    #[napi(catch_unwind)]
    pub fn states(&self) -> Vec<NativeOnnxState> {
        self.rewritten.rewritten.states().iter().map(NativeOnnxState::from).collect()
    }

    /// The most tokens that the tables of its masks and positions have rows for, if there are any.
    #[napi(catch_unwind)]
    pub fn context_length(&self) -> Option<u32> {
        self.rewritten.rewritten.context_length()
    }

    /// The rotary tables that are chosen by the length of a sequence, if there are any.
    #[napi(catch_unwind)]
    pub fn long_rope(&self) -> Option<NativeLongRope> {
        let rope = self.rewritten.rewritten.long_rope()?;
        Some(NativeLongRope { threshold: rope.threshold as f64, offset: rope.offset as f64 })
    }

    #[napi(catch_unwind)]
    pub fn inspect(&self) -> NativeOnnxInspection {
        let found = self.rewritten.rewritten.inspection();
        let ports = |ports: &[Port]| ports.iter().cloned().map(NativeOnnxPort::from).collect();
        NativeOnnxInspection {
            layers: self.layers(),
            states: self.states(),
            inputs: ports(&found.inputs),
            outputs: ports(&found.outputs),
            dropped_inputs: found.dropped_inputs.clone(),
            dropped_outputs: found.dropped_outputs.clone(),
            added_inputs: found.added_inputs.clone(),
            nodes: found.nodes.iter().map(|&nodes| nodes as f64).collect(),
            inline_bytes: found.inline_bytes as f64,
            external_bytes: found.external_bytes as f64,
            external_files: found.external_files.clone(),
            vocabulary: found.vocabulary,
            text: found.to_string(),
        }
    }

    /// The remaining original inputs, and the new ones.
    #[napi(catch_unwind)]
    pub fn inputs(&self) -> Vec<NativeOnnxPort> {
        self.rewritten.rewritten.model().inputs().into_iter().map(NativeOnnxPort::from).collect()
    }

    #[napi(catch_unwind)]
    pub fn outputs(&self) -> Vec<NativeOnnxPort> {
        self.rewritten.rewritten.model().outputs().into_iter().map(NativeOnnxPort::from).collect()
    }

    /// The model with the operator `kvtide::Attention` in it. With `external`, weights are references into that file;
    /// with `embedded`, all weights are inside.
    #[napi(catch_unwind, ts_return_type = "Promise<Uint8Array>")]
    pub fn model(
        &self,
        external: Option<String>,
        embedded: Option<bool>,
    ) -> AsyncTask<PoolTask<Vec<u8>, ExternalArray>> {
        let of = self.rewritten.clone();
        let write = move || {
            let weights = weights(external.as_deref(), embedded.unwrap_or(false));
            Ok(of.rewritten.fused().to_bytes(&of.graph.source.as_ref(), weights)?)
        };
        PoolTask::of(write, ExternalArray::bytes)
    }

    /// The model, split into subgraphs at its attentions.
    #[napi(catch_unwind, ts_return_type = "Promise<Array<NativeOnnxPart>>")]
    pub fn parts(
        &self,
        external: Option<String>,
        embedded: Option<bool>,
    ) -> AsyncTask<PoolTask<Vec<WrittenPart>, Vec<NativeOnnxPart>>> {
        let of = self.rewritten.clone();
        let show = |parts: Vec<WrittenPart>| parts.into_iter().map(NativeOnnxPart::from).collect();
        PoolTask::of(move || of.parts(weights(external.as_deref(), embedded.unwrap_or(false))), show)
    }
}

impl From<&kvtide_onnx::State> for NativeOnnxState {
    fn from(state: &kvtide_onnx::State) -> Self {
        let kvtide_onnx::State { layer, name, shape, element, node, past, present, .. } = state.clone();
        NativeOnnxState { layer, name, shape, element: element.to_string(), node, past, present }
    }
}

impl From<&kvtide_onnx::Layer> for NativeOnnxLayer {
    fn from(layer: &kvtide_onnx::Layer) -> Self {
        NativeOnnxLayer {
            layer: layer.layer,
            form: layer.form.to_string(),
            node: layer.node.clone(),
            num_heads: layer.num_heads,
            num_kv_heads: layer.kv_num_heads,
            head_dim: layer.head_dim,
            value_head_dim: layer.value_dim,
            heads_first: layer.layout == Layout::HeadsFirst,
            element: layer.element.to_string(),
            past_bits: layer.past_bits,
            scale: layer.scale.into(),
            softcap: layer.softcap.map(f64::from),
            window: layer.window,
            sinks: layer.sinks.clone().map(ExternalArray::floats),
            source: layer.source,
            alibi_slopes: layer.alibi_slopes.clone().map(ExternalArray::floats),
            pasts: layer.pasts.to_vec(),
            presents: layer.presents.iter().flatten().cloned().collect(),
        }
    }
}
