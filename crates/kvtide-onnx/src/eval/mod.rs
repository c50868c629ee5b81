//! Evaluates a graph as far as sizes and small constants allow: element types, dimensions, and the numbers of masks,
//! positions and shapes.
//!
//! A graph is evaluated for given sizes of batch, past and new tokens. Weights have no numbers here, so hidden states
//! have only dimensions; masks and positions depend on sizes only, so they are known completely. So the meaning of a
//! subgraph is found independently of the nodes that an exporter made it of.

mod band;
mod bind;
mod constants;
mod contraction;
mod elementwise;
mod indexed;
mod known;
mod movement;
mod sized;
mod stateful;

pub(crate) use bind::{Roles, Sizes, is_pair};
pub(crate) use constants::Constants;
pub(crate) use known::{Known, axis, count};
pub(crate) use sized::ELEMENTWISE;

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::error::Result;
use crate::proto::{AttributeValue, Dim, ElementType, Model, Node};

/// The most numbers in one evaluation.
const NUMBERS_MAX: usize = 1 << 25;

/// Everything that is known of a graph's tensors for one choice of sizes.
pub(crate) struct Evaluation {
    pub sizes: Sizes,
    values: HashMap<String, Known>,
    nothing: Known,
}

impl Evaluation {
    /// Evaluates all nodes in their order. `O(nodes)`, plus the numbers of masks.
    pub fn run(model: &Model, constants: &Constants<'_>, roles: &Roles, sizes: Sizes) -> Result<Self> {
        let (evaluation, completed) = Self::pass(model, constants, roles, sizes, &HashMap::new())?;
        if completed.is_empty() {
            return Ok(evaluation);
        }
        Ok(Self::pass(model, constants, roles, sizes, &completed)?.0)
    }

    /// One evaluation with known properties of pasts; also returns the properties of further pasts that it found.
    fn pass(
        model: &Model,
        constants: &Constants<'_>,
        roles: &Roles,
        sizes: Sizes,
        pasts: &HashMap<String, Known>,
    ) -> Result<(Self, HashMap<String, Known>)> {
        let mut values = pasts.clone();
        for tensor in &model.graph.initializers {
            values.insert(tensor.name.clone(), constants.tensor(tensor)?);
        }
        for input in &model.graph.inputs {
            values.entry(input.name.clone()).or_insert_with(|| roles.bind(input, sizes));
        }
        let mut evaluation = Self { sizes, values, nothing: Known::default() };
        let infos = model.graph.values.iter().chain(&model.graph.outputs);
        let declared: HashMap<&str, ElementType> =
            infos.filter_map(|info| Some((info.name.as_str(), info.element?))).collect();
        let mut completed = HashMap::new();
        let left = Cell::new(NUMBERS_MAX);
        for node in &model.graph.nodes {
            for (past, value) in evaluation.complete(model, roles, node) {
                evaluation.values.insert(past.clone(), value.clone());
                completed.insert(past, value);
            }
            let outputs = evaluation.apply(node, constants, &HashMap::new(), &left)?;
            for (name, mut value) in node.outputs.iter().zip(outputs) {
                value.element = declared.get(name.as_str()).copied().or(value.element);
                evaluation.values.insert(name.clone(), value);
            }
        }
        Ok((evaluation, completed))
    }

    /// Some graphs only name the head dimension of a past: it equals that of the rows that are appended to the past.
    fn complete(&self, model: &Model, roles: &Roles, node: &Node) -> Vec<(String, Known)> {
        // The past and the new rows, by input.
        let pairs = match pasts_of(node).filter(|_| node.domain == "com.microsoft") {
            Some([keys, values]) => vec![(keys, 1), (values, 2)],
            None if node.is("", "Concat") => vec![(0, 1)],
            None => return Vec::new(),
        };
        let completed = |(past, new)| {
            let (past, new) = (node.input(past)?, node.input(new)?);
            let info = model.graph.input(past).filter(|input| roles.is_past(input) && self.dims(past).is_none())?;
            // A byte of codes without a sign holds two numbers.
            let stored = |dim: usize| if info.element == Some(ElementType::U8) { dim.div_ceil(2) } else { dim };
            let dims = match (self.dims(new)?, info.dims.as_deref()) {
                (&[batch, heads, _, dim], _) => vec![batch, heads, self.sizes.past, stored(dim)],
                (&[batch, _, width], Some([_, Dim::Size(heads), ..])) => {
                    let heads = usize::try_from(*heads).ok()?;
                    vec![batch, heads, self.sizes.past, stored(width.checked_div(heads)?)]
                }
                _ => return None,
            };
            Some((past.to_owned(), Known::sized(info.element, dims)))
        };
        pairs.into_iter().filter_map(completed).collect()
    }

