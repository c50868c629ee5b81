//! A graph: nodes, initializers, inputs and outputs.
//!
//! ```text
//! graph -> node -> attribute -> graph        an attribute may contain graphs: branches and bodies
//! ```

use std::collections::{HashMap, HashSet};

use super::{DEPTH_MAX, Encoded, Tensor, ValueInfo, Weights};
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

    /// Sets an attribute of the nodes that `wants` accepts, also in graphs inside nodes. Returns true if there is one.
    pub fn set(&mut self, attribute: &Attribute, wants: &dyn Fn(&Node) -> bool) -> bool {
        let mut changed = false;
        for node in &mut self.nodes {
            let mut own = false;
            for inside in &mut node.attributes {
                own |= inside.set(attribute, wants);
            }
            if wants(node) {
                node.attributes.retain(|present| present.name != attribute.name);
                node.attributes.push(attribute.clone());
                own = true;
            }
            if own {
                node.unchanged = None;
            }
            changed |= own;
        }
        changed
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

/// A node of a graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Node {
    pub name: String,
    pub operator: String,
    pub domain: String,
    /// The names of inputs; empty for an omitted input.
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub attributes: Vec<Attribute>,
    /// Unchanged fields, with their tags.
    others: Vec<Span>,
    /// The node's message in the source, if it has not changed.
    unchanged: Option<Span>,
}

impl Node {
    pub fn new(operator: &str, domain: &str, name: &str, inputs: &[&str], outputs: &[&str]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Self {
            name: name.into(),
            operator: operator.into(),
            domain: domain.into(),
            inputs: owned(inputs),
            outputs: owned(outputs),
            ..Self::default()
        }
    }

    pub fn with(mut self, attribute: Attribute) -> Self {
        self.attributes.push(attribute);
        self
    }

    pub fn read(reader: &mut Reader<'_>, span: Span, depth: usize) -> Result<Self> {
        reader.keep(size_of::<Self>() as u64, span.offset)?;
        let mut node = Self { unchanged: Some(span), ..Self::default() };
        let mut at = span.offset;
        while let Some(field) = reader.field(&mut at, span.end(), "NodeProto")? {
            match field.number {
                1 => node.inputs.push(reader.text(&field)?),
                2 => node.outputs.push(reader.text(&field)?),
                3 => node.name = reader.text(&field)?,
                4 => node.operator = reader.text(&field)?,
                5 => node.attributes.push(Attribute::read(reader, field.bytes()?, depth)?),
                7 => node.domain = reader.text(&field)?,
                _ => {
                    reader.keep(size_of::<Span>() as u64, field.whole.offset)?;
                    node.others.push(field.whole);
                }
            }
        }
        if node.domain == "ai.onnx" {
            node.domain.clear();
        }
        Ok(node)
    }

    pub fn write(&self, number: u32, to: &mut Segments) {
        if let Some(span) = self.unchanged {
            return to.message_span(number, span);
        }
        let mut message = Segments::default();
        for input in &self.inputs {
            message.text(1, input.as_bytes());
        }
        for output in &self.outputs {
            message.text(2, output.as_bytes());
        }
        message.text(3, self.name.as_bytes());
        message.text(4, self.operator.as_bytes());
        for attribute in &self.attributes {
            attribute.write(5, &mut message);
        }
        if !self.domain.is_empty() {
            message.text(7, self.domain.as_bytes());
        }
        for &span in &self.others {
            message.span(span);
        }
        to.message(number, &message);
    }

    /// Renames tensors that the node reads and computes.
    pub fn rename(&mut self, names: &HashMap<&str, &str>) {
        for name in self.inputs.iter_mut().chain(&mut self.outputs) {
            if let Some(&other) = names.get(name.as_str()) {
                *name = other.into();
                self.unchanged = None;
            }
        }
    }

    /// The node's name in errors: its own, or that of its first output.
    pub fn called(&self) -> &str {
        let outputs = self.outputs.iter().map(String::as_str);
        std::iter::once(self.name.as_str()).chain(outputs).find(|name| !name.is_empty()).unwrap_or("without a name")
    }

    /// The operator with its domain.
    pub fn full_operator(&self) -> String {
        if self.domain.is_empty() { self.operator.clone() } else { format!("{}.{}", self.domain, self.operator) }
    }

    /// True if the node has this operator of this domain; ONNX's own domain is empty.
    pub fn is(&self, domain: &str, operator: &str) -> bool {
        self.operator == operator && self.domain == domain
    }

    /// The input at a place, if it is present.
    pub fn input(&self, index: usize) -> Option<&str> {
        self.inputs.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }

    pub fn output(&self, index: usize) -> Option<&str> {
        self.outputs.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }

