//! Lists of numbers that a launch passes along with its arguments.

use bytemuck::{Pod, Zeroable};

/// A kernel's list: inside the arguments while it is short, else in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct List {
    far: u64,
    near: [u64; List::NEAR],
}

impl List {
    /// The number of words that fit in the arguments, which have at most 4 KiB.
    const NEAR: usize = 256;

    /// A list inside the arguments; `None` if it is too long.
    pub fn near<T: Pod>(items: &[T]) -> Option<Self> {
        let bytes: &[u8] = bytemuck::cast_slice(items);
        let mut list = List { far: 0, near: [0; List::NEAR] };
        bytemuck::bytes_of_mut(&mut list.near).get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(list)
    }

    /// A list in device memory.
    #[cfg_attr(
        not(any(feature = "cuda", feature = "emulate")),
        expect(dead_code, reason = "a build without a stream has no device memory")
    )]
    pub fn far(address: u64) -> Self {
        List { far: address, near: [0; List::NEAR] }
    }
}
