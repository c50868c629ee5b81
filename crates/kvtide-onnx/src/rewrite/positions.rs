//! Handles remaining nodes that read a past or the mask to compute positions and lengths: these are computed from
//! `position_ids` and the shape of the tokens instead. Any other use of a past is an error.

use std::collections::{HashMap, HashSet};

use super::GraphEdit;
use crate::cross_names::ENCODER_MASK;
use crate::error::{RefusalKind, Result};
use crate::eval::{Known, Sizes};
use crate::find::{LONG, Layer, SIZES, State, unrecognised};
use crate::proto::{Attribute, ElementType, Node, Tensor};
use crate::state_names::is_state;

/// The meaning of a small tensor of integers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meaning {
    Positions,
    Batch,
    New,
    Total,
    Fixed(i64),
}

impl GraphEdit<'_> {
    /// Replaces every position or length that is computed from dropped inputs.
    pub(super) fn replace_positions(&mut self, layers: [&[Layer]; 2], states: &[State]) -> Result<()> {
        let layers = layers.into_iter().flatten();
        let mut dropped: HashSet<String> = layers.flat_map(|layer| layer.pasts.clone()).collect();
        dropped.insert(ENCODER_MASK.into());
        dropped.extend(states.iter().map(|state| state.past.clone()));
        dropped.extend(self.lookup.roles.mask.clone());
        dropped.extend(self.lookup.roles.counts().map(str::to_owned));
        let nodes = self.graph.nodes.clone();
        let makers: HashMap<&str, &Node> =
            nodes.iter().flat_map(|node| node.outputs.iter().map(move |name| (name.as_str(), node))).collect();
        let depends = dependents(&nodes, &dropped);
        let mut seen: HashSet<&str> = HashSet::new();
        let mut todo: Vec<&str> = Vec::new();
        let outputs: Vec<String> = self.graph.outputs.iter().map(|output| output.name.clone()).collect();
        for name in outputs.iter().map(String::as_str).filter(|&name| depends.contains(name)) {
            todo.push(name);
        }
        let mut replaced = HashSet::new();
        // Tensors that no node of the source computes are checked through their inputs.
        while let Some(name) = todo.pop() {
            if !seen.insert(name) {
                continue;
            }
            let Some(maker) = makers.get(name) else { continue };
            if maker.outputs.len() == 1 && (self.replaces(name)? || self.gathers(maker)?) {
                replaced.insert(name);
                continue;
            }
            for read in maker.reads() {
                if dropped.contains(read) {
                    let kind = if is_state(read) { RefusalKind::State } else { RefusalKind::Form };
                    return Err(unrecognised(maker, format!("it reads {read}, which the rewrite drops")).of(kind));
                }
                if depends.contains(read) {
                    todo.push(read);
                }
            }
        }
        // The node that computed the tensor before is found first.
        let mut old = replaced.clone();
        self.graph.nodes.retain(|node| !node.outputs.first().is_some_and(|name| old.remove(name.as_str())));
        Ok(())
    }

    /// Computes a tensor from `position_ids` and the shape of the tokens, if it is a position or a length. Returns
    /// false if it is neither.
    fn replaces(&mut self, name: &str) -> Result<bool> {
        let Some((meaning, dims, element)) = self.meaning(name)? else { return Ok(false) };
        let shape: Vec<u64> = dims.iter().map(|&dim| dim as u64).collect();
        let wide = |element: ElementType| element == ElementType::I64;
        let target = if wide(element) { name.to_owned() } else { format!("kvtide/wide {name}") };
        match meaning {
            Meaning::Positions => {
                let positions = self.positions()?;
                let last = dims.iter().rposition(|&dim| dim == SIZES[0].new).unwrap_or(0);
                let sizes: Vec<i64> = (0..dims.len())
                    .map(|axis| {
                        if axis == last {
                            -1
                        } else if axis == 0 {
                            0
                        } else {
                            1
                        }
                    })
                    .collect();
                let sizes = self.ints(format!("kvtide/shape of {name}"), &sizes);
                self.add(Node::new("Reshape", "", &format!("kvtide/{name}"), &[&positions, &sizes], &[&target]));
            }
            Meaning::Batch | Meaning::New => {
                let tokens = self.lookup.roles.tokens.clone();
                let (all, which) = (format!("kvtide/tokens of {name}"), format!("kvtide/axis of {name}"));
                let axis = i64::from(meaning == Meaning::New);
                self.graph.initializers.push(Tensor::of_ints(&which, &shape, &[axis]));
                self.add(Node::new("Shape", "", &all, &[&tokens], &[&all]));
                self.add(Node::new("Gather", "", &format!("kvtide/{name}"), &[&all, &which], &[&target]));
            }
            Meaning::Total => {
                let positions = self.positions()?;
                let (most, one) = (format!("kvtide/last of {name}"), format!("kvtide/one of {name}"));
                self.graph.initializers.push(Tensor::of_ints(&one, &shape, &[1]));
                let last = Node::new("ReduceMax", "", &most, &[&positions], &[&most]);
                self.add(last.with(Attribute::int("keepdims", 0)));
                self.add(Node::new("Add", "", &format!("kvtide/{name}"), &[&most, &one], &[&target]));
            }
            Meaning::Fixed(value) => {
                let fixed = format!("kvtide/value of {name}");
                self.graph.initializers.push(Tensor::of_ints(&fixed, &shape, &[value]));
                self.add(Node::new("Identity", "", &format!("kvtide/{name}"), &[&fixed], &[&target]));
            }
        }
        if !wide(element) {
            self.cast(&target, name, element);
        }
        Ok(true)
    }

    /// Gathers rows of a table by `position_ids`, if a node cuts out those of the new tokens. Returns false if it does not.
    fn gathers(&mut self, node: &Node) -> Result<bool> {
        let (Some(table), Some(name)) = (node.input(0), node.output(0)) else { return Ok(false) };
        if !node.is("", "Slice") || self.lookup.maker(table).is_some_and(|maker| !maker.is("", "Constant")) {
            return Ok(false);
        }
        for sizes in [SIZES[0], SIZES[1], LONG] {
            let evaluation = self.lookup.at(sizes)?;
            let ints = |at: usize| node.input(at).and_then(|name| evaluation.get(name).ints());
            let cut = [ints(1), ints(2), Some(ints(3).unwrap_or(vec![0])), Some(ints(4).unwrap_or(vec![1]))];
            if cut != [sizes.past as i64, sizes.total() as i64, 0, 1].map(|number| Some(vec![number])) {
                return Ok(false);
            }
        }
        let positions = self.positions()?;
        let (shape, flat) =
            (self.ints(format!("kvtide/shape of {name}"), &[-1]), format!("kvtide/positions of {name}"));
        self.add(Node::new("Reshape", "", &flat, &[&positions, &shape], &[&flat]));
        self.add(Node::new("Gather", "", &format!("kvtide/{name}"), &[table, &flat], &[name]));
        Ok(true)
    }

    /// The meaning of a tensor for all sizes, and its dimensions for the first choice of sizes.
    fn meaning(&self, name: &str) -> Result<Option<(Meaning, Vec<usize>, ElementType)>> {
        let tried = [SIZES[0], SIZES[1], LONG];
        let mut values = Vec::new();
        for sizes in tried {
            values.push((sizes, self.lookup.at(sizes)?.get(name).clone()));
        }
        let (Some(element), Some(dims)) = (values[0].1.element, values[0].1.dims.clone()) else { return Ok(None) };
        if !element.is_int() || values[0].1.data.is_none() {
            return Ok(None);
        }
        if values.iter().all(|(sizes, value)| is_positions(value, *sizes)) {
            return Ok(Some((Meaning::Positions, dims, element)));
        }
        let numbers: Option<Vec<i64>> = values
            .iter()
            .map(|(_, value)| value.ints().filter(|ints| ints.len() == 1 && value.dims.as_ref() == Some(&dims)))
            .map(|ints| ints.map(|ints| ints[0]))
            .collect();
        let Some(numbers) = numbers else { return Ok(None) };
        let is =
            |size: fn(&Sizes) -> usize| tried.iter().zip(&numbers).all(|(sizes, &number)| size(sizes) as i64 == number);
        let of_shape = |name| {
            let maker: Option<&Node> = self.lookup.maker(name);
            let from = maker.and_then(|node| self.lookup.maker(node.input(0)?));
            maker.is_some_and(|node| matches!(node.operator.as_str(), "Gather" | "Slice" | "Squeeze"))
                && from.is_some_and(|node| node.operator == "Shape")
        };
        let meaning = if is(Sizes::total) {
            Meaning::Total
        } else if is(|sizes| sizes.batch) {
            Meaning::Batch
        } else if is(|sizes| sizes.new) {
            Meaning::New
        } else if numbers.iter().all(|&number| number == numbers[0]) && of_shape(name) {
            Meaning::Fixed(numbers[0])
        } else {
            return Ok(None);
        };
        Ok(Some((meaning, dims, element)))
    }
}

