//! A tensor of a model: its name, type and shape, and the place of its data, in the model that was read and in the one
//! that is written. Data are loaded only on request, and only if there are few.

use std::io::ErrorKind;

use super::{ElementType, Encoded, load};
use crate::error::{Error, Result};
use crate::source::{Source, Span};
use crate::wire::{Field, Reader, Segments};

/// Data of at least this many bytes become references when a graph is written without its weights.
const REFERENCE_BYTES_MIN: u64 = 1024;

/// Data in a separate file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct External {
    /// The file, relative to the model's folder.
    pub location: String,
    /// The offset of the data in the file.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
}

/// The place of a weight's data.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// In the model, as raw bytes.
    Source(Span),
    /// In a separate file.
    External(External),
    /// In the model, as numbers of protobuf, or made by a rewrite.
    Inline,
}

/// The form in which weights are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights<'a> {
    /// Unchanged: inside the model, or in a separate file.
    Inline,
    /// Weights inside the model become references to this file: the model that was read, under the name that it has
    /// next to the written file.
    External(&'a str),
    /// All weights are inside the model, including those from separate files, for a runtime that opens no files.
    /// Protobuf is limited to 2 GiB.
    Embedded,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub name: String,
    pub element: ElementType,
    pub dims: Vec<u64>,
    pub place: Place,
    /// Fields with numbers: float_data, int32_data, int64_data, double_data, uint64_data.
    typed: Vec<Field>,
    /// The numbers of a tensor that a rewrite made.
    own: Vec<i64>,
    encoded: Encoded,
}

// Fields of the same source are equal if their ranges are; tensors are compared by their own messages.
impl PartialEq for Field {
    fn eq(&self, other: &Self) -> bool {
        self.whole == other.whole
    }
}

impl Tensor {
    /// Returns a tensor of 64-bit integers with its own data.
    pub fn of_ints(name: &str, dims: &[u64], values: &[i64]) -> Self {
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut message = Segments::default();
        for &dim in dims {
            message.int(1, dim.cast_signed());
        }
        message.int(2, ElementType::I64.0.into());
        message.text(8, name.as_bytes());
        message.text(9, &raw);
        let encoded = Encoded::Own(message);
        let (element, place) = (ElementType::I64, Place::Inline);
        Self {
            name: name.into(),
            element,
            dims: dims.to_vec(),
            place,
            typed: Vec::new(),
            own: values.to_vec(),
            encoded,
        }
    }

    pub fn read(reader: &mut Reader<'_>, span: Span) -> Result<Self> {
        reader.keep(size_of::<Self>() as u64, span.offset)?;
        let (element, place) = (ElementType(0), Place::Inline);
        let encoded = Encoded::Source(span);
        let (name, typed, own) = (String::new(), Vec::new(), Vec::new());
        let mut tensor = Self { name, element, dims: Vec::new(), place, typed, own, encoded };
        let mut dims = Vec::new();
        let mut external = Vec::new();
        let mut is_external = false;
        let mut at = span.offset;
        while let Some(field) = reader.field(&mut at, span.end(), "TensorProto")? {
            match field.number {
                1 => reader.ints(&field, &mut dims)?,
                2 => tensor.element = ElementType(field.small()?),
                4 | 5 | 7 | 10 | 11 => {
                    reader.keep(size_of::<Field>() as u64, field.whole.offset)?;
                    tensor.typed.push(field);
                }
                8 => tensor.name = reader.text(&field)?,
                9 => tensor.place = Place::Source(field.bytes()?),
                13 => external.push(read_entry(reader, field.bytes()?)?),
                14 => is_external = field.int()? == 1,
                _ => (),
            }
        }
        let sizes: Option<Vec<u64>> = dims.iter().map(|&dim| u64::try_from(dim).ok()).collect();
        tensor.dims = sizes.ok_or_else(|| tensor.wrong(format!("no negative dimension, not {dims:?}")))?;
        let bytes = tensor.byte_size()?;
        if is_external {
            tensor.place = Place::External(tensor.external(&external, bytes)?);
        } else {
            tensor.check(bytes)?;
        }
        Ok(tensor)
    }

    fn wrong(&self, expected: String) -> Error {
        Error::Tensor { name: self.name.clone(), offset: self.offset().unwrap_or(0), expected }
    }

    /// The number of elements.
    pub fn count(&self) -> Result<u64> {
        let count = self.dims.iter().try_fold(1u64, |count, &dim| count.checked_mul(dim));
        count.ok_or_else(|| self.wrong(format!("a shape with at most 2^64 elements, not {:?}", self.dims)))
    }

