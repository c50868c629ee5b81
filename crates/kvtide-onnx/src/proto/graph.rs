//! A graph: nodes, each after the nodes that it reads, initializers, inputs and outputs.

use std::collections::{HashMap, HashSet};

use super::{DEPTH_MAX, Node, Tensor, ValueInfo, Weights};
use crate::error::{Error, Result};
use crate::source::Span;
use crate::wire::{Reader, Segments};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Graph {
    pub nodes: Vec<Node>,
    pub initializers: Vec<Tensor>,
    pub inputs: Vec<ValueInfo>,
    pub outputs: Vec<ValueInfo>,
    pub values: Vec<ValueInfo>,
    /// Names that a graph inside a node takes from the graphs around it.
    pub captured: Vec<String>,
    /// Unchanged fields, by number: the name, documentation, sparse initializers, metadata.
    pub others: Vec<(u32, Span)>,
    /// Names of sparse initializers.
    pub sparse: Vec<String>,
}

/// The error of a node.
fn graph_error(node: &Node, expected: String) -> Error {
    Error::Graph { node: node.called().into(), operator: node.full_operator(), expected }
}

impl Graph {
    pub fn read(reader: &mut Reader<'_>, span: Span, depth: usize) -> Result<Self> {
        if depth > DEPTH_MAX {
            let expected = format!("at most {DEPTH_MAX} nested graphs");
            return Err(Error::Malformed { offset: span.offset, message: "GraphProto", expected });
        }
        let mut graph = Self::default();
        graph.read_fields(reader, span, depth)?;
        if depth > 0 {
            graph.captured = graph.captures(reader)?;
        }
        Ok(graph)
    }

    /// Adds the fields of a message. Messages of one kind merge.
    pub fn read_fields(&mut self, reader: &mut Reader<'_>, span: Span, depth: usize) -> Result<()> {
        let mut at = span.offset;
        while let Some(field) = reader.field(&mut at, span.end(), "GraphProto")? {
            match field.number {
                1 => self.nodes.push(Node::read(reader, field.bytes()?, depth)?),
                5 => self.initializers.push(Tensor::read(reader, field.bytes()?)?),
                11 => self.inputs.push(ValueInfo::read(reader, field.bytes()?)?),
                12 => self.outputs.push(ValueInfo::read(reader, field.bytes()?)?),
                13 => self.values.push(ValueInfo::read(reader, field.bytes()?)?),
                number => {
                    reader.keep(size_of::<(u32, Span)>() as u64, field.whole.offset)?;
                    self.others.push((number, field.whole));
                    if number == 15 {
                        self.sparse.extend(sparse_name(reader, field.bytes()?)?);
                    }
                }
            }
        }
        Ok(())
    }

    /// Names that the graph reads and does not define.
    fn captures(&self, reader: &mut Reader<'_>) -> Result<Vec<String>> {
        let defined: HashSet<&str> = self.defined().collect();
        let outputs = self.outputs.iter().map(|output| output.name.as_str());
        let read: HashSet<&str> = self.nodes.iter().flat_map(Node::reads).chain(outputs).collect();
        let mut names: Vec<String> = read.difference(&defined).map(|&name| name.to_owned()).collect();
        for name in &names {
            reader.keep((name.len() + size_of::<String>()) as u64, 0)?;
        }
        names.sort_unstable();
        Ok(names)
    }

    /// All names of tensors that the graph defines.
    pub fn defined(&self) -> impl Iterator<Item = &str> {
        let outputs = self.nodes.iter().flat_map(|node| &node.outputs).map(String::as_str);
        self.given().chain(outputs.filter(|name| !name.is_empty()))
    }

    /// Names of inputs and initializers.
    pub fn given(&self) -> impl Iterator<Item = &str> {
        let inputs = self.inputs.iter().map(|input| input.name.as_str());
        let initializers = self.initializers.iter().map(|tensor| tensor.name.as_str());
        inputs.chain(initializers).chain(self.sparse.iter().map(String::as_str))
    }

    pub fn input(&self, name: &str) -> Option<&ValueInfo> {
        self.inputs.iter().find(|input| input.name == name)
    }

