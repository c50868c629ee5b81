//! A node of a graph.

use std::collections::HashMap;

use super::{Attribute, AttributeValue, Graph};
use crate::error::Result;
use crate::source::Span;
use crate::wire::{Reader, Segments};

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

    /// Replaces an input.
    pub fn replace_input(&mut self, index: usize, name: &str) {
        self.inputs[index] = name.into();
        self.unchanged = None;
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
