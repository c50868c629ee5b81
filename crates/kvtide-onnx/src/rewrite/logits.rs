//! Computes logits of chosen rows only, mostly of the last ones. Tensors before the head still have one row for each
//! token.
//!
//! ```text
//! rows of all tokens -> last one, or as many as an input says -> norm, product, scale, cap -> logits    the source
//! rows of all tokens -> those of logit_rows                   -> norm, product, scale, cap -> logits    rewritten
//! ```
//! Nodes that choose rows are dropped: a graph that returned the last row only returns any row.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::GraphEdit;
use super::positions::dependents;
use crate::error::{Error, RefusalKind, Result};
use crate::eval::{Evaluation, Known, Sizes, count};
use crate::find::{SIZES, unrecognised};
use crate::proto::{Attribute, Dim, ElementType, Node, Tensor, ValueInfo};

/// The input with the rows that go through the head, counted over all tokens of the call.
pub(super) const ROWS: &str = "logit_rows";

/// The tensor with the chosen rows.
pub(super) const CHOSEN: &str = "kvtide/chosen";

/// The rows of this many tokens of one sequence show which of them a graph chooses.
const SHOWN: Sizes = Sizes { batch: 1, past: 4, new: 3 };

/// Products of rows with weights.
const PRODUCTS: [&str; 10] = [
    "MatMul",
    "FusedMatMul",
    "Gemm",
    "MatMulNBits",
    "MatMulBnb4",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "QLinearMatMul",
    "MatMulFpQ4",
];

/// Operators that compute each row from the same row. `DynamicQuantizeLinear` has one scale for all rows that it is given.
const BY_ROW: [&str; 21] = [
    "Identity",
    "Abs",
    "Cast",
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Mod",
    "Neg",
    "Tanh",
    "Sigmoid",
    "Clip",
    "Min",
    "Max",
    "Where",
    "QuantizeLinear",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "LayerNormalization",
    "SimplifiedLayerNormalization",
    "RMSNormalization",
];

/// Operators that change the order of dimensions or rows, and compute nothing.
const MOVES: [&str; 11] = [
    "Gather",
    "GatherND",
    "GatherElements",
    "Slice",
    "Squeeze",
    "Unsqueeze",
    "Reshape",
    "Flatten",
    "Transpose",
    "Split",
    "ReverseSequence",
];

/// Operators among them that may change the order of rows and keep the dimensions.
const REORDERS: [&str; 5] = ["Gather", "GatherND", "GatherElements", "Slice", "ReverseSequence"];

/// The head of a graph: the nodes between a tensor with a row for each token and the logits.
struct Head {
    /// The tensor with a row for each token.
    rows: String,
    /// The tensors from `rows` to the logits, each computed from the one before, and the nodes that compute them.
    path: Vec<(usize, String)>,
}

