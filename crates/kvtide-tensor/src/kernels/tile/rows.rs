//! Rows of elements and of floats for the tile kernels: the formats of K and V in memory, their conversion to floats, and
//! prefetching, because memory latency is longer than the work on a row.
#![expect(unsafe_code, reason = "rows are read through pointers that the caller has checked")]
#![allow(unsafe_op_in_unsafe_fn, reason = "each method is one load; the trait states what it needs")]

use kvtide_core::paged::PageFormat;

use crate::kernels::simd::Lanes;

/// The most floats of a vector on any machine: rows of floats are padded to a multiple of it.
pub(crate) const LANES_MAX: usize = 16;

/// The format of elements in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    F32,
    F16,
    Bf16,
    F8,
    I8,
    Nibbles,
}

impl Elements {
    /// The elements of pages in this format.
    pub fn of(format: PageFormat) -> Self {
        match format {
            PageFormat::F32 => Elements::F32,
            PageFormat::F16 => Elements::F16,
            PageFormat::BF16 => Elements::Bf16,
            PageFormat::F8E4M3 => Elements::F8,
            PageFormat::Q8 | PageFormat::U8 => Elements::I8,
            PageFormat::Q4 => Elements::Nibbles,
        }
    }

    /// The bytes of a row with `dim` elements.
    pub fn row_bytes(self, dim: usize) -> usize {
        match self {
            Elements::F32 => 4 * dim,
            Elements::F16 | Elements::Bf16 => 2 * dim,
            Elements::F8 | Elements::I8 => dim,
            Elements::Nibbles => dim.div_ceil(2),
        }
    }

    /// True if the kernels read rows of `dim` elements in place; other rows are widened first.
    pub fn is_direct(self, dim: usize) -> bool {
        self != Elements::Nibbles || dim.is_multiple_of(32)
    }
}

/// Equidistant rows of elements, equally many for each of several heads, which are equidistant too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileRows<'a> {
    pub elements: Elements,
    pub bytes: &'a [u8],
    /// The byte offset of the first row of the first head.
    pub offset: usize,
    pub heads: usize,
    /// The distance from one head to the next in bytes.
    pub head_stride: usize,
    /// The distance from one row of a head to the next in bytes.
    pub stride: usize,
    /// The number of rows of each head.
    pub count: usize,
    /// The number of elements of a row.
    pub dim: usize,
    /// Prefetching while they are read.
    pub ahead: Ahead,
}

impl<'a> TileRows<'a> {
    /// Rows of one head from the first byte on, without prefetching.
    pub fn new(elements: Elements, bytes: &'a [u8], stride: usize, count: usize, dim: usize) -> Self {
        let ahead = Ahead::NOTHING;
        TileRows { elements, bytes, offset: 0, heads: 1, head_stride: 0, stride, count, dim, ahead }
    }

    /// The rows of one head.
    pub fn head(self, head: usize) -> Self {
        TileRows { offset: self.offset + head * self.head_stride, heads: 1, ..self }
    }

    /// Rows `first .. first + count` of each head.
    pub fn part(self, first: usize, count: usize) -> Self {
        TileRows { offset: self.offset + first * self.stride, count, ..self }
    }

    /// Panics if rows reach outside their memory.
    pub(super) fn check(&self) {
        let last =
            self.offset + self.heads.saturating_sub(1) * self.head_stride + self.count.saturating_sub(1) * self.stride;
        assert!(last + self.elements.row_bytes(self.dim) <= self.bytes.len(), "rows reach outside their memory");
    }

    /// The prefetch distances, from the first row on.
    pub(super) fn ahead_of_first(&self) -> AheadOf {
        let Ahead { near, far, turn } = self.ahead;
        AheadOf { near, far, turn: self.first().addr().saturating_add(turn) }
    }

    /// The address of the first row.
    pub(super) fn first(&self) -> *const u8 {
        self.bytes[self.offset..].as_ptr()
    }
}

/// `count` rows of floats, `stride` apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    pub floats: &'a [f32],
    pub stride: usize,
    pub count: usize,
}

/// Rows of floats, for writing.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a> {
    pub floats: &'a mut [f32],
    pub stride: usize,
}

