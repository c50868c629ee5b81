//! What an attention is, as data: the layer that a cache needs, and the rules of the call.

use std::fmt;

use crate::proto::{ElementType, Place};

/// The form in which an attention was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `com.microsoft.GroupQueryAttention`.
    GroupQueryAttention,
    /// `com.microsoft.MultiHeadAttention`.
    MultiHeadAttention,
    /// ONNX's own `Attention`, from opset 23 on.
    Attention,
    /// Products, a softmax and what lies between them.
    Plain,
}

impl fmt::Display for Form {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::GroupQueryAttention => "GroupQueryAttention",
            Self::MultiHeadAttention => "MultiHeadAttention",
            Self::Attention => "Attention",
            Self::Plain => "plain",
        })
    }
}

/// How queries, keys, values and the output of an attention lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[batch, heads, tokens, head dimension]`.
    HeadsFirst,
    /// `[batch, tokens, heads * head dimension]`.
    Packed,
}

/// How keys and queries are turned to their positions.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// Whether neighbours are turned together, instead of halves.
    pub interleaved: bool,
    /// How many elements of a head are turned.
    pub dims: u32,
    /// The tables, by name.
    pub tables: [String; 2],
    /// Where they lie, if they are weights.
    pub places: [Option<Place>; 2],
}

/// One attention layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Its number.
    pub layer: u32,
    /// The form in which it was found.
    pub form: Form,
    /// The node that it was recognised by.
    pub node: String,
    /// Heads of queries.
    pub num_heads: u32,
    /// Heads of keys and values.
    pub kv_num_heads: u32,
    /// Elements of a head of queries and keys.
    pub head_dim: u32,
    /// Elements of a head of values.
    pub value_dim: u32,
    /// The type of keys and values.
    pub element: ElementType,
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
    /// The limit that scores approach, if they do.
    pub softcap: Option<f32>,
    /// How many positions a token sees back, itself among them.
    pub window: Option<u32>,
    /// A sink logit for each head of queries. Zeros are what onnxruntime calls a smooth softmax.
    pub sinks: Option<Vec<f32>>,
    /// Rotary embedding that was inside of the operator, and stands before it now.
    pub rotary: Option<Rotary>,
    /// How the inputs and the output of `kvtide::Attention` lie.
    pub layout: Layout,
    /// The inputs with cached keys and values. They are dropped.
    pub pasts: [String; 2],
    /// The outputs with all keys and values, where the graph has them. They are dropped.
    pub presents: [Option<String>; 2],
}
