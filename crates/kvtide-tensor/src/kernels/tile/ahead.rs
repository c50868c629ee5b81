//! What is asked for before it is needed: the memory takes longer to answer than a row takes.

use crate::kernels::simd::Lanes;

/// Where that lies which is needed soon after a row: rows go on elsewhere at the end of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// Bytes from a row to what is asked for; 0 when nobody knows.
    pub near: isize,
    /// The same for rows that begin `turn` bytes behind the first one, and further.
    pub far: isize,
    pub turn: usize,
}

/// The same, where `turn` is an address.
#[derive(Clone, Copy)]
pub(super) struct AheadOf {
    pub near: isize,
    pub far: isize,
    pub turn: usize,
}

impl AheadOf {
    /// Bytes from a row to what is asked for.
    #[inline(always)]
    pub fn from(&self, row: *const u8) -> isize {
        if row.addr() < self.turn { self.near } else { self.far }
    }
}

/// Asks for what is `ahead` of a row of so many bytes; for nothing where that is 0.
///
/// # Safety
///
/// The machine has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn ask<V: Lanes>(row: *const u8, bytes: usize, ahead: isize) {
    if ahead != 0 {
        for line in (0..bytes).step_by(64) {
            // SAFETY: the caller's promise; any address can be asked for.
            unsafe { V::prefetch(row.wrapping_offset(ahead).wrapping_add(line)) };
        }
    }
}

impl Ahead {
    /// Nothing is asked for.
    pub const NOTHING: Ahead = Ahead { near: 0, far: 0, turn: 0 };
    /// Rows go on behind each other.
    pub const STRAIGHT: Ahead = Ahead { near: AHEAD as isize, far: 0, turn: usize::MAX };
}

/// Bytes that are asked for ahead of their use: 4 KiB were too few, 32 no better.
pub(crate) const AHEAD: usize = 16384;