/// True if a tensor counts up from the length of the past, along its last axis other than 1, for each sequence or once
/// for all.
fn is_positions(value: &Known, sizes: Sizes) -> bool {
    let (Some(dims), Some(data)) = (&value.dims, &value.data) else { return false };
    let wanted: &[usize] = if data.len() == sizes.new { &[sizes.new] } else { &[sizes.batch, sizes.new] };
    let own: Vec<usize> = dims.iter().copied().filter(|&dim| dim != 1).collect();
    let wanted: Vec<usize> = wanted.iter().copied().filter(|&dim| dim != 1).collect();
    own == wanted
        && data.iter().enumerate().all(|(index, &number)| number == (sizes.past + index % sizes.new) as f64)
        && !dims.is_empty()
        && (dims.len() < 2 || dims[0] == 1 || dims[0] == sizes.batch)
}

/// Names of tensors that depend on one of `from`.
pub(super) fn dependents(nodes: &[Node], from: &HashSet<String>) -> HashSet<String> {
    let mut readers: HashMap<&str, Vec<&Node>> = HashMap::new();
    for node in nodes {
        for name in node.reads() {
            readers.entry(name).or_default().push(node);
        }
    }
    let mut all = HashSet::new();
    let mut todo: Vec<&str> = from.iter().map(String::as_str).collect();
    while let Some(name) = todo.pop() {
        for node in readers.get(name).into_iter().flatten() {
            for output in node.outputs.iter().filter(|output| !output.is_empty()) {
                if all.insert(output.clone()) {
                    todo.push(output);
                }
            }
        }
    }
    all
}
