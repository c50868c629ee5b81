//! Multiplies the two products of a gated layer in one node, with the activation between them.
//!
//! ```text
//! gate = MatMulNBits(rows, ..)    product = MatMulNBits(rows, ..)        of kvtide
//! Mul(Mul(gate, Sigmoid(gate)), product)      -> kvtide::MatMulNBits(rows, .., the gate's, activation 1)
//! Mul(Gelu(gate, by tanh), product)           -> the same, activation 2
//! ```
//! Rows are quantised once, and three or four tensors are not written.

use super::GraphEdit;
use super::attention::DOMAIN;
use super::fuse::Nodes;
use crate::error::Result;
use crate::proto::{Attribute, Node};

/// The attributes that both products share.
const SAME: [&str; 4] = ["K", "N", "block_size", "accuracy_level"];

const SILU: i64 = 1;
const GELU_TANH: i64 = 2;

impl GraphEdit<'_> {
    /// Replaces products of activated products. O(graph).
    pub(super) fn gate_products(&mut self) -> Result<()> {
        let nodes = Nodes::of(self, &self.graph.nodes)?;
        let products = self.graph.nodes.iter().enumerate();
        let found: Vec<_> = products.filter_map(|(place, node)| Some((place, [gated(&nodes, node)?]))).collect();
        self.replace_nodes(found);
        Ok(())
    }
}

/// The node that gives the same as a product of an activated product.
fn gated(nodes: &Nodes<'_>, node: &Node) -> Option<Node> {
    let output = node.output(0)?;
    nodes.operands(output, "Mul")?.into_iter().find_map(|[bent, product]| {
        let (activation, gate) = activated(nodes, bent)?;
        let [gate, product] = [gate, product].map(|name| nodes.maker(name, DOMAIN, "MatMulNBits"));
        let (gate, product) = (gate?, product?);
        let is_same = |name: &str| gate.int(name) == product.int(name);
        let is_pair = gate.input(0) == product.input(0)
            && SAME.into_iter().all(is_same)
            && gate.input(3).is_some() == product.input(3).is_some()
            && has_readers(nodes, product.output(0)?, 1);
        if !is_pair || gate.output(0) == product.output(0) {
            return None;
        }
        let weight = |node: &'_ Node| [1, 2, 3].map(|place| node.input(place).unwrap_or_default().to_owned());
        let [codes, scales, zeros] = weight(product);
        let [gate_codes, gate_scales, gate_zeros] = weight(gate);
        let inputs = [product.input(0)?, &codes, &scales, &zeros, &gate_codes, &gate_scales, &gate_zeros];
        let made = Node::new("MatMulNBits", DOMAIN, &node.name, &inputs, &[output]);
        let same = SAME.into_iter().filter_map(|name| Some((name, product.int(name)?)));
        let attributes = same.chain([("activation", activation)]);
        Some(attributes.fold(made, |made, (name, value)| made.with(Attribute::int(name, value))))
    })
}

/// The activation that makes a tensor, and the tensor before it, if nothing else reads what is between them.
fn activated<'a>(nodes: &Nodes<'a>, bent: &str) -> Option<(i64, &'a str)> {
    if !has_readers(nodes, bent, 1) {
        return None;
    }
    if let Some(gelu) = nodes.maker(bent, "", "Gelu") {
        let is_tanh = gelu.text("approximate") == Some("tanh");
        let gate = gelu.input(0)?;
        return (is_tanh && has_readers(nodes, gate, 1)).then_some((GELU_TANH, gate));
    }
    nodes.operands(bent, "Mul")?.into_iter().find_map(|[gate, factor]| {
        let sigmoid = nodes.maker(factor, "", "Sigmoid")?;
        let is_alone = has_readers(nodes, gate, 2) && has_readers(nodes, factor, 1);
        (is_alone && sigmoid.input(0) == Some(gate)).then_some((SILU, gate))
    })
}

/// True if so many nodes read a tensor, and no output of the graph is this tensor.
fn has_readers(nodes: &Nodes<'_>, name: &str, count: usize) -> bool {
    !nodes.is_output(name) && nodes.readers.get(name).is_some_and(|readers| readers.len() == count)
}
