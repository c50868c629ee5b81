//! The formats in which pages store rows of K or of V.
//!
//! | format | codes of a row | scales |
//! | --- | --- | --- |
//! | `f32`, `f16`, `bf16`, `u8` | its elements | none |
//! | `f8e4m3` | a byte an element | none |
//! | `q8` | a byte an element | one bf16 per token and head |
//! | `q4` | half a byte an element | a word of 4 bytes, scale and minimum: V per token and head, K per channel and head |
//!
//! A scale has the exponent range of an f32, so rows of any magnitude have a scale.
//!
//! The last three are *low-bit*: rows are quantised, and a page is written when it is full. All calls are O(1).

/// The two halves of a layer's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyOrValue {
    /// K.
    Key,
    /// V.
    Value,
}

impl KeyOrValue {
    /// K and V, in the order in which a page stores them.
    pub const BOTH: [KeyOrValue; 2] = [KeyOrValue::Key, KeyOrValue::Value];
}

/// Bytes of a scale of `q8`, a bf16.
const Q8_SCALE_BYTES: usize = 2;
/// Bytes of a word of `q4`: a scale of 14 bits and a minimum of 18.
const Q4_WORD_BYTES: usize = 4;

named! {
    /// The form of the rows of K or of V in a page.
    PageFormat, name;

    /// 32-bit floats.
    F32 = "f32",
    /// Half floats.
    F16 = "f16",
    /// Half floats with the range of f32.
    BF16 = "bf16",
    /// Bytes with any meaning.
    U8 = "u8",
    /// 8-bit floats of 4 exponent and 3 mantissa bits, without infinities: OCP E4M3.
    F8E4M3 = "f8e4m3",
    /// Two's complement bytes with a scale for each token and head.
    Q8 = "q8",
    /// Four bits, with a scale and a minimum for each token and head of V, for each channel and head of K.
    Q4 = "q4",
}

impl PageFormat {
    /// True if rows are quantised, so that a page is written as a whole.
    #[must_use]
    pub fn is_low_bit(self) -> bool {
        matches!(self, PageFormat::F8E4M3 | PageFormat::Q8 | PageFormat::Q4)
    }

    /// Bytes of the codes of one row; [`None`] if memory cannot address them.
    #[must_use]
    pub fn row_bytes(self, elements: usize) -> Option<usize> {
        match self {
            PageFormat::F32 => elements.checked_mul(4),
            PageFormat::F16 | PageFormat::BF16 => elements.checked_mul(2),
            PageFormat::U8 | PageFormat::F8E4M3 | PageFormat::Q8 => Some(elements),
            PageFormat::Q4 => Some(elements.div_ceil(2)),
        }
    }

    /// Bytes of one element; [`None`] for low-bit formats.
    #[must_use]
    pub fn element_bytes(self) -> Option<usize> {
        if self.is_low_bit() { None } else { self.row_bytes(1) }
    }

    /// Bytes of the scales of one head of a page; [`None`] if memory cannot address them.
    pub(super) fn scale_bytes(self, part: KeyOrValue, block_size: usize, elements: usize) -> Option<usize> {
        match (self, part) {
            (PageFormat::Q8, _) => block_size.checked_mul(Q8_SCALE_BYTES),
            (PageFormat::Q4, KeyOrValue::Key) => elements.checked_mul(Q4_WORD_BYTES),
            (PageFormat::Q4, KeyOrValue::Value) => block_size.checked_mul(Q4_WORD_BYTES),
            _ => Some(0),
        }
    }
}

impl std::fmt::Display for PageFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for PageFormat {
    type Err = String;

    /// Returns the format with this name, or as the error a list of all names.
    fn from_str(name: &str) -> Result<Self, String> {
        let names = || PageFormat::ALL.iter().map(|format| format.name()).collect::<Vec<_>>().join(", ");
        PageFormat::ALL.iter().copied().find(|format| format.name() == name).ok_or_else(names)
    }
}