impl GraphEdit<'_> {
    /// Adds a `Gather` before the head, instead of the nodes of the graph that choose rows.
    pub(super) fn choose_rows(&mut self) -> Result<()> {
        let named = self.graph.outputs.iter().position(|output| output.name == "logits");
        let Some(at) = named.or((self.graph.outputs.len() == 1).then_some(0)) else {
            return Err(refused("logits", "the graph has no output of this name"));
        };
        let name = self.graph.outputs[at].name.clone();
        let head = self.head(&name)?;
        self.check_rows(&head)?;
        let evaluation = self.lookup.at(SIZES[0])?;
        let width = evaluation.dims(&name).and_then(|dims| dims.last().copied());
        let gather = Node::new("Gather", "", CHOSEN, &[&head.rows, ROWS], &[CHOSEN]);
        let mut added = vec![gather.with(Attribute::int("axis", 1))];
        let mut names = HashMap::from([(head.rows.clone(), CHOSEN.to_owned())]);
        let mut is_flat = false;
        let on_path: HashMap<usize, &String> = head.path.iter().map(|(index, to)| (*index, to)).collect();
        for index in self.between(&head)? {
            let node = &self.graph.nodes[index];
            if let Some(&to) = on_path.get(&index)
                && MOVES.contains(&node.operator.as_str())
            {
                let from = names.get(node.input(0).unwrap_or_default()).cloned();
                names.insert(to.clone(), from.ok_or_else(|| unrecognised(node, "it does not read the rows"))?);
                continue;
            }
            let mut copy = node.clone();
            // A Gemm has rows of two dimensions only.
            if node.operator == "Gemm" && !is_flat {
                is_flat = true;
                let from = names.get(node.input(0).unwrap_or_default()).cloned().unwrap_or_default();
                let columns = node.input(0).and_then(|name| evaluation.dims(name)).and_then(|dims| dims.last());
                let columns = *columns.ok_or_else(|| unrecognised(node, "the width of its rows is not known"))?;
                let shape = format!("{from} without a batch");
                let sizes = Tensor::of_ints(&shape, &[2], &[-1, columns as i64]);
                self.graph.initializers.push(sizes);
                let flat = format!("{from}, flat");
                added.push(Node::new("Reshape", "", &flat, &[&from, &shape], &[&flat]));
                names.insert(node.input(0).unwrap_or_default().to_owned(), flat);
            }
            for to in node.outputs.iter().filter(|to| !to.is_empty()) {
                names.insert(to.clone(), format!("kvtide/chosen {to}"));
            }
            let renamed: HashMap<&str, &str> = names.iter().map(|(from, to)| (from.as_str(), to.as_str())).collect();
            copy.rename(&renamed);
            copy.name = format!("kvtide/chosen {}", node.called());
            added.push(copy);
        }
        let last = names.get(&name).cloned().unwrap_or_default();
        if is_flat {
            let shape = format!("{name} of a batch");
            let width = width.ok_or_else(|| refused(&name, "its last dimension is not known"))?;
            let sizes = Tensor::of_ints(&shape, &[3], &[1, -1, width as i64]);
            self.graph.initializers.push(sizes);
            added.push(Node::new("Reshape", "", &shape, &[&last, &shape], &[&name]));
        } else {
            let renamed = HashMap::from([(last.as_str(), name.as_str())]);
            added.iter_mut().for_each(|node| node.rename(&renamed));
        }
        self.graph.nodes.retain(|node| !node.outputs.contains(&name));
        self.graph.nodes.extend(added);
        self.graph.inputs.push(ValueInfo::new(ROWS, ElementType::I64, Some(&[Dim::Name("rows".into())])));
        let output = &self.graph.outputs[at];
        let element = output.element.or(evaluation.get(&name).element).unwrap_or(ElementType::F32);
        let last = output.dims.as_ref().and_then(|dims| dims.last().cloned());
        let last = last.unwrap_or_else(|| width.map_or(Dim::Unknown, |width| Dim::Size(width as u64)));
        let dims = [Dim::Size(1), Dim::Name("rows".into()), last];
        self.graph.outputs[at] = ValueInfo::new(&name, element, Some(&dims));
        // Declarations of tensors behind the head describe all rows.
        self.graph.values.retain(|value| value.name != name);
        Ok(())
    }

    /// Follows the logits back, through their product, to a tensor with a row for each token.
    fn head(&self, output: &str) -> Result<Head> {
        let evaluation = self.lookup.at(SIZES[0])?;
        let has_all = |name: &str| {
            let sizes = SIZES[0];
            matches!(evaluation.dims(name), Some(&[batch, new, _]) if (batch, new) == (sizes.batch, sizes.new))
        };
        let makers = self.makers();
        // All rows in another order, of which the first one is taken, are not yet the rows of the tokens.
        let is_moved = |name: &str| {
            let node = makers.get(name).map(|&index| &self.graph.nodes[index]);
            node.filter(|node| REORDERS.contains(&node.operator.as_str()))
                .and_then(|node| node.input(0))
                .is_some_and(|from| evaluation.dims(from) == evaluation.dims(name))
        };
        let (mut path, mut name, mut is_behind) = (Vec::new(), output.to_owned(), false);
        while !is_behind || !has_all(&name) || is_moved(&name) {
            let Some(&index) = makers.get(name.as_str()) else {
                return Err(refused(&name, "it does not come from a product with weights"));
            };
            let node = &self.graph.nodes[index];
            let operator = node.operator.as_str();
            let elements = |input: &&String| evaluation.dims(input).map_or(0, |dims| count(dims).unwrap_or(usize::MAX));
            let before = match operator {
                _ if PRODUCTS.contains(&operator) && !is_behind => {
                    is_behind = true;
                    node.inputs.first()
                }
                "Add" | "Sub" | "Mul" | "Div" | "Min" | "Max" => {
                    // Of two that are as large, the one that comes first. A weight is not a row.
                    node.inputs.iter().rev().max_by_key(|input| (makers.contains_key(input.as_str()), elements(input)))
                }
                "Where" => node.inputs[1..].iter().rev().max_by_key(elements),
                _ if BY_ROW.contains(&operator) || MOVES.contains(&operator) => node.inputs.first(),
                _ => return Err(unrecognised(node, "its operator is not supported between the head and the logits")),
            };
            let before = before.ok_or_else(|| unrecognised(node, "it has no inputs"))?.clone();
            path.push((index, std::mem::replace(&mut name, before)));
        }
        path.reverse();
        Ok(Head { rows: name, path })
    }

    fn makers(&self) -> HashMap<&str, usize> {
        let outputs = |(index, node)| of_outputs(node).map(move |name| (name, index));
        self.graph.nodes.iter().enumerate().flat_map(outputs).collect()
    }

    /// The nodes of the head, in their order. Fails if one of them mixes rows.
    fn between(&self, head: &Head) -> Result<Vec<usize>> {
        let depends = dependents(&self.graph.nodes, &HashSet::from([head.rows.clone()]));
        let makers = self.makers();
        let on_path: HashSet<usize> = head.path.iter().map(|(index, _)| *index).collect();
        let mut todo: Vec<&str> = head.path.last().map(|(_, name)| name.as_str()).into_iter().collect();
        let mut all = BTreeSet::new();
        while let Some(name) = todo.pop() {
            let Some(&index) = makers.get(name).filter(|_| name != head.rows) else { continue };
            let node = &self.graph.nodes[index];
            // Nodes that choose rows are dropped, and so are those that say which ones.
            let is_dropped = on_path.contains(&index) && MOVES.contains(&node.operator.as_str());
            if !all.insert(index) {
                continue;
            }
            if is_dropped {
                todo.extend(node.input(0));
            } else {
                todo.extend(node.reads().filter(|&read| depends.contains(read)));
            }
        }
        let is_known = |operator: &str| [&PRODUCTS[..], &BY_ROW, &MOVES].iter().any(|of| of.contains(&operator));
        match all.iter().map(|&index| &self.graph.nodes[index]).find(|node| !is_known(&node.operator)) {
            Some(node) => Err(unrecognised(node, "its operator is not supported between the head and the logits")),
            None => Ok(all.into_iter().collect()),
        }
    }

    /// Fails unless the logits are those of all tokens, or of the last ones, in their order. A node that moves rows is
    /// dropped from the graph, so it has to keep their columns.
    fn check_rows(&self, head: &Head) -> Result<()> {
        let evaluation = self.lookup.at(SHOWN)?;
        let mut marked = marks(&evaluation, &head.rows, (0..SHOWN.new).collect());
        for (index, name) in &head.path {
            let node = &self.graph.nodes[*index];
            let from = node.inputs.iter().find(|from| marked.contains_key(*from)).cloned().unwrap_or_default();
            let unknown = || unrecognised(node, "the rows that it chooses are not known, or it moves columns");
            let width = marked.get(&from).and_then(width_of).ok_or_else(unknown)?;
            if MOVES.contains(&node.operator.as_str()) {
                marked = evaluation.rerun(&[node], &self.lookup.constants, marked)?;
                marked.get(name).filter(|moved| width_of(moved) == Some(width)).ok_or_else(unknown)?;
            } else {
                let rows = marked.get(&from).and_then(rows_of).ok_or_else(unknown)?;
                marked = marks(&evaluation, name, rows);
            }
            marked.get(name).and_then(rows_of).ok_or_else(unknown)?;
            marked.retain(|key, _| key == name);
        }
        let (name, value) = marked.iter().next().ok_or_else(|| refused("logits", "it has no rows"))?;
        let rows = rows_of(value).unwrap_or_default();
        if rows.is_empty() || !(0..SHOWN.new).collect::<Vec<_>>().ends_with(&rows) {
            let reason = format!("it has the rows {rows:?} of {} tokens, expected the last ones in order", SHOWN.new);
            return Err(refused(name, &reason));
        }
        Ok(())
    }
}

