//! Reads msgpack value by value, from untrusted bytes.
//!
//! A claimed length is not trusted: memory is allocated for no more elements than there are bytes left, and grows as
//! elements are read. Unneeded values are skipped without recursion. O(bytes).

use rmp::Marker;
use rmp::decode::{
    RmpRead, read_array_len, read_bin_len, read_f32, read_f64, read_int, read_map_len, read_marker, read_str_len,
};

use crate::error::{Error, Result};

/// The most elements for which memory is allocated before any has been read.
const AHEAD: usize = 1024;

pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    /// The type of the next value; reads nothing.
    pub(super) fn peek(&self, what: &'static str) -> Result<Marker> {
        self.rest.first().map(|&byte| Marker::from_u8(byte)).ok_or_else(|| ended(what))
    }

    pub(super) fn is_array(&self) -> bool {
        self.peek("").is_ok_and(|marker| matches!(marker, Marker::FixArray(_) | Marker::Array16 | Marker::Array32))
    }

    /// Reads a value; nil becomes `None`.
    pub(super) fn optional<T>(
        &mut self,
        what: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.peek(what)? == Marker::Null {
            self.rest = &self.rest[1..];
            return Ok(None);
        }
        read(self).map(Some)
    }

    pub(super) fn array(&mut self, what: &'static str) -> Result<usize> {
        let length = read_array_len(&mut self.rest).map_err(|error| Error::corrupt(what, error, "an array"))?;
        self.there(what, length as usize)
    }

    pub(super) fn map(&mut self, what: &'static str) -> Result<usize> {
        let length = read_map_len(&mut self.rest).map_err(|error| Error::corrupt(what, error, "a map"))?;
        self.there(what, length as usize)
    }

    /// Reads an array, element by element.
    pub(super) fn list<T>(
        &mut self,
        what: &'static str,
        mut read: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let length = self.array(what)?;
        let mut list = Vec::with_capacity(length.min(AHEAD));
        for _ in 0..length {
            list.push(read(self)?);
        }
        Ok(list)
    }

    pub(super) fn text(&mut self, what: &'static str) -> Result<&'a str> {
        let length = read_str_len(&mut self.rest).map_err(|error| Error::corrupt(what, error, "a text"))?;
        let bytes = self.bytes(what, length as usize)?;
        std::str::from_utf8(bytes).map_err(|error| Error::corrupt(what, error, "UTF-8"))
    }

    pub(super) fn binary(&mut self, what: &'static str) -> Result<&'a [u8]> {
        let length = read_bin_len(&mut self.rest).map_err(|error| Error::corrupt(what, error, "bytes"))?;
        self.bytes(what, length as usize)
    }

    pub(super) fn unsigned(&mut self, what: &'static str) -> Result<u64> {
        read_int(&mut self.rest).map_err(|error| Error::corrupt(what, error, "a whole number, not negative"))
    }

    pub(super) fn small(&mut self, what: &'static str) -> Result<u32> {
        let number = self.unsigned(what)?;
        u32::try_from(number).map_err(|_| Error::corrupt(what, number, "a number of 32 bits"))
    }

    /// Reads 64 bits, signed or unsigned.
    pub(super) fn bits(&mut self, what: &'static str) -> Result<u64> {
        let is_signed =
            matches!(self.peek(what)?, Marker::FixNeg(_) | Marker::I8 | Marker::I16 | Marker::I32 | Marker::I64);
        if !is_signed {
            return self.unsigned(what);
        }
        let number: i64 = read_int(&mut self.rest).map_err(|error| Error::corrupt(what, error, "64 bits"))?;
        Ok(number.cast_unsigned())
    }

    pub(super) fn real(&mut self, what: &'static str) -> Result<f64> {
        match self.peek(what)? {
            Marker::F64 => read_f64(&mut self.rest).map_err(|error| Error::corrupt(what, error, "a number")),
            Marker::F32 => {
                read_f32(&mut self.rest).map(f64::from).map_err(|error| Error::corrupt(what, error, "a number"))
            }
            _ => self.unsigned(what).map(|number| number as f64),
        }
    }

    /// Skips a value and returns its bytes.
    pub(super) fn skip(&mut self, what: &'static str) -> Result<&'a [u8]> {
        let start = self.rest;
        let mut values = 1u64;
        while values > 0 {
            values -= 1;
            values += self.skip_head(what)?;
        }
        Ok(&start[..start.len() - self.rest.len()])
    }

    /// Skips the head of a value, without the values inside it. Returns the number of those values.
    fn skip_head(&mut self, what: &'static str) -> Result<u64> {
        let marker = read_marker(&mut self.rest).map_err(|_| ended(what))?;
        let (length_bytes, own): (usize, u64) = match marker {
            Marker::FixArray(length) => return Ok(length.into()),
            Marker::FixMap(length) => return Ok(u64::from(length) * 2),
            Marker::Array16 => return self.length(what, 2),
            Marker::Array32 => return self.length(what, 4),
            Marker::Map16 => return Ok(self.length(what, 2)? * 2),
            Marker::Map32 => return Ok(self.length(what, 4)? * 2),
            Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => (0, 0),
            Marker::U8 | Marker::I8 => (0, 1),
            Marker::U16 | Marker::I16 | Marker::FixExt1 => (0, 2),
            Marker::FixExt2 => (0, 3),
            Marker::U32 | Marker::I32 | Marker::F32 => (0, 4),
            Marker::FixExt4 => (0, 5),
            Marker::U64 | Marker::I64 | Marker::F64 => (0, 8),
            Marker::FixExt8 => (0, 9),
            Marker::FixExt16 => (0, 17),
            Marker::FixStr(length) => (0, length.into()),
            Marker::Str8 | Marker::Bin8 => (1, 0),
            Marker::Str16 | Marker::Bin16 => (2, 0),
            Marker::Str32 | Marker::Bin32 => (4, 0),
            Marker::Ext8 => (1, 1),
            Marker::Ext16 => (2, 1),
            Marker::Ext32 => (4, 1),
            Marker::Reserved => return Err(Error::corrupt(what, "reserved", "a value")),
        };
        let count = own + if length_bytes > 0 { self.length(what, length_bytes)? } else { 0 };
        self.bytes(what, count as usize)?;
        Ok(0)
    }

    fn length(&mut self, what: &'static str, bytes: usize) -> Result<u64> {
        let mut number = [0; 8];
        (&mut self.rest).read_exact_buf(&mut number[8 - bytes..]).map_err(|_| ended(what))?;
        Ok(u64::from_be_bytes(number))
    }

    fn bytes(&mut self, what: &'static str, count: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or_else(|| ended(what))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Checks that at least `length` bytes are left.
    fn there(&self, what: &'static str, length: usize) -> Result<usize> {
        if length > self.rest.len() {
            return Err(ended(what));
        }
        Ok(length)
    }
}

fn ended(what: &'static str) -> Error {
    Error::corrupt(what, "truncated", "all of its bytes")
}