    pub fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        self.attributes.iter().find(|attribute| attribute.name == name).map(|attribute| &attribute.value)
    }

    pub fn int(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            AttributeValue::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub fn float(&self, name: &str) -> Option<f32> {
        match self.attribute(name)? {
            AttributeValue::Float(value) => Some(*value),
            _ => None,
        }
    }

    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attribute(name)? {
            AttributeValue::Ints(values) => Some(values),
            _ => None,
        }
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        match self.attribute(name)? {
            AttributeValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The graphs inside the node: branches and bodies.
    pub fn graphs(&self) -> impl Iterator<Item = &Graph> {
        self.attributes.iter().flat_map(|attribute| match &attribute.value {
            AttributeValue::Graphs(graphs) => graphs.as_slice(),
            _ => &[],
        })
    }

    /// All names that the node reads: its inputs, and names that graphs inside it take from outside.
    pub fn reads(&self) -> impl Iterator<Item = &str> {
        let inside = self.graphs().flat_map(|graph| graph.captured.iter());
        self.inputs.iter().chain(inside).map(String::as_str).filter(|name| !name.is_empty())
    }
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AttributeValue {
    Float(f32),
    Int(i64),
    Text(String),
    Ints(Vec<i64>),
    /// Floats of an attribute that a rewrite made.
    Floats(Vec<f32>),
    Tensor(Box<Tensor>),
    Graphs(Vec<Graph>),
    Other,
}

/// An attribute of a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attribute {
    pub name: String,
    pub value: AttributeValue,
    encoded: Encoded,
}

impl Attribute {
    pub fn int(name: &str, value: i64) -> Self {
        let mut message = Segments::default();
        message.text(1, name.as_bytes());
        message.int(3, value);
        message.int(20, 2);
        Self { name: name.into(), value: AttributeValue::Int(value), encoded: Encoded::Own(message) }
    }

    pub fn float(name: &str, value: f32) -> Self {
        let mut message = Segments::default();
        message.text(1, name.as_bytes());
        message.float(2, value);
        message.int(20, 1);
        Self { name: name.into(), value: AttributeValue::Float(value), encoded: Encoded::Own(message) }
    }

    pub fn floats(name: &str, values: &[f32]) -> Self {
        let mut message = Segments::default();
        message.text(1, name.as_bytes());
        for &value in values {
            message.float(7, value);
        }
        message.int(20, 6);
        Self { name: name.into(), value: AttributeValue::Floats(values.to_vec()), encoded: Encoded::Own(message) }
    }

    pub fn ints(name: &str, values: &[i64]) -> Self {
        let mut message = Segments::default();
        message.text(1, name.as_bytes());
        for &value in values {
            message.int(8, value);
        }
        message.int(20, 7);
        Self { name: name.into(), value: AttributeValue::Ints(values.to_vec()), encoded: Encoded::Own(message) }
    }

    pub fn read(reader: &mut Reader<'_>, span: Span, depth: usize) -> Result<Self> {
        reader.keep(size_of::<Self>() as u64, span.offset)?;
        let (mut name, mut kind) = (String::new(), None);
        let (mut ints, mut graphs) = (Vec::new(), Vec::new());
        let mut value = AttributeValue::Other;
        let mut at = span.offset;
        while let Some(field) = reader.field(&mut at, span.end(), "AttributeProto")? {
            match field.number {
                1 => name = reader.text(&field)?,
                2 => value = AttributeValue::Float(field.float()?),
                3 => value = AttributeValue::Int(field.int()?),
                // Bytes that are not text cannot be a name either.
                4 => value = reader.text(&field).map_or(AttributeValue::Other, AttributeValue::Text),
                5 => value = AttributeValue::Tensor(Box::new(Tensor::read(reader, field.bytes()?)?)),
                6 | 11 => graphs.push(Graph::read(reader, field.bytes()?, depth + 1)?),
                8 => reader.ints(&field, &mut ints)?,
                20 => kind = Some(field.int()?),
                _ => (),
            }
        }
        if !graphs.is_empty() {
            value = AttributeValue::Graphs(graphs);
        } else if kind == Some(7) || !ints.is_empty() {
            value = AttributeValue::Ints(ints);
        } else if matches!(value, AttributeValue::Other) {
            // Numbers that are 0 and empty texts may be omitted.
            value = match kind {
                Some(1) => AttributeValue::Float(0.),
                Some(2) => AttributeValue::Int(0),
                _ => value,
            };
        }
        Ok(Self { name, value, encoded: Encoded::Source(span) })
    }

    /// Sets an attribute of nodes in the graphs of this one, as [`Graph::set`] does.
    fn set(&mut self, attribute: &Attribute, wants: &dyn Fn(&Node) -> bool) -> bool {
        let AttributeValue::Graphs(graphs) = &mut self.value else { return false };
        let changed = graphs.iter_mut().fold(false, |changed, graph| graph.set(attribute, wants) | changed);
        if changed {
            self.encoded = Encoded::Own(encoded_graphs(&self.name, graphs));
        }
        changed
    }

    pub fn write(&self, number: u32, to: &mut Segments) {
        self.encoded.write(number, to);
    }
}

/// An attribute with graphs: with one in its own field, as branches and bodies have it, or with a list.
fn encoded_graphs(name: &str, graphs: &[Graph]) -> Segments {
    let mut message = Segments::default();
    message.text(1, name.as_bytes());
    let (field, kind) = if graphs.len() == 1 { (6, 5) } else { (11, 10) };
    for graph in graphs {
        message.message(field, &graph.write(Weights::Inline));
    }
    message.int(20, kind);
    message
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
