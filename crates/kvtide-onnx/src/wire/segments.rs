//! A message as segments: own bytes and ranges of the source, so that weights are never copied.

use super::reader::{load, read};
use crate::error::{Error, Result};
use crate::source::{Source, Span};

/// Ranges up to this size are copied: thousands of separate ranges would cost more than their bytes.
const COPIED_BYTES_MAX: u64 = 4096;

/// A segment of a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Segment {
    /// New bytes.
    Own(Vec<u8>),
    /// Bytes of the source.
    Source(Span),
    /// Bytes of a file in the model's folder.
    Beside(String, Span),
}

/// A model, or one of its messages, as segments. Appending is O(1) for each segment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Segments {
    list: Vec<Segment>,
    size: u64,
}

impl Segments {
    /// The number of bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The segments, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Segment> {
        self.list.iter()
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.size += bytes.len() as u64;
        match self.list.last_mut() {
            Some(Segment::Own(own)) => own.extend_from_slice(bytes),
            _ => self.list.push(Segment::Own(bytes.to_vec())),
        }
    }

    pub(crate) fn span(&mut self, span: Span) {
        self.size += span.length;
        match self.list.last_mut() {
            Some(Segment::Source(last)) if last.end() == span.offset => last.length += span.length,
            _ => self.list.push(Segment::Source(span)),
        }
    }

    fn varint(&mut self, mut value: u64) {
        let mut bytes = [0; 10];
        let mut count = 0;
        loop {
            let low = (value & 0x7f) as u8;
            value >>= 7;
            bytes[count] = if value == 0 { low } else { low | 0x80 };
            count += 1;
            if value == 0 {
                break;
            }
        }
        self.bytes(&bytes[..count]);
    }

    fn tag(&mut self, number: u32, wire: u32) {
        self.varint(u64::from(number) << 3 | u64::from(wire));
    }

    pub(crate) fn int(&mut self, number: u32, value: i64) {
        self.tag(number, 0);
        self.varint(value.cast_unsigned());
    }

    pub(crate) fn float(&mut self, number: u32, value: f32) {
        self.tag(number, 5);
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn text(&mut self, number: u32, text: &[u8]) {
        self.tag(number, 2);
        self.varint(text.len() as u64);
        self.bytes(text);
    }

    pub(crate) fn message(&mut self, number: u32, message: &Segments) {
        self.tag(number, 2);
        self.varint(message.size);
        self.append(message);
    }

    /// Appends a message from the source, without its tag.
    pub(crate) fn message_span(&mut self, number: u32, span: Span) {
        self.tag(number, 2);
        self.varint(span.length);
        self.span(span);
    }

    pub(crate) fn append(&mut self, other: &Segments) {
        for segment in &other.list {
            match segment {
                Segment::Own(bytes) => self.bytes(bytes),
                Segment::Source(span) => self.span(*span),
                Segment::Beside(file, span) => self.beside(file, *span),
            }
        }
    }

    fn beside(&mut self, file: &str, span: Span) {
        self.size += span.length;
        self.list.push(Segment::Beside(file.into(), span));
    }

    /// Appends a field whose bytes are in a file in the model's folder.
    pub(crate) fn message_beside(&mut self, number: u32, file: &str, span: Span) {
        self.tag(number, 2);
        self.varint(span.length);
        self.beside(file, span);
    }

    /// Returns the same segments with small ranges of the source copied, so that fewer segments are left.
    pub(crate) fn gathered(&self, source: &dyn Source) -> Result<Self> {
        let mut gathered = Self::default();
        for segment in &self.list {
            match segment {
                Segment::Source(span) if span.length > COPIED_BYTES_MAX => gathered.span(*span),
                Segment::Source(span) => gathered.bytes(&load(source, *span)?),
                Segment::Own(bytes) => gathered.bytes(bytes),
                Segment::Beside(file, span) => gathered.beside(file, *span),
            }
        }
        Ok(gathered)
    }

    /// Returns all bytes, including those of the source.
    pub fn to_bytes(&self, source: &dyn Source) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        let size = usize::try_from(self.size).map_err(|_| Error::Memory { bytes: self.size })?;
        all.try_reserve_exact(size).map_err(|_| Error::Memory { bytes: self.size })?;
        for segment in &self.list {
            match segment {
                Segment::Own(bytes) => all.extend_from_slice(bytes),
                Segment::Source(span) => {
                    let start = all.len();
                    all.resize(start + span.length as usize, 0);
                    read(source, span.offset, &mut all[start..])?;
                }
                Segment::Beside(file, span) => {
                    let start = all.len();
                    all.resize(start + span.length as usize, 0);
                    let refused = |error: std::io::Error| Error::Weights {
                        file: file.clone(),
                        tensor: String::new(),
                        expected: format!("{} bytes that can be read at {} ({error})", span.length, span.offset),
                    };
                    source.read_beside(file, span.offset, &mut all[start..]).map_err(refused)?;
                }
            }
        }
        Ok(all)
    }
}

impl<'a> IntoIterator for &'a Segments {
    type Item = &'a Segment;
    type IntoIter = std::slice::Iter<'a, Segment>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}
