//! An attribute of a node.

use super::{Encoded, Graph, Tensor};
use crate::error::Result;
use crate::source::Span;
use crate::wire::{Reader, Segments};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AttributeValue {
    Float(f32),
    Int(i64),
    Text(String),
    Ints(Vec<i64>),
    Tensor(Box<Tensor>),
    Graphs(Vec<Graph>),
    Other,
}

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
        Self { name: name.into(), value: AttributeValue::Other, encoded: Encoded::Own(message) }
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

    pub fn write(&self, number: u32, to: &mut Segments) {
        self.encoded.write(number, to);
    }
}
