//! Numbers that a launch hands along with its arguments.

use bytemuck::{Pod, Zeroable};

/// Where a kernel finds its list: in itself while it is short, else in the device's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct List {
    far: u64,
    near: [u64; List::NEAR],
}

impl List {
    /// Words that fit in the arguments, which are at most 4 KiB.
    const NEAR: usize = 256;

    /// A list that fits in the arguments; nothing for a longer one.
    pub fn near<T: Pod>(items: &[T]) -> Option<Self> {
        let bytes: &[u8] = bytemuck::cast_slice(items);
        let mut list = List { far: 0, near: [0; List::NEAR] };
        bytemuck::bytes_of_mut(&mut list.near).get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(list)
    }

    /// One that lies in the device's memory.
    pub fn far(address: u64) -> Self {
        List { far: address, near: [0; List::NEAR] }
    }
}
