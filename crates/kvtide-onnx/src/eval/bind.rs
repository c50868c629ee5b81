//! The values of a graph's inputs for given sizes: tokens, positions, the mask, and pasts.

use std::collections::HashMap;

use super::Known;
use crate::cross_names::{ENCODER_MASK, ENCODER_STATES, is_cross};
use crate::proto::{Dim, ElementType, Graph, Node, ValueInfo};
use crate::state_names::is_state;

/// Inputs with the number of last tokens whose logits are wanted.
const LOGITS_TO_KEEP: [&str; 2] = ["num_logits_to_keep", "logits_to_keep"];

/// The numbers of sequences, cached tokens and new tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub batch: usize,
    pub past: usize,
    pub new: usize,
}

impl Sizes {
    pub fn total(&self) -> usize {
        self.past + self.new
    }

    /// The number of an encoder's states, which coincides with no other number.
    pub fn frames(&self) -> usize {
        if self.batch == 2 { 11 } else { 13 }
    }
}

/// The roles of a graph's inputs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roles {
    /// Token ids, or embeddings.
    pub tokens: String,
    pub positions: Option<String>,
    pub mask: Option<String>,
    batch: Option<String>,
    new: Option<String>,
    /// Static caches, and the axis of their slots.
    caches: HashMap<String, usize>,
    /// Inputs with a number for each sequence: of cached tokens, or of all tokens.
    counts: HashMap<String, Count>,
    /// Inputs of floats that a step gives for each token. No past is among them, whatever dimensions they have.
    embedded: Vec<String>,
}

/// The meaning of a number for each sequence.
#[derive(Clone, Copy, Debug)]
enum Count {
    Past,
    Total,
}

/// Slots of a static cache behind the last token, if the graph only names their number.
const SPARE: usize = 3;

impl Roles {
    /// The roles of a graph's inputs; `embedded` are those of floats that a step gives for each token.
    pub fn of(graph: &Graph, embedded: &[String]) -> Option<Self> {
        let given = |name: &str| graph.inputs.iter().find(|input| input.name == name);
        let is_tokens = |input: &&ValueInfo| input.element.is_some_and(ElementType::is_int) && rank(input) == Some(2);
        let first = || graph.inputs.iter().find(is_tokens);
        let tokens = given("input_ids").or_else(|| given("inputs_embeds")).or_else(first)?;
        let dim = |index: usize| match tokens.dims.as_ref()?.get(index)? {
            Dim::Name(name) => Some(name.clone()),
            _ => None,
        };
        Some(
            Self {
                tokens: tokens.name.clone(),
                positions: given("position_ids").map(|input| input.name.clone()),
                mask: given("attention_mask").map(|input| input.name.clone()),
                batch: dim(0),
                new: dim(1),
                embedded: embedded.to_vec(),
                ..Self::default()
            }
            .with_caches(graph),
        )
    }

    /// Adds static caches: the inputs that are written by `TensorScatter`, and the numbers that it and the attention need.
    fn with_caches(mut self, graph: &Graph) -> Self {
        let makers: HashMap<&str, &Node> =
            graph.nodes.iter().flat_map(|node| node.outputs.iter().map(move |name| (name.as_str(), node))).collect();
        let count =
            |node: &Node, at: usize| input_behind(graph, &makers, node.input(at)?).map(|input| input.name.clone());
        for node in &graph.nodes {
            if node.is("", "TensorScatter") {
                let cache = node.input(0).and_then(|name| graph.input(name));
                let floats = cache.filter(|cache| cache.element.is_some_and(ElementType::is_float));
                if let Some((cache, rank)) = floats.and_then(|cache| Some((cache, rank(cache)?))) {
                    let axis = node.int("axis").unwrap_or(-2).rem_euclid(rank.max(1) as i64);
                    self.caches.insert(cache.name.clone(), axis as usize);
                    self.counts.extend(count(node, 2).map(|name| (name, Count::Past)));
                }
            } else if node.is("", "Attention") {
                self.counts.extend(count(node, 6).map(|name| (name, Count::Total)));
            }
        }
        self
    }

    /// True for a static cache.
    pub fn is_cache(&self, name: &str) -> bool {
        self.caches.contains_key(name)
    }

    /// The inputs with numbers of tokens of static caches.
    pub fn counts(&self) -> impl Iterator<Item = &str> {
        self.counts.keys().map(String::as_str)
    }

    /// True if an input has the form of cached keys or values: floats or codes, `[batch, heads, past, head dimension]`, or
    /// a pair of them. States of layers have names of their own, and rows that a step gives are known.
    pub fn is_past(&self, input: &ValueInfo) -> bool {
        let is_stored = |element: ElementType| element.is_float() || element.code_bits().is_some();
        let is_whole = input.element.is_some_and(is_stored)
            && rank(input) == Some(4)
            && !is_state(&input.name)
            && !is_cross(&input.name);
        (is_whole || is_pair(input)) && !self.embedded.contains(&input.name)
    }

