//! An input or output of a graph: its name, element type and dimensions.

use super::{ElementType, Encoded};
use crate::error::Result;
use crate::source::Span;
use crate::wire::{Reader, Segments};

/// One dimension.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Dim {
    Size(u64),
    Name(String),
    Unknown,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ValueInfo {
    pub name: String,
    pub element: Option<ElementType>,
    pub dims: Option<Vec<Dim>>,
    encoded: Encoded,
}

impl ValueInfo {
    pub fn new(name: &str, element: ElementType, dims: Option<&[Dim]>) -> Self {
        let mut tensor = Segments::default();
        tensor.int(1, element.0.into());
        if let Some(dims) = dims {
            let mut shape = Segments::default();
            for dim in dims {
                let mut message = Segments::default();
                match dim {
                    Dim::Size(size) => message.int(1, size.cast_signed()),
                    Dim::Name(name) => message.text(2, name.as_bytes()),
                    Dim::Unknown => (),
                }
                shape.message(1, &message);
            }
            tensor.message(2, &shape);
        }
        let mut kind = Segments::default();
        kind.message(1, &tensor);
        let mut message = Segments::default();
        message.text(1, name.as_bytes());
        message.message(2, &kind);
        let encoded = Encoded::Own(message);
        Self { name: name.into(), element: Some(element), dims: dims.map(<[_]>::to_vec), encoded }
    }

    pub fn read(reader: &mut Reader<'_>, span: Span) -> Result<Self> {
        reader.keep(size_of::<Self>() as u64, span.offset)?;
        let mut info = Self { name: String::new(), element: None, dims: None, encoded: Encoded::Source(span) };
        let mut at = span.offset;
        while let Some(field) = reader.field(&mut at, span.end(), "ValueInfoProto")? {
            match field.number {
                1 => info.name = reader.text(&field)?,
                2 => info.read_type(reader, field.bytes()?)?,
                _ => (),
            }
        }
        Ok(info)
    }

    fn read_type(&mut self, reader: &mut Reader<'_>, span: Span) -> Result<()> {
        let mut at = span.offset;
        while let Some(field) = reader.field(&mut at, span.end(), "TypeProto")? {
            if field.number == 1 {
                self.read_tensor(reader, field.bytes()?)?;
            }
        }
        Ok(())
    }

    fn read_tensor(&mut self, reader: &mut Reader<'_>, span: Span) -> Result<()> {
        let mut at = span.offset;
        while let Some(field) = reader.field(&mut at, span.end(), "TypeProto.Tensor")? {
            match field.number {
                1 => self.element = Some(ElementType(field.small()?)),
                2 => self.dims = Some(read_shape(reader, field.bytes()?)?),
                _ => (),
            }
        }
        Ok(())
    }

    pub fn write(&self, number: u32, to: &mut Segments) {
        self.encoded.write(number, to);
    }
}

fn read_shape(reader: &mut Reader<'_>, span: Span) -> Result<Vec<Dim>> {
    let mut dims = Vec::new();
    let mut at = span.offset;
    while let Some(field) = reader.field(&mut at, span.end(), "TensorShapeProto")? {
        if field.number != 1 {
            continue;
        }
        reader.keep(size_of::<Dim>() as u64, field.whole.offset)?;
        let span = field.bytes()?;
        let mut dim = Dim::Unknown;
        let mut inner = span.offset;
        while let Some(field) = reader.field(&mut inner, span.end(), "Dimension")? {
            match field.number {
                1 => dim = field.int()?.try_into().map_or(Dim::Unknown, Dim::Size),
                2 => dim = Dim::Name(reader.text(&field)?),
                _ => (),
            }
        }
        dims.push(dim);
    }
    Ok(dims)
}
