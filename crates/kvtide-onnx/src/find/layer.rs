//! The description of an attention: the layer that a cache needs, and the parameters of the call.

use std::fmt;

use crate::cross_names::is_cross;
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
    /// `com.microsoft.Attention`, with keys and values in one past.
    ContribAttention,
    /// Products, a softmax and the nodes between them.
    Plain,
}

impl fmt::Display for Form {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::GroupQueryAttention => "GroupQueryAttention",
            Self::MultiHeadAttention => "MultiHeadAttention",
            Self::Attention => "Attention",
            Self::ContribAttention => "contrib Attention",
            Self::Plain => "plain",
        })
    }
}

/// The layout of an attention's queries, keys, values and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[batch, heads, tokens, head dimension]`.
    HeadsFirst,
    /// `[batch, tokens, heads * head dimension]`.
    Packed,
}

/// The rotary embedding of queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    /// True if neighbouring elements are rotated together, instead of halves.
    pub interleaved: bool,
    /// Number of elements of a head that are rotated.
    pub dims: u32,
    /// The names of the tables of cosines and sines.
    pub tables: [String; 2],
    /// The places of the tables, if they are weights.
    pub places: [Option<Place>; 2],
}

/// One attention layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// The layer's number.
    pub layer: u32,
    /// The form in which it was found.
    pub form: Form,
    /// The node by which it was recognised.
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
    /// The bits of a number in the past, if the graph quantises it.
    pub past_bits: Option<u32>,
    /// The factor for products of queries and keys.
    pub scale: f32,
    /// The limit that scores approach, if there is one.
    pub softcap: Option<f32>,
    /// Number of positions that a token attends to, including itself.
    pub window: Option<u32>,
    /// Number of tokens that the table of its mask has rows for, if it has one.
    pub context_length: Option<u32>,
    /// A sink logit for each query head. Zeros are what onnxruntime calls a smooth softmax.
    pub sinks: Option<Vec<f32>>,
    /// ALiBi: a slope for each query head.
    pub alibi_slopes: Option<Vec<f32>>,
    /// The rotary embedding that was inside the operator and is a node before it now.
    pub rotary: Option<Rotary>,
    /// The layout of the inputs and the output of `kvtide::Attention`.
    pub layout: Layout,
    /// The earlier layer whose keys and values it reads, if it has none of its own.
    pub source: Option<u32>,
    /// The inputs with cached keys and values, twice the same if it has both. The rewrite drops them.
    pub pasts: [String; 2],
    /// The outputs with all keys and values, if the graph has them. The rewrite drops them.
    pub presents: [Option<String>; 2],
}

impl Layer {
    /// True for an attention over the states of an encoder.
    #[must_use]
    pub fn is_crossed(&self) -> bool {
        is_cross(&self.pasts[0])
    }

    /// A name that no other attention of its graph has.
    pub(crate) fn tag(&self) -> String {
        if self.is_crossed() { format!("cross.{}", self.layer) } else { self.layer.to_string() }
    }
}
