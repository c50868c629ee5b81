//! Moves the nodes around an attention into its operator, for a runtime that has this operator: each node costs a call
//! and a tensor.
//!
//! ```text
//! Split -> q, k, v                      the operator reads the packed tensor
//! RotaryEmbedding of q and of k         the operator rotates them, by the tables and the positions of the nodes
//! x * cos + turned x * sin              the same, by a row of cosines and a row of sines for each token
//! Reshape -> Transpose to heads first   the operator reads and writes tokens first
//! ```
//! Nodes around a short convolution are in `short_conv.rs`.
//!
//! Nodes that nothing else reads are dropped. Half floats stay as they are: the runtime rounds between the nodes.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::attention::DOMAIN;
use super::{GraphEdit, short_conv};
use crate::error::Result;
use crate::eval::Evaluation;
use crate::find::{Layer, Layout, SIZES};
use crate::proto::{Attribute, ElementType, Node, ValueInfo};

/// The rotation of queries and keys.
#[derive(Clone, Debug, PartialEq)]
struct Rotation {
    /// Positions, cosines and sines; no positions if there is a row of the others for each token.
    inputs: [String; 3],
    dims: i64,
    interleaved: bool,
}

/// The nodes of a graph, and their sizes.
pub(super) struct Nodes<'a> {
    makers: HashMap<&'a str, &'a Node>,
    pub readers: HashMap<&'a str, Vec<&'a Node>>,
    /// Names of the graph's own inputs and outputs.
    inputs: Vec<String>,
    outputs: Vec<String>,
    sizes: [Rc<Evaluation>; 2],
}

impl<'a> Nodes<'a> {
    pub fn of(edit: &GraphEdit<'_>, nodes: &'a [Node]) -> Result<Self> {
        let (mut makers, mut readers) = (HashMap::new(), HashMap::<_, Vec<_>>::new());
        for node in nodes {
            makers.extend(node.outputs.iter().map(|name| (name.as_str(), node)));
            for name in node.reads() {
                readers.entry(name).or_default().push(node);
            }
        }
        let names = |list: &[ValueInfo]| list.iter().map(|value| value.name.clone()).collect();
        let (inputs, outputs) = (names(&edit.graph.inputs), names(&edit.graph.outputs));
        Ok(Self { makers, readers, inputs, outputs, sizes: [edit.lookup.at(SIZES[0])?, edit.lookup.at(SIZES[1])?] })
    }

