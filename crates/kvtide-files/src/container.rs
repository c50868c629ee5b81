//! The container: a safetensors file.
//!
//! ```text
//! 8 bytes             length of the header, a u64 little-endian: at most 1 MiB
//! header              JSON: metadata of text; dtype, shape and offsets of each tensor; padded with spaces
//! tensors             back to back, from the first byte to the last: no overlap, no hole, no name twice
//! ```
//!
//! A header is checked against the length of the file before any memory is allocated for tensors. O(header).

use std::collections::HashSet;
use std::fmt;

use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::source::Source;

/// The greatest length of a header, in bytes.
pub(crate) const HEADER_MAX: u64 = 1 << 20;

/// The first tensor starts at a multiple of this many bytes.
const ALIGNMENT: usize = 64;

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TensorInfo {
    pub dtype: String,
    pub shape: Vec<u64>,
    /// From the end of the header.
    pub data_offsets: [u64; 2],
}

impl TensorInfo {
    /// Returns the number of bytes, unless it overflows or the dtype is unknown.
    fn bytes(&self) -> Option<u64> {
        let each: u64 = match &*self.dtype {
            "U8" => 1,
            "F16" | "BF16" => 2,
            "F32" | "U32" => 4,
            "U64" => 8,
            _ => return None,
        };
        self.shape.iter().try_fold(each, |bytes, &size| bytes.checked_mul(size))
    }
}

/// The header of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub metadata: Vec<(String, String)>,
    /// In the order of their offsets.
    pub tensors: Vec<(String, TensorInfo)>,
    /// The bytes of the header as read, with their length in front.
    pub raw: Vec<u8>,
}

impl Header {
    /// Adds a tensor after the last one.
    pub fn add(&mut self, name: impl Into<String>, dtype: &str, shape: &[u64]) {
        let start = self.tensors.last().map_or(0, |(_, last)| last.data_offsets[1]);
        let mut info = TensorInfo { dtype: dtype.to_owned(), shape: shape.to_vec(), data_offsets: [start, start] };
        info.data_offsets[1] += info.bytes().expect("a tensor of this library's");
        self.tensors.push((name.into(), info));
    }

    /// Returns the bytes of the header, padded to `least`. A header that is too long is refused.
    pub fn encode(&mut self, least: usize) -> Result<()> {
        let text = |value: &str| serde_json::to_string(value).expect("text is JSON");
        let pairs: Vec<String> =
            self.metadata.iter().map(|(name, value)| format!("{}:{}", text(name), text(value))).collect();
        let mut json = format!("{{\"__metadata__\":{{{}}}", pairs.join(","));
        for (name, info) in &self.tensors {
            json += &format!(",{}:{}", text(name), serde_json::to_string(info).expect("numbers are JSON"));
        }
        json.push('}');
        let len = (json.len() + 8).max(least).next_multiple_of(ALIGNMENT) - 8;
        if len as u64 > HEADER_MAX {
            return Err(Error::corrupt("the header", format!("{len} bytes long"), format!("at most {HEADER_MAX}")));
        }
        json.extend(std::iter::repeat_n(' ', len - json.len()));
        self.raw = [&(len as u64).to_le_bytes()[..], json.as_bytes()].concat();
        Ok(())
    }

    /// Reads and checks the header of a file.
    pub fn read(source: &Source) -> Result<Self> {
        let mut start = [0; 8];
        let short = |least: u64| Error::corrupt("the file", format!("{} bytes long", source.len()), least_bytes(least));
        if source.len() < 8 {
            return Err(short(8));
        }
        source.read(0, &mut start)?;
        let len = u64::from_le_bytes(start);
        if len > HEADER_MAX {
            return Err(Error::corrupt("the header", format!("{len} bytes long"), format!("at most {HEADER_MAX}")));
        }
        if len > source.len() - 8 {
            return Err(short(len + 8));
        }
        let mut raw = vec![0; 8 + len as usize];
        source.read(0, &mut raw)?;
        let entries: Entries = serde_json::from_slice(&raw[8..])
            .map_err(|error| Error::corrupt("the header", format!("other text: {error}"), "a safetensors header"))?;
        let mut header = Header { metadata: entries.metadata, tensors: entries.tensors, raw };
        header.check(source.len() - 8 - len)?;
        Ok(header)
    }

