//! How elements of K and V lie in memory, and how they become floats.
#![expect(unsafe_code, reason = "rows are read through pointers that the caller has checked")]
#![allow(unsafe_op_in_unsafe_fn, reason = "each method is one load; the trait states what it needs")]

use super::Lanes;

/// A row of elements.
///
/// # Safety
///
/// The row has `V::COUNT` elements from `index` on, a multiple of it, and the machine has the instructions of `V`.
pub(crate) trait Format {
    /// Bits of one element.
    const BITS: usize;

    unsafe fn load<V: Lanes>(row: *const u8, index: usize) -> V;
}

macro_rules! formats {
    ($($(#[$doc:meta])+ $name:ident, $bits:literal, |$row:ident, $index:ident| $load:expr;)+) => {$(
        $(#[$doc])+
        pub(crate) struct $name;

        impl Format for $name {
            const BITS: usize = $bits;

            #[inline(always)]
            unsafe fn load<V: Lanes>($row: *const u8, $index: usize) -> V {
                $load
            }
        }
    )+};
}

formats! {
    /// 32-bit floats.
    F32, 32, |row, index| V::load(row.cast::<f32>().add(index));
    /// Half floats.
    F16, 16, |row, index| V::load_f16(row.add(2 * index));
    /// The upper half of a 32-bit float.
    Bf16, 16, |row, index| V::load_bf16(row.add(2 * index));
    /// 8-bit floats with 4 bits of exponent, without infinities.
    F8, 8, |row, index| V::load_f8(row.add(index));
    /// Signed bytes, without their scale.
    I8, 8, |row, index| V::load_i8(row.add(index));
    /// Codes of 4 bits in groups of 32: 16 bytes, the first 16 codes in the low halves, the others in the high ones.
    Nibbles, 4, |row, index| V::load_nibbles(row.add(index / 32 * 16 + index % 16), index % 32 >= 16);
}

/// The elements from `index` on, `count` of them and fewer than a vector holds; zeros behind them. Not for [`Nibbles`].
///
/// # Safety
///
/// As for [`Format::load`], with `count` elements.
#[inline(always)]
pub(crate) unsafe fn load_some<F: Format, V: Lanes>(row: *const u8, index: usize, count: usize) -> V {
    let mut bytes = [0u8; 64];
    let width = F::BITS / 8;
    std::ptr::copy_nonoverlapping(row.add(index * width), bytes.as_mut_ptr(), count * width);
    F::load(bytes.as_ptr(), 0)
}
