//! Reads the fields of protobuf messages one after another through a small buffer.
//!
//! Data are loaded only on request: a field with bytes is a range of the source. Everything that is kept counts against
//! a budget, so a malicious file cannot use more memory than allowed.

use crate::error::{Error, Result};
use crate::source::{Source, Span};

const BUFFER_BYTES: u64 = 16 * 1024;
/// The longest name, path or operator.
const TEXT_BYTES_MAX: u64 = 64 * 1024;

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Body {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(Span),
}

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub number: u32,
    /// The range of the whole field, including its tag.
    pub whole: Span,
    /// The message that contains the field.
    message: &'static str,
    body: Body,
}

impl Field {
    fn wrong(&self, expected: &str) -> Error {
        let expected = format!("{expected} in field {}", self.number);
        Error::Malformed { offset: self.whole.offset, message: self.message, expected }
    }

    /// The bytes of a string, a message or a packed list.
    pub fn bytes(&self) -> Result<Span> {
        match self.body {
            Body::Bytes(span) => Ok(span),
            _ => Err(self.wrong("bytes with a length")),
        }
    }

    /// A varint.
    pub fn int(&self) -> Result<i64> {
        match self.body {
            Body::Varint(value) => Ok(value.cast_signed()),
            _ => Err(self.wrong("a varint")),
        }
    }

    /// A 32-bit number, such as an enum.
    pub fn small(&self) -> Result<i32> {
        i32::try_from(self.int()?).map_err(|_| self.wrong("a number of 32 bits"))
    }

    pub fn float(&self) -> Result<f32> {
        match self.body {
            Body::Fixed32(bits) => Ok(f32::from_bits(bits)),
            _ => Err(self.wrong("32 fixed bits")),
        }
    }

    pub fn is_packed(&self) -> bool {
        matches!(self.body, Body::Bytes(_))
    }

    /// The bits of a number of any wire type.
    pub fn bits(&self) -> Result<u64> {
        match self.body {
            Body::Varint(value) | Body::Fixed64(value) => Ok(value),
            Body::Fixed32(value) => Ok(value.into()),
            Body::Bytes(_) => Err(self.wrong("a number")),
        }
    }
}

/// Reads a source through a buffer and counts what is kept.
pub(crate) struct Reader<'a> {
    source: &'a dyn Source,
    buffer: Vec<u8>,
    start: u64,
    budget: u64,
    limit: u64,
}

impl<'a> Reader<'a> {
    pub fn new(source: &'a dyn Source, limit: u64) -> Self {
        Self { source, buffer: Vec::new(), start: 0, budget: limit, limit }
    }

    /// Counts memory before it is kept.
    pub fn keep(&mut self, bytes: u64, offset: u64) -> Result<()> {
        self.budget = self.budget.checked_sub(bytes).ok_or(Error::TooLarge { offset, limit: self.limit })?;
        Ok(())
    }

    fn byte(&mut self, at: u64) -> Result<u8> {
        let inside = at.checked_sub(self.start).filter(|&index| index < self.buffer.len() as u64);
        if let Some(index) = inside {
            return Ok(self.buffer[index as usize]);
        }
        let length = BUFFER_BYTES.min(self.source.size().saturating_sub(at));
        self.buffer.resize(length as usize, 0);
        self.start = at;
        read(self.source, at, &mut self.buffer)?;
        self.buffer.first().copied().ok_or_else(|| read_past(at))
    }

    fn varint(&mut self, at: &mut u64, end: u64, message: &'static str) -> Result<u64> {
        let start = *at;
        let wrong = |expected: &str| Error::Malformed { offset: start, message, expected: expected.into() };
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            if *at >= end {
                return Err(wrong("a varint that ends inside of its message"));
            }
            let byte = self.byte(*at)?;
            *at += 1;
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(wrong("a varint of at most 64 bits"))
    }