    /// The number of bytes of the data, if the type determines it.
    fn byte_size(&self) -> Result<Option<u64>> {
        let Some(bits) = self.element.bits() else { return Ok(None) };
        let bits = self.count()?.checked_mul(bits);
        let bits = bits.ok_or_else(|| self.wrong(format!("a shape with at most 2^64 bits, not {:?}", self.dims)))?;
        Ok(Some(bits.div_ceil(8)))
    }

    fn external(&self, entries: &[(String, String)], bytes: Option<u64>) -> Result<External> {
        let mut external = External { length: bytes.unwrap_or(0), ..External::default() };
        for (key, value) in entries {
            let number = || value.parse::<u64>().map_err(|_| self.wrong(format!("a number as {key}, not {value:?}")));
            match key.as_str() {
                "location" => external.location = value.clone(),
                "offset" => external.offset = number()?,
                "length" => external.length = number()?,
                _ => (),
            }
        }
        let location = &external.location;
        let inside = location.split(['/', '\\']).all(|part| !part.is_empty() && part != "..");
        if !inside || location.contains(':') {
            return Err(self.wrong(format!("data in a file below the model's folder, not in {location:?}")));
        }
        match bytes {
            Some(bytes) if bytes != external.length => {
                Err(self.wrong(format!("{bytes} bytes of shape {:?}, not {}", self.dims, external.length)))
            }
            _ if external.offset.checked_add(external.length).is_none() => {
                Err(self.wrong("an offset and a length with a sum below 2^64".into()))
            }
            _ => Ok(external),
        }
    }

    /// Checks that the data agree with the shape.
    fn check(&self, bytes: Option<u64>) -> Result<()> {
        let Some(bytes) = bytes else { return Ok(()) };
        if let Place::Source(span) = self.place {
            if span.length != bytes {
                let expected =
                    format!("{bytes} bytes of shape {:?} ({}), not {}", self.dims, self.element, span.length);
                return Err(self.wrong(expected));
            }
            return Ok(());
        }
        let mut found = 0u64;
        let mut least = 0u64;
        for field in &self.typed {
            // A varint has 1 to 10 bytes.
            let (most, fewest) = match (field.is_packed(), field.number) {
                (false, _) => (1, 1),
                (true, 4) => (field.bytes()?.length / 4, field.bytes()?.length / 4),
                (true, 10) => (field.bytes()?.length / 8, field.bytes()?.length / 8),
                (true, _) => (field.bytes()?.length, field.bytes()?.length.div_ceil(10)),
            };
            found += most;
            least += fewest;
        }
        let per_number = if self.element.bits() < Some(8) { 8 / self.element.bits().unwrap_or(8) } else { 1 };
        let count = self.count()?.div_ceil(per_number);
        if found < count || least > count.saturating_mul(2) {
            return Err(self.wrong(format!("{count} numbers of shape {:?}, not {found}", self.dims)));
        }
        Ok(())
    }

    /// The numbers of a tensor with at most `count_max` elements. Numbers in a file that cannot be opened are unknown.
    pub fn load(&self, source: &dyn Source, count_max: u64) -> Result<Option<Vec<f64>>> {
        let count = self.count()?;
        if count > count_max || self.element.bits().is_none() {
            return Ok(None);
        }
        let numbers = match (&self.place, &self.encoded) {
            (Place::Source(span), _) => decode(self.element, &load(source, *span)?),
            (Place::Inline, Encoded::Source(_)) => self.typed_numbers(source)?,
            (Place::External(external), _) => self.external_numbers(external, source)?,
            (Place::Inline, Encoded::Own(_)) => Some(self.own.iter().map(|&number| number as f64).collect()),
        };
        Ok(numbers.filter(|numbers| numbers.len() as u64 == count))
    }

    /// The numbers of `count` elements from the `first` one on. Only raw data can be read in parts, and those of a file
    /// that cannot be opened are unknown.
    pub fn load_part(&self, source: &dyn Source, first: u64, count: u64) -> Result<Option<Vec<f64>>> {
        let Some(bytes) = self.element.bits().filter(|bits| bits.is_multiple_of(8)).map(|bits| bits / 8) else {
            return Ok(None);
        };
        let (skipped, length) = (first * bytes, count * bytes);
        match &self.place {
            Place::Source(span) => {
                Ok(decode(self.element, &load(source, Span { offset: span.offset + skipped, length })?))
            }
            Place::External(External { location, offset, .. }) => {
                let part = External { location: location.clone(), offset: offset + skipped, length };
                self.external_numbers(&part, source)
            }
            Place::Inline => Ok(None),
        }
    }

    /// The offset of its message in the source; [`None`] for a tensor that a rewrite made.
    pub fn offset(&self) -> Option<u64> {
        match self.encoded {
            Encoded::Source(span) => Some(span.offset),
            Encoded::Own(_) => None,
        }
    }

