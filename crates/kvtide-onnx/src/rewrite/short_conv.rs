//! Moves the nodes around a short convolution into its operator.
//!
//! ```text
//! Transpose -> convolution -> Transpose   the operator reads and writes tokens first
//! x * Sigmoid(x) of its output            the operator applies SiLU
//! ```

use super::fuse::Nodes;
use crate::proto::{Attribute, ElementType, Node};

/// A convolution that does the work of the nodes around it; [`None`] if it cannot do more than `node` does.
pub(super) fn fused(nodes: &Nodes<'_>, node: &Node) -> Option<Node> {
    let (x, mut output) = (node.input(0)?, node.output(0)?);
    let source = turned(nodes.maker(x, "", "Transpose")).filter(|_| node.int("channels_first") == Some(1));
    let (mut is_turned, mut silu) = (false, node.int("silu") == Some(1));
    // SiLU comes before the transposition or behind it.
    loop {
        let behind = turned(nodes.reader(output, "Transpose")).and_then(|node| node.output(0));
        if let (Some(behind), true, false) = (behind, source.is_some(), is_turned) {
            (output, is_turned) = (behind, true);
        } else if let (Some(activated), false) = (activated(nodes, output), silu) {
            (output, silu) = (activated, true);
        } else {
            break;
        }
    }
    if node.output(0) == Some(output) {
        return None;
    }
    let mut made = node.clone();
    made.attributes.retain(|attribute| !["channels_first", "silu"].contains(&attribute.name.as_str()));
    made.inputs[0] = source.filter(|_| is_turned).and_then(|source| source.input(0)).unwrap_or(x).to_owned();
    made.outputs[0] = output.to_owned();
    let first = node.int("channels_first") == Some(1) && !is_turned;
    Some(made.with(Attribute::int("channels_first", first.into())).with(Attribute::int("silu", silu.into())))
}

/// A node that exchanges channels and tokens.
fn turned(node: Option<&Node>) -> Option<&Node> {
    node.filter(|node| node.ints("perm") == Some(&[0, 2, 1]))
}

/// The product of a tensor and its sigmoid, if nothing else reads the tensor. Half floats stay as they are: the runtime
/// rounds between the nodes.
fn activated<'a>(nodes: &Nodes<'a>, name: &str) -> Option<&'a str> {
    let [one, other] = nodes.readers.get(name)?.as_slice() else { return None };
    let (sigmoid, product) = if one.is("", "Sigmoid") { (one, other) } else { (other, one) };
    let gate = sigmoid.output(0).filter(|_| sigmoid.is("", "Sigmoid") && sigmoid.input(0) == Some(name))?;
    let alone = nodes.reader(gate, "Mul").filter(|node| std::ptr::eq(*node, *product))?;
    let reads = [alone.input(0)?, alone.input(1)?];
    let is_float = nodes.element(name) == Some(ElementType::F32) && !nodes.is_output(name);
    (is_float && (reads == [name, gate] || reads == [gate, name])).then(|| alone.output(0)).flatten()
}