    /// Writes the fields in the order of their numbers, as all common writers do.
    pub fn write(&self, weights: Weights<'_>) -> Segments {
        let mut to = Segments::default();
        let mut others = self.others.clone();
        others.sort_by_key(|&(number, _)| number);
        let mut others = others.into_iter().peekable();
        for number in [1, 5, 11, 12, 13, u32::MAX] {
            while let Some((_, span)) = others.next_if(|other| other.0 < number) {
                to.span(span);
            }
            match number {
                1 => self.nodes.iter().for_each(|node| node.write(number, &mut to)),
                5 => self.initializers.iter().for_each(|tensor| tensor.write(number, weights, &mut to)),
                11 => self.inputs.iter().for_each(|input| input.write(number, &mut to)),
                12 => self.outputs.iter().for_each(|output| output.write(number, &mut to)),
                13 => self.values.iter().for_each(|value| value.write(number, &mut to)),
                _ => (),
            }
        }
        to
    }
}

/// Checks a graph and sorts its nodes so that each comes after the nodes that it reads. `O(nodes + edges)`; a valid
/// order is kept.
pub(crate) fn checked(mut graph: Graph) -> Result<Graph> {
    let mut makers: HashMap<&str, usize> = HashMap::new();
    let inputs: HashSet<&str> = graph.given().collect();
    for (index, node) in graph.nodes.iter().enumerate() {
        for output in node.outputs.iter().filter(|name| !name.is_empty()) {
            if inputs.contains(output.as_str()) || makers.insert(output, index).is_some() {
                return Err(graph_error(node, format!("{output} to be the output of one node and of nothing else")));
            }
        }
    }
    check_names(&graph)?;
    let mut waits = vec![0usize; graph.nodes.len()];
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        for name in node.reads() {
            match makers.get(name) {
                Some(&maker) => {
                    readers[maker].push(index);
                    waits[index] += 1;
                }
                None if inputs.contains(name) => (),
                None => {
                    return Err(graph_error(
                        node,
                        format!("{name} to be an input, an initializer or the output of a node"),
                    ));
                }
            }
        }
    }
    for output in &graph.outputs {
        if !makers.contains_key(output.name.as_str()) && !inputs.contains(output.name.as_str()) {
            let expected = "a node that makes this output of the graph".into();
            return Err(Error::Graph { node: output.name.clone(), operator: "output".into(), expected });
        }
    }
    let mut ready: std::collections::BinaryHeap<_> =
        (0..waits.len()).filter(|&index| waits[index] == 0).map(std::cmp::Reverse).collect();
    let mut order = Vec::with_capacity(waits.len());
    while let Some(std::cmp::Reverse(index)) = ready.pop() {
        order.push(index);
        for &reader in &readers[index] {
            waits[reader] -= 1;
            if waits[reader] == 0 {
                ready.push(std::cmp::Reverse(reader));
            }
        }
    }
    if let Some(stuck) = waits.iter().position(|&count| count > 0) {
        return Err(graph_error(&graph.nodes[stuck], "inputs that do not depend on its own outputs".into()));
    }
    if !order.is_sorted() {
        let mut nodes: Vec<Option<Node>> = std::mem::take(&mut graph.nodes).into_iter().map(Some).collect();
        graph.nodes = order.into_iter().filter_map(|index| nodes[index].take()).collect();
    }
    Ok(graph)
}

/// Checks that no two inputs, and no two initializers, share a name. An input and its default value may.
fn check_names(graph: &Graph) -> Result<()> {
    let inputs = graph.inputs.iter().map(|input| (&input.name, "input"));
    let outputs = graph.outputs.iter().map(|output| (&output.name, "output"));
    let initializers = graph.initializers.iter().map(|tensor| (&tensor.name, "initializer"));
    let mut seen = HashSet::new();
    for (name, kind) in inputs.chain(outputs).chain(initializers) {
        if name.is_empty() || !seen.insert((kind, name)) {
            let expected = format!("a name that no other {kind} has");
            return Err(Error::Graph { node: name.clone(), operator: kind.into(), expected });
        }
    }
    Ok(())
}

fn sparse_name(reader: &mut Reader<'_>, span: Span) -> Result<Option<String>> {
    let mut at = span.offset;
    while let Some(field) = reader.field(&mut at, span.end(), "SparseTensorProto")? {
        if field.number == 1 {
            return Ok(Some(Tensor::read(reader, field.bytes()?)?.name));
        }
    }
    Ok(None)
}