    pub fn maker(&self, name: &str, domain: &str, operator: &str) -> Option<&'a Node> {
        self.makers.get(name).copied().filter(|node| node.is(domain, operator))
    }

    /// The node with this operator that is the only reader of a tensor.
    pub fn reader(&self, name: &str, operator: &str) -> Option<&'a Node> {
        match self.readers.get(name)?.as_slice() {
            [node] if node.is("", operator) && !self.is_output(name) => Some(node),
            _ => None,
        }
    }

    /// True for an output of the graph.
    pub fn is_output(&self, name: &str) -> bool {
        self.outputs.iter().any(|output| output == name)
    }

    /// The type of a tensor's numbers.
    pub fn element(&self, name: &str) -> Option<ElementType> {
        self.sizes[0].get(name).element
    }

    /// The number of a tensor's dimensions.
    pub fn rank(&self, name: &str) -> Option<usize> {
        self.sizes[0].dims(name).map(<[usize]>::len)
    }

    /// True if a tensor has these dimensions, given as functions of the number of sequences and of tokens.
    fn has(&self, name: &str, dims: impl Fn(usize, usize) -> Vec<usize>) -> bool {
        let of = |place: usize| dims(SIZES[place].batch, SIZES[place].new);
        (0..2).all(|place| self.sizes[place].dims(name).is_some_and(|found| found == of(place)))
    }

    /// The numbers of a small tensor, if they are the same for all sizes.
    fn ints(&self, name: Option<&str>) -> Option<Vec<i64>> {
        let [one, other] = [0, 1].map(|place: usize| self.sizes[place].get(name?).ints());
        if one == other { one } else { None }
    }

    /// The tensor of which a node takes these elements of the last axis.
    fn sliced(&self, name: &str, from: i64, to: i64, dim: i64) -> Option<&'a str> {
        let node = self.maker(name, "", "Slice")?;
        let list = |place: usize| self.ints(node.input(place));
        let (start, end) = (list(1)?, list(2)?);
        let is_last = list(3).is_some_and(|axes| axes == [-1] || axes == [3]);
        let is_whole = node.input(4).is_none() || list(4)? == [1];
        let is_end = matches!(end[..], [end] if end == to || (to == dim && end > dim) || end == to - dim);
        let is_start = matches!(start[..], [start] if start == from || start == from - dim);
        if is_last && is_whole && is_start && is_end { node.input(0) } else { None }
    }

    /// The two operands of a node, in both orders.
    pub fn operands(&self, name: &str, operator: &str) -> Option<[[&'a str; 2]; 2]> {
        let node = self.maker(name, "", operator)?;
        let (one, other) = (node.input(0)?, node.input(1)?);
        Some([[one, other], [other, one]])
    }

    /// The tensor before a rotation by `RotaryEmbedding`, and the rotation.
    fn embedded(&self, layer: &Layer, name: &str) -> Option<(String, Rotation)> {
        let node = self.maker(name, "com.microsoft", "RotaryEmbedding")?;
        let whole = |name: &str| node.int(name).unwrap_or(0);
        let is_plain = node.float("scale").is_none_or(|scale| scale == 1.) && whole("is_packed_batching") == 0;
        let inputs = [node.input(1)?, node.input(2)?, node.input(3)?].map(str::to_owned);
        // Other positions may be a single number for the whole row.
        if !is_plain || !self.inputs.contains(&inputs[0]) {
            return None;
        }
        let dims = Some(whole("rotary_embedding_dim")).filter(|&dims| dims > 0).unwrap_or(layer.head_dim.into());
        let rotation = Rotation { inputs, dims, interleaved: whole("interleaved") == 1 };
        Some((node.input(0)?.to_owned(), rotation))
    }

    /// The tensor before a rotation that is written as products, and the rotation: of all elements, or of the first ones.
    fn multiplied(&self, layer: &Layer, name: &str) -> Option<(String, Rotation)> {
        let dim = i64::from(layer.head_dim);
        if layer.layout != Layout::HeadsFirst {
            return None;
        }
        if let Some((from, rotation)) = self.turned(name, dim) {
            return Some((from.to_owned(), rotation));
        }
        let node = self.maker(name, "", "Concat").filter(|node| node.inputs.len() == 2 && is_last(node))?;
        let dims = self.sizes[0].dims(node.input(0)?)?.last().map(|&dims| dims as i64)?;
        let (part, rotation) = self.turned(node.input(0)?, dims)?;
        let from = self.sliced(part, 0, dims, dim)?;
        (self.sliced(node.input(1)?, dims, dim, dim)? == from).then(|| (from.to_owned(), rotation))
    }

    /// `x * cos + (-second half of x, first half of x) * sin`
    fn turned(&self, name: &str, dims: i64) -> Option<(&'a str, Rotation)> {
        let half = dims / 2;
        for [straight, turned] in self.operands(name, "Add")? {
            for [from, cos] in self.operands(straight, "Mul")? {
                for [joined, sin] in self.operands(turned, "Mul")? {
                    let Some(node) = self.maker(joined, "", "Concat").filter(|node| is_last(node)) else { continue };
                    let (Some(second), Some(first), None) = (node.input(0), node.input(1), node.input(2)) else {
                        continue;
                    };
                    let second = self.maker(second, "", "Neg").and_then(|node| node.input(0));
                    let halves = [self.sliced(first, 0, half, dims), self.sliced(second?, half, dims, dims)];
                    let by_token = |name| self.has(name, |batch, new| vec![batch, 1, new, dims as usize]);
                    if halves == [Some(from); 2] && by_token(cos) && by_token(sin) {
                        let inputs = [String::new(), cos.to_owned(), sin.to_owned()];
                        return Some((from, Rotation { inputs, dims, interleaved: false }));
                    }
                }
            }
        }
        None
    }

    /// The tensor with tokens before heads that is transposed to a tensor with heads first.
    fn tokens_first(&self, name: &str, heads: u32, dim: u32) -> Option<String> {
        let node = self.maker(name, "", "Transpose").filter(|node| node.ints("perm") == Some(&[0, 2, 1, 3]))?;
        let (heads, dim) = (heads as usize, dim as usize);
        let apart = node.input(0).filter(|name| self.has(name, |batch, new| vec![batch, new, heads, dim]))?;
        let packed = self.maker(apart, "", "Reshape").and_then(|node| node.input(0));
        let packed = packed.filter(|name| self.has(name, |batch, new| vec![batch, new, heads.saturating_mul(dim)]));
        Some(packed.unwrap_or(apart).to_owned())
    }

    /// The packed tensor that an output with heads first becomes.
    fn packed_output(&self, name: &str, layer: &Layer) -> Option<&'a str> {
        let turn = self.reader(name, "Transpose").filter(|node| node.ints("perm") == Some(&[0, 2, 1, 3]))?;
        let shape = self.reader(turn.output(0)?, "Reshape").filter(|node| node.input(0) == turn.output(0))?;
        let width = (layer.num_heads as usize).saturating_mul(layer.value_dim as usize);
        shape.output(0).filter(|name| self.has(name, |batch, new| vec![batch, new, width]))
    }
}

fn is_last(node: &Node) -> bool {
    matches!(node.int("axis"), Some(-1 | 3))
}