/// The padded length of a row with `dim` elements.
pub(crate) fn padded(dim: usize) -> usize {
    dim.next_multiple_of(LANES_MAX)
}

/// Converts 4-bit codes whose last group has fewer than 32 codes.
pub(super) fn widen_nibbles(row: &[u8], dim: usize, out: &mut [f32]) {
    for group in (0..dim).step_by(32) {
        let codes = 32.min(dim - group);
        let half = codes.div_ceil(2);
        for index in 0..codes {
            let byte = row[group / 2 + index % half];
            out[group + index] = f32::from(if index < half { byte & 15 } else { byte >> 4 });
        }
    }
}

/// Prefetch distances of rows. At the end of a page the next rows are at another distance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// The distance in bytes from a row to the address that is prefetched; 0 if it is unknown.
    pub near: isize,
    /// The same for rows that begin at least `turn` bytes after the first row.
    pub far: isize,
    pub turn: usize,
}

/// Like [`Ahead`], where `turn` is an address.
#[derive(Clone, Copy)]
pub(super) struct AheadOf {
    pub near: isize,
    pub far: isize,
    pub turn: usize,
}

impl AheadOf {
    /// The distance in bytes from a row to the address that is prefetched.
    #[inline(always)]
    pub fn from(&self, row: *const u8) -> isize {
        if row.addr() < self.turn { self.near } else { self.far }
    }
}

/// Prefetches the lines at the distance `ahead` from a row of `bytes` bytes; nothing if `ahead` is 0.
///
/// # Safety
///
/// The machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn ask<V: Lanes>(row: *const u8, bytes: usize, ahead: isize) {
    if ahead != 0 {
        for line in (0..bytes).step_by(64) {
            // SAFETY: the caller's promise; any address may be prefetched.
            unsafe { V::prefetch(row.wrapping_offset(ahead).wrapping_add(line)) };
        }
    }
}

impl Ahead {
    /// Nothing is prefetched.
    pub const NOTHING: Ahead = Ahead { near: 0, far: 0, turn: 0 };
    /// Rows are contiguous.
    pub const STRAIGHT: Ahead = Ahead { near: AHEAD as isize, far: 0, turn: usize::MAX };
}

/// The prefetch distance in bytes: 4 KiB were too few, 32 KiB no better.
pub(crate) const AHEAD: usize = 16384;

/// A format of elements in a row.
///
/// # Safety
///
/// The row has `V::COUNT` elements from `index` on, a multiple of it, and the machine has the instructions of `V`.
pub(crate) trait ElementFormat {
    /// The number of bits of one element.
    const BITS: usize;

    unsafe fn load<V: Lanes>(row: *const u8, index: usize) -> V;
}

macro_rules! formats {
    ($($(#[$doc:meta])+ $name:ident, $bits:literal, |$row:ident, $index:ident| $load:expr;)+) => {$(
        $(#[$doc])+
        pub(crate) struct $name;

        impl ElementFormat for $name {
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
    /// Upper halves of 32-bit floats.
    Bf16, 16, |row, index| V::load_bf16(row.add(2 * index));
    /// 8-bit floats with 4 bits of exponent, without infinities.
    F8, 8, |row, index| V::load_f8(row.add(index));
    /// Signed bytes, without their scale.
    I8, 8, |row, index| V::load_i8(row.add(index));
    /// Codes of 4 bits in groups of 32: 16 bytes, with the first 16 codes in the low nibbles and the others in the high
    /// nibbles.
    Nibbles, 4, |row, index| V::load_nibbles(row.add(index / 32 * 16 + index % 16), index % 32 >= 16);
}

/// The elements from `index` on, `count` of them and fewer than a vector has, followed by zeros. Not for [`Nibbles`].
///
/// # Safety
///
/// As for [`ElementFormat::load`], with `count` elements.
#[inline(always)]
pub(crate) unsafe fn load_some<F: ElementFormat, V: Lanes>(row: *const u8, index: usize, count: usize) -> V {
    let mut bytes = [0u8; 64];
    let width = F::BITS / 8;
    std::ptr::copy_nonoverlapping(row.add(index * width), bytes.as_mut_ptr(), count * width);
    F::load(bytes.as_ptr(), 0)
}
