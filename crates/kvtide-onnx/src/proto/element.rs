//! The element types of tensors, in one table.

use std::fmt;

/// The type of a tensor's elements, by its number in ONNX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementType(pub i32);

/// Number, name, bits; 0 bits if the size is not fixed.
const TABLE: [(i32, &str, u64); 26] = [
    (1, "f32", 32),
    (2, "u8", 8),
    (3, "i8", 8),
    (4, "u16", 16),
    (5, "i16", 16),
    (6, "i32", 32),
    (7, "i64", 64),
    (8, "string", 0),
    (9, "bool", 8),
    (10, "f16", 16),
    (11, "f64", 64),
    (12, "u32", 32),
    (13, "u64", 64),
    (14, "complex64", 64),
    (15, "complex128", 128),
    (16, "bf16", 16),
    (17, "f8e4m3fn", 8),
    (18, "f8e4m3fnuz", 8),
    (19, "f8e5m2", 8),
    (20, "f8e5m2fnuz", 8),
    (21, "u4", 4),
    (22, "i4", 4),
    (23, "f4e2m1", 4),
    (24, "f8e8m0", 8),
    (25, "u2", 2),
    (26, "i2", 2),
];

impl ElementType {
    /// 32-bit floats.
    pub const F32: Self = Self(1);
    /// 8-bit integers without a sign.
    pub const U8: Self = Self(2);
    /// 8-bit integers.
    pub const I8: Self = Self(3);
    /// 32-bit integers.
    pub const I32: Self = Self(6);
    /// 64-bit integers.
    pub const I64: Self = Self(7);
    /// Booleans.
    pub const BOOL: Self = Self(9);
    /// Half floats.
    pub const F16: Self = Self(10);
    /// 64-bit floats.
    pub const F64: Self = Self(11);
    /// Brain floats.
    pub const BF16: Self = Self(16);
    /// Floats of 8 bits, 3 of them behind the point.
    pub const F8E4M3: Self = Self(17);

    fn row(self) -> Option<&'static (i32, &'static str, u64)> {
        TABLE.iter().find(|row| row.0 == self.0)
    }

    /// The bits of one element, if they are fixed and known.
    pub fn bits(self) -> Option<u64> {
        self.row().map(|row| row.2).filter(|&bits| bits > 0)
    }

    /// True if pages can store this type.
    pub(crate) fn is_float(self) -> bool {
        [Self::F32, Self::F16, Self::BF16].contains(&self)
    }

    /// The bits of a number in a quantised past of this type. A byte without a sign holds two numbers.
    pub(crate) fn code_bits(self) -> Option<u32> {
        match self {
            Self::I8 | Self::F8E4M3 => Some(8),
            Self::U8 => Some(4),
            _ => None,
        }
    }

    pub(crate) fn is_int(self) -> bool {
        [Self::I32, Self::I64].contains(&self)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row() {
            Some(row) => to.write_str(row.1),
            None => write!(to, "type {}", self.0),
        }
    }
}