fn of_outputs(node: &Node) -> impl Iterator<Item = &str> {
    node.outputs.iter().map(String::as_str).filter(|name| !name.is_empty())
}

/// A tensor that numbers its elements: the number of an element's token, times the width, plus its column.
fn marks(evaluation: &Evaluation, name: &str, rows: Vec<usize>) -> HashMap<String, Known> {
    let Some(dims) = evaluation.dims(name) else { return HashMap::new() };
    let width = dims.last().copied().unwrap_or(1).max(1);
    let number = |place: usize| rows.get(place / width).map_or(f64::NAN, |&row| (row * width + place % width) as f64);
    let known = Known::filled(evaluation.get(name).element, dims.to_vec(), number);
    HashMap::from([(name.to_owned(), known)])
}

fn width_of(marked: &Known) -> Option<usize> {
    marked.dims.as_ref()?.last().map(|&width| width.max(1))
}

/// The token of each row, if each row has all columns of one token, in order.
fn rows_of(marked: &Known) -> Option<Vec<usize>> {
    let (data, width) = (marked.data.as_ref()?, width_of(marked)?);
    let token = |row: &[f64]| {
        let is_in_order = row.iter().enumerate().all(|(column, &mark)| mark == row[0] + column as f64);
        let first = row[0] as usize;
        (is_in_order && first.is_multiple_of(width)).then_some(first / width)
    };
    data.chunks(width).map(token).collect()
}

fn refused(name: &str, reason: &str) -> Error {
    Error::unrecognised(RefusalKind::Output, name, "output", reason)
}
