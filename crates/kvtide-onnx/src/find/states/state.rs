//! The description of a state: the tensor that a cache keeps for each sequence.

use std::fmt;

use crate::proto::ElementType;

/// The form in which a layer with a state was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateForm {
    /// A `Concat` of the last columns and the new ones, a depthwise `Conv`, and a `Slice`.
    Convolution,
    /// `CausalConvWithState`, of onnxruntime or of ONNX.
    CausalConvWithState,
    /// `LinearAttention`, of onnxruntime or of ONNX.
    LinearAttention,
    /// A `Scan` over the tokens.
    Scan,
}

impl fmt::Display for StateForm {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Convolution => "convolution",
            Self::CausalConvWithState => "CausalConvWithState",
            Self::LinearAttention => "LinearAttention",
            Self::Scan => "Scan",
        })
    }
}

/// One state of a layer: a tensor of a fixed size for each sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The layer's number, counted like [`Layer::layer`](crate::Layer::layer).
    pub layer: u32,
    /// The layer's number in the names of the graph.
    pub number: u32,
    /// The tensor: `conv`, `ssm` or `recurrent`.
    pub name: String,
    /// The input with the state before a call. The rewrite drops it.
    pub past: String,
    /// The output with the state after it. The rewrite drops it.
    pub present: String,
    /// The dimensions without the batch.
    pub shape: Vec<u32>,
    /// The type of the numbers.
    pub element: ElementType,
    /// The form in which its layer was found.
    pub form: StateForm,
    /// The node by which its layer was recognised.
    pub node: String,
}
