//! What attention is asked to do, and what it answers.

use std::sync::atomic::AtomicBool;

use crate::tensor::host::HostTensor;
use crate::tensor::view::View;

/// How queries see keys. Every field has a default.
#[derive(Clone, Debug)]
pub struct AttendOptions<'a> {
    /// What products are multiplied with; none: one over the root of the head's dimension.
    pub scale: Option<f32>,
    /// A query sees keys up to its own position.
    pub causal: bool,
    /// A query sees so many positions back, its own among them. None: all, or over a cache with a window that one, with its
    /// sinks: over its pages, and over views of what it shows along their sequence. A tensor of its own, as a copy is, has none.
    ///
    /// A query that would see what such a cache has let go of is refused. With a mask and no tree, drafts that were given parents
    /// have the mask alone.
    pub window: Option<u32>,
    /// Positions at the start that this window does not hide.
    pub sinks: u32,
    /// One number for each query head that takes part in the softmax and has no value: finite, or -infinity for a head that has none.
    pub sink_logits: Option<&'a [f32]>,
    /// Bends scores to `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// 32-bit floats that are added to the scores, of a shape that broadcasts to `[batch, query heads, n, keys]`.
    pub mask: Option<HostTensor<'a>>,
    /// The parents of draft trees' nodes, which are the queries and the last keys of each sequence: one tree for all of them, or
    /// one for each, one behind the other. `-1` follows the last key before the tree. A node sees itself, its ancestors and what
    /// came before the tree; positions go by depth.
    ///
    /// Without, pages of a paged cache's sequences bring the trees of their open transactions and steps along, unless there is a mask.
    pub tree: Option<&'a [i32]>,
    /// Where the tree of each sequence begins, and where the last one ends. Its nodes are the last keys then, and need not be as
    /// many as the queries: those are the last ones, what is before the tree a chain.
    pub tree_offsets: Option<&'a [i32]>,
    /// The first slot that each row of the batch may see: what lies before is padding.
    pub starts: Option<&'a [i32]>,
    /// The position of each query, one list for every sequence or one for all; none: the queries are the last tokens.
    pub positions: Option<&'a [i32]>,
    /// Where the queries of each sequence begin in `[tokens, heads, dim]`, and where the last ones end.
    pub query_offsets: Option<&'a [i32]>,
    /// Whether the logarithms of the rows' sums are wanted too: for them a call on a GPU waits for the GPU.
    pub lse: bool,
    /// The most threads to use; none: [`crate::threads()`].
    pub threads: Option<usize>,
    /// Ends the work early, with [`Error::Aborted`](crate::Error::Aborted), once it is true.
    pub stop: Option<&'a AtomicBool>,
}

impl Default for AttendOptions<'_> {
    fn default() -> Self {
        AttendOptions {
            scale: None,
            causal: true,
            window: None,
            sinks: 0,
            sink_logits: None,
            softcap: None,
            mask: None,
            tree: None,
            tree_offsets: None,
            starts: None,
            positions: None,
            query_offsets: None,
            lse: true,
            threads: None,
            stop: None,
        }
    }
}

/// What attention gives.
#[derive(Clone, Debug)]
pub struct Attended {
    /// The output, of the queries' shape (with the values' head dim) and dtype: on their device, where that is one with kernels of its
    /// own; in the host's memory where they are, too.
    pub out: View,
    /// The natural logarithm of each row's sum of exponentials, `[tokens, query heads]`; -infinity where a row sees nothing. Empty
    /// where nobody asked for them.
    pub lse: Vec<f32>,
}
