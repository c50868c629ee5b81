//! The number by which a block is known outside: which block, and which of its lives.
//!
//! ```text
//! bit 52          32 31           0
//!     [ generation ][    index    ]
//! ```
//!
//! A block that comes back and is handed out again gets its next generation, so that an old handle is recognised. The
//! whole is below 2^53: it survives as a number in every language.

use std::fmt;

/// The last generation of a block; after it the block is retired.
pub(super) const GENERATION_LAST: u32 = (1 << 21) - 1;

/// One block of a pool, from the moment it was handed out until it is given back.
///
/// Any number can be made into one; the pool that it is shown to says whether it means anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHandle(u64);

impl BlockHandle {
    /// The handle with this number.
    #[must_use]
    pub fn from_raw(raw: u64) -> Self {
        BlockHandle(raw)
    }

    pub(super) fn new(index: u32, generation: u32) -> Self {
        BlockHandle(u64::from(index) | u64::from(generation) << 32)
    }

    /// The handle as one number: index + generation × 2^32.
    #[must_use]
    pub fn raw(self) -> u64 {
        self.0
    }

    /// Place of the block in its pool, and in the slab.
    #[must_use]
    pub fn index(self) -> u32 {
        self.0 as u32
    }

    /// How often the block had been given back when it was handed out.
    #[must_use]
    pub fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Display for BlockHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
