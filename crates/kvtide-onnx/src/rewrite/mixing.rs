//! Refuses graphs with states that mix tokens by other nodes than kvtide's: a row has the tokens of several sequences, one
//! sequence behind the other.
//!
//! ```text
//! sums over tokens, or along them: ReduceSum, CumSum, Softmax, products, Conv, Scan     refused
//! some of the tokens, or others in their place: Slice, Gather, Concat, Pad              refused before a layer
//! everything that computes a token's numbers from the same token                        kept
//! ```
//! The axes of tokens are those whose size is that of the tokens for both choices of sizes.

use std::collections::HashSet;

use crate::error::{Error, RefusalKind, Result};
use crate::eval::Evaluation;
use crate::find::{Lookup, SIZES, unrecognised};
use crate::proto::{ElementType, Graph, Node};

/// Operators that read all tokens to compute one.
const MIXES: [&str; 15] = [
    "CausalConvWithState",
    "ConvTranspose",
    "GRU",
    "GatedDeltaNet",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "GroupNormalization",
    "InstanceNormalization",
    "LSTM",
    "LinearAttention",
    "Loop",
    "RNN",
    "ReverseSequence",
    "Scan",
    "If",
];

/// Operators that sum or compare along an axis, the last one unless an attribute names another.
const ALONG: [&str; 5] = ["Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "TopK"];

/// Operators that choose, move or add elements.
const MOVES: [&str; 12] = [
    "Concat",
    "Gather",
    "GatherElements",
    "GatherND",
    "Pad",
    "Resize",
    "ScatterElements",
    "ScatterND",
    "Slice",
    "Split",
    "Tile",
    "Trilu",
];

/// The tensors of a rewritten graph.
struct Tokens<'a> {
    lookup: &'a Lookup<'a>,
    sizes: [std::rc::Rc<Evaluation>; 2],
    /// Tensors that depend on token ids or on embeddings.
    dependent: HashSet<&'a str>,
    /// Tensors that kvtide's nodes depend on.
    needed: HashSet<&'a str>,
}

/// Fails if a node mixes tokens. `graph` is sorted. `O(nodes)`.
pub(super) fn check_tokens(lookup: &Lookup<'_>, graph: &Graph) -> Result<()> {
    let mut tokens = Tokens {
        lookup,
        sizes: [lookup.at(SIZES[0])?, lookup.at(SIZES[1])?],
        dependent: graph.inputs.iter().map(|input| input.name.as_str()).collect(),
        needed: HashSet::new(),
    };
    for node in &graph.nodes {
        if node.reads().any(|name| tokens.dependent.contains(name)) {
            tokens.dependent.extend(node.outputs.iter().map(String::as_str));
        }
    }
    for node in graph.nodes.iter().rev() {
        if node.domain == "kvtide" || node.outputs.iter().any(|name| tokens.needed.contains(name.as_str())) {
            tokens.needed.extend(node.reads());
        }
    }
    graph.nodes.iter().filter(|node| node.domain != "kvtide").try_for_each(|node| tokens.check(node))
}