    fn fixed<const N: usize>(&mut self, at: &mut u64, end: u64, message: &'static str) -> Result<[u8; N]> {
        if end - *at < N as u64 {
            return Err(Error::Malformed {
                offset: *at,
                message,
                expected: format!("{N} bytes inside of the message"),
            });
        }
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte(*at)?;
            *at += 1;
        }
        Ok(bytes)
    }

    /// The next field of the message that ends at `end`; [`None`] at its end.
    pub fn field(&mut self, at: &mut u64, end: u64, message: &'static str) -> Result<Option<Field>> {
        if *at >= end {
            return Ok(None);
        }
        let offset = *at;
        let wrong = |offset, expected: String| Error::Malformed { offset, message, expected };
        let tag = self.varint(at, end, message)?;
        let number = u32::try_from(tag >> 3).ok().filter(|&number| (1..1 << 29).contains(&number));
        let number = number.ok_or_else(|| wrong(offset, "a field number from 1 to 2^29 - 1".into()))?;
        let body = match tag & 7 {
            0 => Body::Varint(self.varint(at, end, message)?),
            1 => Body::Fixed64(u64::from_le_bytes(self.fixed(at, end, message)?)),
            2 => {
                let length = self.varint(at, end, message)?;
                if length > end - *at {
                    let expected = format!("at most {} bytes in field {number}, not {length}", end - *at);
                    return Err(wrong(offset, expected));
                }
                let span = Span { offset: *at, length };
                *at += length;
                Body::Bytes(span)
            }
            5 => Body::Fixed32(u32::from_le_bytes(self.fixed(at, end, message)?)),
            wire => return Err(wrong(offset, format!("wire type 0, 1, 2 or 5 in field {number}, not {wire}"))),
        };
        let whole = Span { offset, length: *at - offset };
        Ok(Some(Field { number, whole, message, body }))
    }

    /// The text of a field: a name, a path, an operator.
    pub fn text(&mut self, field: &Field) -> Result<String> {
        let span = field.bytes()?;
        if span.length > TEXT_BYTES_MAX {
            return Err(field.wrong(&format!("at most {TEXT_BYTES_MAX} bytes of text, not {}", span.length)));
        }
        self.keep(span.length + size_of::<String>() as u64, span.offset)?;
        String::from_utf8(self.load(span)?).map_err(|_| field.wrong("text in UTF-8"))
    }

    fn load(&mut self, span: Span) -> Result<Vec<u8>> {
        if span.length == 0 {
            return Ok(Vec::new());
        }
        // Reading one byte fills the buffer, which mostly contains short fields completely.
        self.byte(span.offset)?;
        let start = (span.offset - self.start) as usize;
        match self.buffer.get(start..start + span.length as usize) {
            Some(bytes) => Ok(bytes.to_vec()),
            None => load(self.source, span),
        }
    }

    /// Numbers of a repeated field, packed or one by one.
    pub fn ints(&mut self, field: &Field, list: &mut Vec<i64>) -> Result<()> {
        if !field.is_packed() {
            self.keep(8, field.whole.offset)?;
            list.push(field.int()?);
            return Ok(());
        }
        let span = field.bytes()?;
        let mut at = span.offset;
        while at < span.end() {
            self.keep(8, at)?;
            list.push(self.varint(&mut at, span.end(), field.message)?.cast_signed());
        }
        Ok(())
    }
}

fn read_past(offset: u64) -> Error {
    Error::Read { offset, length: 1, reason: "the source ends here".into() }
}

pub(super) fn read(source: &dyn Source, offset: u64, bytes: &mut [u8]) -> Result<()> {
    let length = bytes.len() as u64;
    source.read_at(offset, bytes).map_err(|error| Error::Read { offset, length, reason: error.to_string() })
}

/// The bytes of a span.
pub(super) fn load(source: &dyn Source, span: Span) -> Result<Vec<u8>> {
    let mut bytes = vec![0; span.length as usize];
    read(source, span.offset, &mut bytes)?;
    Ok(bytes)
}