    fn external_numbers(&self, external: &External, source: &dyn Source) -> Result<Option<Vec<f64>>> {
        let mut bytes = vec![0; external.length as usize];
        match source.read_beside(&external.location, external.offset, &mut bytes) {
            Ok(()) => Ok(decode(self.element, &bytes)),
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::NotFound) => Ok(None),
            Err(error) => Err(self.wrong(format!("its data in {}: {error}", external.location))),
        }
    }

    fn typed_numbers(&self, source: &dyn Source) -> Result<Option<Vec<f64>>> {
        let mut bits = Vec::new();
        for field in &self.typed {
            match (field.is_packed(), field.number) {
                (false, _) => bits.push(field.bits()?),
                (true, 4) => bits.extend(
                    load(source, field.bytes()?)?
                        .chunks_exact(4)
                        .map(|chunk| u64::from(u32::from_le_bytes(chunk.try_into().expect("four bytes")))),
                ),
                (true, 10) => bits.extend(
                    load(source, field.bytes()?)?
                        .chunks_exact(8)
                        .map(|chunk| u64::from_le_bytes(chunk.try_into().expect("eight bytes"))),
                ),
                (true, _) => {
                    let mut ints = Vec::new();
                    Reader::new(source, u64::from(u32::MAX)).ints(field, &mut ints)?;
                    bits.extend(ints.into_iter().map(i64::cast_unsigned));
                }
            }
        }
        let number = |bits: u64| match self.element {
            ElementType::F32 => f64::from(f32::from_bits(bits as u32)),
            ElementType::F64 => f64::from_bits(bits),
            ElementType::F16 => half(bits as u16),
            ElementType::BF16 => f64::from(f32::from_bits((bits as u32) << 16)),
            _ => bits.cast_signed() as f64,
        };
        Ok(Some(bits.into_iter().map(number).collect()))
    }

    /// Writes the tensor, with its data or a reference to them.
    pub fn write(&self, number: u32, weights: Weights<'_>, to: &mut Segments) {
        let mut message = Segments::default();
        match (weights, &self.place) {
            (Weights::External(file), Place::Source(span)) if span.length >= REFERENCE_BYTES_MIN => {
                self.write_type(&mut message);
                let (offset, length) = (span.offset.to_string(), span.length.to_string());
                for (key, value) in [("location", file), ("offset", &offset), ("length", &length)] {
                    let mut entry = Segments::default();
                    entry.text(1, key.as_bytes());
                    entry.text(2, value.as_bytes());
                    message.message(13, &entry);
                }
                message.int(14, 1);
            }
            (Weights::Embedded, Place::External(External { location, offset, length })) => {
                self.write_type(&mut message);
                message.message_beside(9, location, Span { offset: *offset, length: *length });
            }
            _ => return self.encoded.write(number, to),
        }
        to.message(number, &message);
    }

    fn write_type(&self, message: &mut Segments) {
        for &dim in &self.dims {
            message.int(1, dim.cast_signed());
        }
        message.int(2, self.element.0.into());
        message.text(8, self.name.as_bytes());
    }
}

fn read_entry(reader: &mut Reader<'_>, span: Span) -> Result<(String, String)> {
    let (mut key, mut value) = (String::new(), String::new());
    let mut at = span.offset;
    while let Some(field) = reader.field(&mut at, span.end(), "StringStringEntryProto")? {
        match field.number {
            1 => key = reader.text(&field)?,
            2 => value = reader.text(&field)?,
            _ => (),
        }
    }
    Ok((key, value))
}

fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0. => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024. + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// Decodes numbers from raw bytes, which ONNX stores in little-endian order.
fn decode(element: ElementType, bytes: &[u8]) -> Option<Vec<f64>> {
    fn each<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.chunks_exact(N).map(|chunk| number(chunk.try_into().expect("N bytes"))).collect()
    }
    Some(match element {
        ElementType::F32 => each(bytes, |chunk| f32::from_le_bytes(chunk).into()),
        ElementType::F64 => each(bytes, f64::from_le_bytes),
        ElementType::F16 => each(bytes, |chunk| half(u16::from_le_bytes(chunk))),
        ElementType::BF16 => each(bytes, |chunk| f32::from_bits(u32::from(u16::from_le_bytes(chunk)) << 16).into()),
        ElementType::I64 => each(bytes, |chunk| i64::from_le_bytes(chunk) as f64),
        ElementType::I32 => each(bytes, |chunk| i32::from_le_bytes(chunk).into()),
        ElementType::BOOL | ElementType(2) => each(bytes, |[byte]: [u8; 1]| byte.into()),
        _ => return None,
    })
}