    /// Refuses tensors that do not cover each byte of the rest of the file exactly once.
    fn check(&mut self, rest: u64) -> Result<()> {
        self.tensors.sort_by_key(|(_, info)| info.data_offsets);
        let mut end = 0;
        for (name, info) in &self.tensors {
            let [start, stop] = info.data_offsets;
            if start != end || stop < start {
                let found = format!("at {start} to {stop}");
                return Err(Error::corrupt(format!("tensor {name:?}"), found, format!("a tensor from {end} on")));
            }
            if info.bytes() != Some(stop - start) {
                let found = format!("{} {:?} in {} bytes", info.dtype, info.shape, stop - start);
                return Err(Error::corrupt(format!("tensor {name:?}"), found, "as many bytes as its shape has"));
            }
            end = stop;
        }
        if end != rest {
            return Err(Error::corrupt("the file", format!("{rest} bytes of tensors"), format!("{end}")));
        }
        Ok(())
    }

    /// Returns a text of the metadata.
    pub fn text(&self, name: &str) -> Result<&str> {
        let found = self.metadata.iter().find(|(own, _)| own == name);
        found
            .map(|(_, value)| &**value)
            .ok_or_else(|| Error::corrupt(format!("metadata {name:?}"), "missing", "a text"))
    }

    /// Returns the place of a tensor in the file; refused unless it has this dtype and shape.
    pub fn place(&self, name: &str, dtype: &str, shape: &[u64]) -> Result<u64> {
        let expected = || format!("{dtype} {shape:?}");
        let Some((_, info)) = self.tensors.iter().find(|(own, _)| own == name) else {
            return Err(Error::corrupt(format!("tensor {name:?}"), "missing", expected()));
        };
        if info.dtype != dtype || info.shape != shape {
            let found = format!("{} {:?}", info.dtype, info.shape);
            return Err(Error::corrupt(format!("tensor {name:?}"), found, expected()));
        }
        Ok(self.raw.len() as u64 + info.data_offsets[0])
    }

    /// Returns the shape of a tensor, if the file has it.
    pub fn shape(&self, name: &str) -> Option<&[u64]> {
        self.tensors.iter().find(|(own, _)| own == name).map(|(_, info)| &info.shape[..])
    }
}

fn least_bytes(least: u64) -> String {
    format!("at least {least}")
}

/// The header as it is parsed; a name that occurs twice is refused.
#[derive(Default)]
struct Entries {
    metadata: Vec<(String, String)>,
    tensors: Vec<(String, TensorInfo)>,
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Header;
        impl<'de> Visitor<'de> for Header {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Entries, A::Error> {
                let (mut entries, mut names) = (Entries::default(), HashSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        map.next_value::<IgnoredAny>()?;
                        return Err(de::Error::custom(format!("{name:?} twice")));
                    }
                    match name == "__metadata__" {
                        true => entries.metadata = map.next_value::<Texts>()?.0,
                        false => entries.tensors.push((name, map.next_value()?)),
                    }
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(Header)
    }
}

/// Texts by name; a name that occurs twice is refused.
struct Texts(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Metadata;
        impl<'de> Visitor<'de> for Metadata {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Texts, A::Error> {
                let (mut texts, mut names) = (Vec::new(), HashSet::new());
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    if !names.insert(name.clone()) {
                        return Err(de::Error::custom(format!("{name:?} twice")));
                    }
                    texts.push((name, value));
                }
                Ok(Texts(texts))
            }
        }
        deserializer.deserialize_map(Metadata)
    }
}