    /// The known properties of a tensor.
    pub fn get(&self, name: &str) -> &Known {
        self.values.get(name).unwrap_or(&self.nothing)
    }

    /// The number of a tensor with one element.
    pub fn scalar(&self, name: &str) -> Option<f64> {
        match self.get(name).data.as_ref()?.as_slice() {
            [number] => Some(*number),
            _ => None,
        }
    }

    /// The dimensions of a tensor, if all are known.
    pub fn dims(&self, name: &str) -> Option<&[usize]> {
        self.get(name).dims.as_deref()
    }

    /// Evaluates some nodes again, in order, with other values for some tensors.
    pub fn rerun(
        &self,
        nodes: &[&Node],
        constants: &Constants<'_>,
        given: HashMap<String, Known>,
    ) -> Result<HashMap<String, Known>> {
        self.evaluated(nodes.iter().copied(), constants, given, &Cell::new(NUMBERS_MAX))
    }

    /// Adds the outputs of nodes, in order, to values that they may read.
    fn evaluated<'n>(
        &self,
        nodes: impl IntoIterator<Item = &'n Node>,
        constants: &Constants<'_>,
        mut values: HashMap<String, Known>,
        left: &Cell<usize>,
    ) -> Result<HashMap<String, Known>> {
        for node in nodes {
            let outputs = self.apply(node, constants, &values, left)?;
            values.extend(node.outputs.iter().cloned().zip(outputs));
        }
        Ok(values)
    }

    /// The outputs of a node, graphs inside it included. `left` is the rest of [`NUMBERS_MAX`]: an output that has more
    /// numbers gets none.
    fn apply(
        &self,
        node: &Node,
        constants: &Constants<'_>,
        given: &HashMap<String, Known>,
        left: &Cell<usize>,
    ) -> Result<Vec<Known>> {
        let mut outputs = self.outputs(node, constants, given, left)?;
        for value in &mut outputs {
            // Numbers that a view shares are counted once.
            let own = value.data.as_ref().filter(|data| Rc::strong_count(data) == 1);
            match left.get().checked_sub(own.map_or(0, |data| data.len())) {
                Some(rest) => left.set(rest),
                None => value.data = None,
            }
        }
        Ok(outputs)
    }

    fn outputs(
        &self,
        node: &Node,
        constants: &Constants<'_>,
        given: &HashMap<String, Known>,
        left: &Cell<usize>,
    ) -> Result<Vec<Known>> {
        if let Some(value) = constants.node(node)? {
            return Ok(vec![value]);
        }
        if node.is("", "If")
            && let Some(outputs) = self.branches(node, constants, given, left)?
        {
            return Ok(outputs);
        }
        if node.is("", "Scan")
            && let Some(outputs) = self.scanned(node, constants, given, left)?
        {
            return Ok(outputs);
        }
        let inputs: Vec<&Known> =
            node.inputs.iter().map(|name| given.get(name).unwrap_or_else(|| self.get(name))).collect();
        let made =
            if node.is("", "ConstantOfShape") { constants.repeated(node, &inputs)? } else { operators(node, &inputs) };
        let is_followed = |value: &Known| value.dims.as_ref().is_none_or(|dims| dims.len() <= known::RANK_MAX);
        let mut outputs = made.filter(|values| values.iter().all(is_followed)).unwrap_or_default();
        // A tensor whose dimensions are unknown still has a type: mostly that of the first input.
        for index in outputs.len()..node.outputs.len() {
            outputs.push(Known { element: element_of(node, index, &inputs), ..Known::default() });
        }
        Ok(outputs)
    }
}