impl Tokens<'_> {
    /// The axes of tokens of a tensor of floats.
    fn axes(&self, name: &str) -> Vec<usize> {
        let [one, other] = [&self.sizes[0], &self.sizes[1]].map(|at| at.get(name));
        let is_hidden = one.element.is_some_and(ElementType::is_float) && self.dependent.contains(name);
        let (Some(one), Some(other), true) = (&one.dims, &other.dims, is_hidden) else { return Vec::new() };
        let of_tokens = |pair: [usize; 2]| {
            pair == SIZES.map(|sizes| sizes.new) || pair == SIZES.map(|sizes| sizes.batch * sizes.new)
        };
        let pairs = one.iter().zip(other).enumerate();
        let found = pairs.filter(|(_, (one, other))| one != other && of_tokens([**one, **other]));
        if one.len() == other.len() { found.map(|(axis, _)| axis).collect() } else { Vec::new() }
    }

    fn rank(&self, name: &str) -> usize {
        self.sizes[0].dims(name).map_or(0, <[_]>::len)
    }

    fn check(&self, node: &Node) -> Result<()> {
        let operator = node.operator.as_str();
        if node.reads().all(|name| self.axes(name).is_empty()) {
            return Ok(());
        }
        let first = node.input(0).unwrap_or_default();
        let axes = self.axes(first);
        let is_mixed = match operator {
            _ if MIXES.contains(&operator) => true,
            "Conv" => !self.is_pointwise(node),
            "MatMul" | "MatMulInteger" | "FusedMatMul" | "Gemm" => self.sums_tokens(node),
            "Einsum" => self.einsum_sums_tokens(node),
            "CumSum" | "CumProd" => self.is_along(node, node.input(1).and_then(|name| self.lookup.scalar(name).ok()?)),
            _ if operator.starts_with("Reduce") || operator.starts_with("Arg") => self.reduces(node),
            _ if ALONG.contains(&operator) => self.is_along(node, Some(node.int("axis").unwrap_or(-1) as f64)),
            "LayerNormalization" | "SimplifiedLayerNormalization" | "RMSNormalization" => {
                let from = self.axis(first, node.int("axis").unwrap_or(-1) as f64);
                from.is_none_or(|from| axes.iter().any(|&axis| axis >= from))
            }
            _ => false,
        };
        if is_mixed {
            return Err(mixed(node));
        }
        let is_before = node.outputs.iter().any(|name| self.needed.contains(name.as_str()));
        if is_before && MOVES.contains(&operator) && self.moves(node) {
            return Err(mixed(node));
        }
        Ok(())
    }

    /// An axis of a tensor, counted from the front.
    fn axis(&self, name: &str, axis: f64) -> Option<usize> {
        let rank = self.rank(name) as f64;
        let axis = if axis < 0. { axis + rank } else { axis };
        (0. ..rank).contains(&axis).then_some(axis as usize)
    }

    /// True if an axis of the first input is one of tokens, or is not known.
    fn is_along(&self, node: &Node, axis: Option<f64>) -> bool {
        let first = node.input(0).unwrap_or_default();
        let axes = self.axes(first);
        !axes.is_empty() && axis.and_then(|axis| self.axis(first, axis)).is_none_or(|axis| axes.contains(&axis))
    }

    /// True if a reduction goes over tokens.
    fn reduces(&self, node: &Node) -> bool {
        let given = match (node.ints("axes"), node.int("axis"), node.input(1)) {
            (Some(axes), ..) => Some(axes.to_vec()),
            (_, Some(axis), _) => Some(vec![axis]),
            (.., Some(name)) => self.sizes[0].get(name).ints(),
            _ => None,
        };
        given
            .filter(|axes| !axes.is_empty())
            .is_none_or(|axes| axes.iter().any(|&axis| self.is_along(node, Some(axis as f64))))
    }

    /// True if a product sums over tokens.
    fn sums_tokens(&self, node: &Node) -> bool {
        let is_turned = |name: &str| node.int(name) == Some(1);
        [("transA", 0usize, 1usize), ("transB", 1, 2)].into_iter().any(|(turned, place, from_end)| {
            let Some(name) = node.input(place) else { return false };
            let from_end = if is_turned(turned) { 3 - from_end } else { from_end };
            let rank = self.rank(name);
            let summed = rank.checked_sub(if rank == 1 { 1 } else { from_end });
            summed.is_some_and(|axis| self.axes(name).contains(&axis))
        })
    }

    /// True if the letter of an axis of tokens is not in the result.
    fn einsum_sums_tokens(&self, node: &Node) -> bool {
        let Some(equation) = node.text("equation") else { return true };
        let Some((given, result)) = equation.split_once("->") else { return true };
        given.split(',').zip(&node.inputs).any(|(letters, name)| {
            let letters: Vec<char> = letters.chars().filter(|letter| !letter.is_whitespace()).collect();
            let axes = self.axes(name);
            !axes.is_empty()
                && (letters.len() != self.rank(name)
                    || axes.iter().any(|&axis| letters.get(axis).is_none_or(|&letter| !result.contains(letter))))
        })
    }

    /// True if a convolution sees one place at a time.
    fn is_pointwise(&self, node: &Node) -> bool {
        let dims = node.input(1).and_then(|weight| self.sizes[0].dims(weight));
        let is_padded = node.ints("pads").is_some_and(|pads| pads.iter().any(|&pad| pad != 0));
        dims.is_some_and(|dims| dims.iter().skip(2).all(|&size| size == 1)) && !is_padded
    }

    /// True if a node chooses or moves tokens.
    fn moves(&self, node: &Node) -> bool {
        let chooses = ["Gather", "GatherElements"].contains(&node.operator.as_str());
        if chooses && self.is_along(node, Some(node.int("axis").unwrap_or(0) as f64)) {
            return true;
        }
        let first = node.input(0).unwrap_or_default();
        if node.operator == "Trilu" {
            return self.axes(first).iter().any(|&axis| axis + 2 >= self.rank(first));
        }
        let is_kept = |name: &String| self.sizes[0].dims(name).is_none() || !self.axes(name).is_empty();
        !node.outputs.iter().filter(|name| !name.is_empty()).all(is_kept)
    }
}

fn mixed(node: &Node) -> Error {
    let reason = "it mixes tokens, which are those of several sequences in a step: only layers with a known state may";
    unrecognised(node, reason).of(RefusalKind::State)
}