    fn dims(&self, input: &ValueInfo, sizes: Sizes) -> Option<Vec<usize>> {
        let dims = input.dims.as_ref()?;
        let (is_past, is_positions) = (self.is_past(input), self.positions.as_ref() == Some(&input.name));
        let is_embedded = self.embedded.contains(&input.name);
        let before = usize::from(is_pair(input));
        let is_state = is_state(&input.name);
        let name = input.name.as_str();
        let frames = match name {
            ENCODER_MASK | ENCODER_STATES => Some(1),
            _ => is_cross(name).then_some(2),
        };
        dims.iter()
            .enumerate()
            .map(|(index, dim)| match (index.wrapping_sub(before), dim) {
                (0, Dim::Name(_) | Dim::Unknown) if is_state || is_embedded => Some(sizes.batch),
                (1, Dim::Name(_) | Dim::Unknown) if is_embedded => Some(sizes.new),
                (_, Dim::Name(_) | Dim::Unknown) if self.caches.get(&input.name) == Some(&index) => {
                    Some(sizes.total() + SPARE)
                }
                (0, Dim::Name(_) | Dim::Unknown) if self.counts.contains_key(&input.name) => Some(sizes.batch),
                (2, Dim::Name(_) | Dim::Unknown) if is_past => Some(sizes.past),
                (0, Dim::Name(_) | Dim::Unknown) if frames.is_some() => Some(sizes.batch),
                (axis, Dim::Name(_) | Dim::Unknown) if Some(axis) == frames => Some(sizes.frames()),
                (_, Dim::Size(size)) => usize::try_from(*size).ok(),
                (1, Dim::Name(_)) if self.mask.as_ref() == Some(&input.name) => Some(sizes.total()),
                (_, Dim::Name(name)) if Some(name) == self.new.as_ref() => Some(sizes.new),
                (_, Dim::Name(name)) if Some(name) == self.batch.as_ref() => Some(sizes.batch),
                (0, Dim::Name(_)) if dims.len() > 1 => Some(sizes.batch),
                (1, _) if is_positions && dims.len() == 3 => Some(sizes.batch),
                (2, _) if is_positions => Some(sizes.new),
                (1, _) if [Some(&self.tokens), self.positions.as_ref()].contains(&Some(&input.name)) => Some(sizes.new),
                (0, _) if input.name == self.tokens => Some(sizes.batch),
                _ => None,
            })
            .collect()
    }

    /// The element type, dimensions and numbers of an input, as far as they follow from the sizes.
    pub fn bind(&self, input: &ValueInfo, sizes: Sizes) -> Known {
        let element = input.element;
        let Some(dims) = self.dims(input, sizes) else { return Known { element, ..Known::default() } };
        if self.mask.as_ref() == Some(&input.name)
            || input.name == ENCODER_MASK
            || LOGITS_TO_KEEP.contains(&input.name.as_str())
        {
            return Known::filled(element, dims, |_| 1.);
        }
        if let Some(count) = self.counts.get(&input.name) {
            let number = if matches!(count, Count::Past) { sizes.past } else { sizes.total() };
            return Known::filled(element, dims, |_| number as f64);
        }
        if self.positions.as_ref() == Some(&input.name) {
            return Known::filled(element, dims, |place| (sizes.past + place % sizes.new.max(1)) as f64);
        }
        Known::sized(element, dims)
    }
}

/// The input of integers whose numbers a tensor has.
fn input_behind<'a>(graph: &'a Graph, makers: &HashMap<&str, &'a Node>, name: &'a str) -> Option<&'a ValueInfo> {
    let mut name = name;
    while let Some(node) = makers.get(name) {
        let is_same = ["Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze"].iter().any(|same| node.is("", same));
        name = node.input(0).filter(|_| is_same)?;
    }
    // Ids and positions are of several tokens.
    graph.input(name).filter(|input| input.element.is_some_and(ElementType::is_int) && rank(input) == Some(1))
}

fn rank(input: &ValueInfo) -> Option<usize> {
    Some(input.dims.as_ref()?.len())
}

/// True if an input has cached keys and values in one tensor of floats, `[2, batch, heads, past, head dimension]`.
pub(crate) fn is_pair(input: &ValueInfo) -> bool {
    input.element.is_some_and(ElementType::is_float)
        && matches!(input.dims.as_deref(), Some([Dim::Size(2), _, _, _, _]))
        && !is_state(&input.name)
}