impl Evaluation {
    /// The outputs of an `If`: those of the branch that its condition selects; if that is unknown, the properties that
    /// both branches share.
    fn branches(
        &self,
        node: &Node,
        constants: &Constants<'_>,
        given: &HashMap<String, Known>,
        left: &Cell<usize>,
    ) -> Result<Option<Vec<Known>>> {
        let mut all = Vec::new();
        for name in ["then_branch", "else_branch"] {
            let Some(AttributeValue::Graphs(graphs)) = node.attribute(name) else { return Ok(None) };
            let Some(graph) = graphs.first() else { return Ok(None) };
            let mut values = given.clone();
            for tensor in &graph.initializers {
                values.insert(tensor.name.clone(), constants.tensor(tensor)?);
            }
            let values = self.evaluated(&graph.nodes, constants, values, left)?;
            let outputs = graph.outputs.iter().map(|output| match values.get(&output.name) {
                Some(value) => value.clone(),
                None => self.get(&output.name).clone(),
            });
            all.push(outputs.collect::<Vec<_>>());
        }
        let condition = node.input(0).unwrap_or_default();
        let condition = given.get(condition).unwrap_or_else(|| self.get(condition));
        let chosen = condition.data.as_ref().and_then(|data| data.first()).map(|&number| usize::from(number == 0.));
        if let Some(chosen) = chosen {
            return Ok(Some(all.swap_remove(chosen)));
        }
        let agree = all[0].iter().zip(&all[1]).map(|(one, other)| Known {
            element: one.element.filter(|_| one.element == other.element),
            dims: one.dims.clone().filter(|_| one.dims == other.dims),
            ..Known::default()
        });
        Ok(Some(agree.collect()))
    }
}

fn operators(node: &Node, inputs: &[&Known]) -> Option<Vec<Known>> {
    elementwise::apply(node, inputs)
        .or_else(|| movement::apply(node, inputs))
        .or_else(|| indexed::apply(node, inputs))
        .or_else(|| contraction::apply(node, inputs))
        .or_else(|| stateful::apply(node, inputs))
        .or_else(|| sized::apply(node, inputs))
}

/// The inputs of an operator of attention that are the pasts of keys and of values.
pub(crate) fn pasts_of(node: &Node) -> Option<[usize; 2]> {
    Some(match (node.domain.as_str(), node.operator.as_str()) {
        ("com.microsoft", "GroupQueryAttention") => [3, 4],
        ("com.microsoft", "MultiHeadAttention") => [6, 7],
        ("", "Attention") => [4, 5],
        _ => return None,
    })
}

/// The element type of an output, as far as the operator determines it.
fn element_of(node: &Node, index: usize, inputs: &[&Known]) -> Option<ElementType> {
    let input = |at: usize| inputs.get(at).and_then(|value| value.element);
    match (node.operator.as_str(), index) {
        ("Shape" | "Size" | "NonZero" | "ArgMax" | "ArgMin", _) | ("TopK", 1) => Some(ElementType::I64),
        (
            "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "And" | "Or" | "Xor" | "Not" | "IsNaN",
            _,
        ) => Some(ElementType::BOOL),
        ("Cast", _) => node.int("to").map(|to| ElementType(to as i32)),
        ("Where" | "DequantizeLinear", _) => input(1),
        ("GatherBlockQuantized", _) => input(2),
        ("MatMulInteger" | "ConvInteger", _) => Some(ElementType::I32),
        ("QuantizeLinear", _) => input(2).or(Some(ElementType(2))),
        ("DynamicQuantizeLinear", 1) => Some(ElementType::F32),
        ("DynamicQuantizeLinear", _) => Some(ElementType(2)),
        ("ConstantOfShape", _) => {
            node.attributes.first().map_or(Some(ElementType::F32), |attribute| match &attribute.value {
                AttributeValue::Tensor(tensor) => Some(tensor.element),
                _ => None,
            })
        }
        ("If" | "Loop" | "Scan", _) => {
            let skipped = usize::from(node.operator == "Loop");
            node.graphs().next()?.outputs.get(index + skipped)?.element
        }
        _ => input(0),
    }
}