impl GraphEdit<'_> {
    /// Replaces each attention, and each short convolution, by one that does the work of the nodes around it.
    pub(super) fn fuse(&mut self, [layers, crossed]: [&[Layer]; 2]) -> Result<()> {
        let before = self.graph.nodes.clone();
        let nodes = Nodes::of(self, &before)?;
        let mut replaced = HashSet::new();
        let is_own = |layer: &&Layer| layer.element == ElementType::F32 && layer.source.is_none();
        for (place, node) in before.iter().enumerate() {
            let made = if node.is(DOMAIN, "Attention") {
                let is_crossed = node.int("crossed") == Some(1);
                let of = if is_crossed { crossed } else { layers };
                let layer = of.iter().find(|layer| node.int("layer") == Some(layer.layer.into())).filter(is_own);
                let fused = if is_crossed { fused_crossed } else { fused };
                layer.and_then(|layer| fused(&nodes, layer, node))
            } else if node.is(DOMAIN, "ShortConv") {
                short_conv::fused(&nodes, node)
            } else {
                None
            };
            let Some(made) = made else { continue };
            let output = made.outputs[0].clone();
            let element = nodes.element(&output).unwrap_or(ElementType::F32);
            self.graph.nodes[place] = made;
            self.declare(&output, &output, element)?;
            replaced.insert(output);
        }
        let is_old = |node: &Node| node.domain != DOMAIN && node.outputs.iter().any(|name| replaced.contains(name));
        self.graph.nodes.retain(|node| !is_old(node));
        Ok(())
    }
}

/// An attention that does the work of the nodes around it; `None` if it cannot do more than `node` does.
fn fused(nodes: &Nodes<'_>, layer: &Layer, node: &Node) -> Option<Node> {
    let [query, key, value, output] = [node.input(0)?, node.input(1)?, node.input(2)?, node.output(0)?];
    let rotated = |name| nodes.embedded(layer, name).or_else(|| nodes.multiplied(layer, name));
    let mut operands = [query, key, value].map(str::to_owned);
    let mut rotation = None;
    if let (Some((query, one)), Some((key, other))) = (rotated(query), rotated(key))
        && one == other
    {
        [operands[0], operands[1]] = [query, key];
        rotation = Some(one);
    }
    let (mut output, mut layout) = (output.to_owned(), layer.layout);
    if let Some((packed, to)) = packed(nodes, layer, &operands, &output) {
        (operands, output, layout) = (packed, to, Layout::Packed);
    }
    let split = nodes.maker(&operands[0], "", "Split").filter(|split| split.outputs == operands);
    let split = split.filter(|split| split.name == format!("kvtide/split.{}", layer.layer));
    let is_packed = split.is_some();
    if let Some(whole) = split.and_then(|split| split.input(0)) {
        operands = [whole.to_owned(), String::new(), String::new()];
    }
    if rotation.is_none() && layout == layer.layout && !is_packed {
        return None;
    }
    let inputs = operands.iter().chain(rotation.iter().flat_map(|rotation| &rotation.inputs));
    let inputs: Vec<&str> = inputs.map(String::as_str).collect();
    let mut made = Node::new(&node.operator, &node.domain, &node.name, &inputs, &[&output]);
    made.attributes = node.attributes.iter().filter(|attribute| attribute.name != "heads_first").cloned().collect();
    made = made.with(Attribute::int("heads_first", (layout == Layout::HeadsFirst).into()));
    if is_packed {
        made = made.with(Attribute::int("packed", 1));
    }
    if let Some(found) = rotation {
        made = made
            .with(Attribute::int("rotary_dim", found.dims))
            .with(Attribute::int("interleaved", found.interleaved.into()));
    }
    Some(made)
}

/// An attention over the states of an encoder with tokens first; `None` if it has them first, or cannot.
fn fused_crossed(nodes: &Nodes<'_>, layer: &Layer, node: &Node) -> Option<Node> {
    if layer.layout == Layout::Packed {
        return None;
    }
    let query = nodes.tokens_first(node.input(0)?, layer.num_heads, layer.head_dim)?;
    let output = nodes.packed_output(node.output(0)?, layer)?;
    let mut made = Node::new(&node.operator, &node.domain, &node.name, &[query.as_str(); 3], &[output]);
    made.attributes = node.attributes.iter().filter(|attribute| attribute.name != "heads_first").cloned().collect();
    Some(made.with(Attribute::int("heads_first", 0)))
}

/// Queries, keys, values and the output with tokens first, if all of them can be.
fn packed(nodes: &Nodes<'_>, layer: &Layer, from: &[String; 3], output: &str) -> Option<([String; 3], String)> {
    let (heads, others, dim) = (layer.num_heads, layer.kv_num_heads, layer.head_dim);
    let packed = [
        nodes.tokens_first(&from[0], heads, dim)?,
        nodes.tokens_first(&from[1], others, dim)?,
        nodes.tokens_first(&from[2], others, layer.value_dim)?,
    ];
    Some((packed, nodes.packed_output(output, layer)?.to_owned()))
}
