//! Multiplies rows with weights of floats and halves by kvtide's operators: packed, or where the graph has them.
//!
//! ```text
//! MatMul(rows, weight)                    -> kvtide::PackedMatMul(rows, weight)
//! MatMul(rows, Transpose(weight))         -> kvtide::PackedMatMul(rows, weight, transB)
//! Gemm(rows, weight, bias)                -> kvtide::PackedMatMul(rows, weight), Add(bias)
//! MatMul(rows, weight) of halves          -> Cast(rows), kvtide::PackedMatMul(rows, weight), Cast
//! MatMul(rows, weight of embeddings)      -> kvtide::MatMul(rows, weight), in the head
//! ```
//! A weight that embeddings are read from too is not packed: what is packed stays in memory beside it, 671 MB for 262,144
//! tokens of 640 floats. The head multiplies few rows, and reading the weight as it is takes no longer.
//!
//! Weights of 16 bits are widened to floats by onnxruntime on a CPU when it loads the graph: twice the memory, and twice the
//! time of a generated token, which is that of reading all weights once. It computes almost all other nodes in floats too,
//! with a Cast before and behind each: of two that follow each other, it drops those whose names say that nothing is lost.

use std::collections::{HashMap, HashSet};

use super::GraphEdit;
use super::attention::{DOMAIN, cast_node};
use super::blocks::biased;
use super::fuse::Nodes;
use super::logits::CHOSEN;
use super::positions::dependents;
use crate::error::Result;
use crate::proto::{Attribute, ElementType, Node, Tensor};

/// The name of a Cast begins so, if onnxruntime has inserted it. It drops such a Cast and the opposite one behind it.
const FREE_CAST: &str = "InsertedPrecisionFreeCast_";

/// The fewest columns of a weight that is packed: panels have 32, and the rest of the last one is padding.
const COLUMNS_MIN: u64 = 16;

/// The weight of a product.
struct Weight<'a> {
    name: &'a str,
    element: ElementType,
    /// True if its rows are the columns of the product.
    is_transposed: bool,
    /// True if no other node reads it.
    is_own: bool,
    columns: u64,
}

impl GraphEdit<'_> {
    /// Replaces the products of chosen rows with weights of floats and halves, and those of all rows with weights of the types
    /// `packed` that nothing else reads. O(graph).
    pub(super) fn multiply_floats(&mut self, packed: &[ElementType]) -> Result<()> {
        let nodes = Nodes::of(self, &self.graph.nodes)?;
        let mut chosen = dependents(&self.graph.nodes, &HashSet::from([CHOSEN.to_owned()]));
        chosen.insert(CHOSEN.to_owned());
        let is_chosen = |node: &Node| node.input(0).is_some_and(|rows| chosen.contains(rows));
        let weights = self.graph.initializers.iter().map(|weight| (weight.name.as_str(), weight)).collect();
        let product = |(place, node): (usize, &Node)| {
            let weight = weight_of(&nodes, &weights, node)?;
            let is_packed = weight.is_own && weight.columns >= COLUMNS_MIN && packed.contains(&weight.element);
            if is_packed || is_chosen(node) { Some((place, product_of(node, &weight, is_packed)?)) } else { None }
        };
        let found: Vec<_> = self.graph.nodes.iter().enumerate().filter_map(product).collect();
        self.replace_nodes(found);
        Ok(())
    }
}

/// The weight of a product that kvtide computes.
fn weight_of<'a>(nodes: &Nodes<'a>, weights: &HashMap<&str, &'a Tensor>, node: &'a Node) -> Option<Weight<'a>> {
    let is_set = |name: &str| node.int(name) == Some(1);
    let is_one = |name: &str| node.float(name).is_none_or(|factor| factor == 1.);
    let is_gemm = node.is("", "Gemm") && !is_set("transA") && is_one("alpha") && is_one("beta");
    if !is_gemm && !node.is("", "MatMul") {
        return None;
    }
    let (mut name, mut is_transposed) = (node.input(1)?, is_gemm && is_set("transB"));
    let is_read_once = |name: &str| nodes.readers.get(name).is_some_and(|readers| readers.len() == 1);
    let mut is_own = is_read_once(name);
    if let Some(turn) = nodes.maker(name, "", "Transpose")
        && turn.ints("perm").is_none_or(|perm| perm == [1, 0])
    {
        (name, is_transposed) = (turn.input(0)?, !is_transposed);
        is_own = is_own && is_read_once(name);
    }
    let weight = weights.get(name)?;
    let is_float = [ElementType::F32, ElementType::F16, ElementType::BF16].contains(&weight.element);
    let &[rows, columns] = &weight.dims[..] else { return None };
    let columns = if is_transposed { rows } else { columns };
    is_float.then_some(Weight { name, element: weight.element, is_transposed, is_own, columns })
}

/// The nodes that give the same as a product with a weight.
fn product_of(node: &Node, weight: &Weight<'_>, is_packed: bool) -> Option<Vec<Node>> {
    let (rows, output) = (node.input(0)?, node.output(0)?);
    let operator = if is_packed { "PackedMatMul" } else { "MatMul" };
    let product = |rows: &str, output: &str| {
        let made = Node::new(operator, DOMAIN, &node.name, &[rows, weight.name], &[output]);
        made.with(Attribute::int("transB", weight.is_transposed.into()))
    };
    if !is_packed || weight.element == ElementType::F32 {
        return Some(biased(output, node.input(2), |output| product(rows, output)));
    }
    let [floats, products] = ["rows", "products"].map(|of| format!("{output} {of} in floats"));
    let cast = |from: &str, to: &str, element| cast_node(&format!("{FREE_CAST}{to}"), from, to, element);
    let last = |output: &str| cast(&products, output, weight.element);
    let mut nodes = vec![cast(rows, &floats, ElementType::F32), product(&floats, &products)];
    nodes.extend(biased(output, node.input(2), last));
    Some(nodes)
}
