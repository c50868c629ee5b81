//! The kernels by name, and the grids they run in.
#![cfg_attr(feature = "emulate", expect(unsafe_code, reason = "the kernels on the CPU are C++ functions"))]

use bytemuck::{Pod, Zeroable};

/// A kernel on the CPU.
#[cfg(feature = "emulate")]
pub(crate) type Entry = unsafe extern "C" fn(*const Grid, *const std::ffi::c_void) -> i32;

/// A kernel, with its name in the source file.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub name: &'static str,
    #[cfg(feature = "cuda")]
    pub module: crate::gpu::Module,
    #[cfg(feature = "emulate")]
    pub emulated: Entry,
}

/// The division of a launch into blocks of threads; the CPU's kernels read it in this layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct Grid {
    pub blocks: [u32; 3],
    pub threads: [u32; 3],
    pub shared_bytes: u32,
    /// The seed of the order of the CPU's threads.
    seed: u32,
}

/// The shared memory of a block on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedRoom {
    /// The most that a block can have.
    pub most: usize,
    /// The most per block with which two blocks fit on a multiprocessor.
    pub twice: usize,
}

impl Grid {
    /// A grid of blocks with this many threads in one dimension.
    pub fn new(blocks: [usize; 3], threads: usize) -> Self {
        let number = |count: usize| u32::try_from(count).expect("a grid of 32 bits");
        let grid = Grid { blocks: blocks.map(number), threads: [number(threads), 1, 1], shared_bytes: 0, seed: 0 };
        assert!(grid.blocks[1..].iter().all(|&blocks| blocks <= Grid::INNER_MAX), "blocks along a second dimension");
        grid
    }

    /// The most blocks along the second and the third dimension.
    pub const INNER_MAX: u32 = 65_535;

    /// The same grid with another order of the CPU's threads.
    #[cfg(feature = "emulate")]
    pub fn seeded(self, seed: u32) -> Self {
        Grid { seed, ..self }
    }
}

macro_rules! kernels {
    ($($module:ident { $($list:ident: $kind:ty = $($name:ident)+;)+ })+) => {
        $($(
            pub(crate) static $list: $kind = kernels!(@list $module, $($name)+);
        )+)+

        #[cfg(feature = "emulate")]
        mod entries {
            use std::ffi::c_void;

            use super::Grid;

            unsafe extern "C" {
                $($($(pub(super) fn $name(grid: *const Grid, args: *const c_void) -> i32;)+)+)+
            }
        }
    };
    (@list $module:ident, $name:ident) => { kernels!(@one $module, $name) };
    (@list $module:ident, $($name:ident)+) => { [$(kernels!(@one $module, $name)),+] };
    (@one $module:ident, $name:ident) => {
        &Kernel {
            name: stringify!($name),
            #[cfg(feature = "cuda")]
            module: crate::gpu::Module::$module,
            #[cfg(feature = "emulate")]
            emulated: entries::$name,
        }
    };
}

/// A kernel for each unit: 16, 8, 4, 2 bytes and 1 byte.
pub(crate) type ByUnit = [&'static Kernel; 5];

/// Kernels for rows of up to this many elements: 64, 96, 128 and 256, or 64, 128, 256 and 512.
pub(crate) type ByDim = [&'static Kernel; 4];

kernels! {
    AttendDecode {
        ATTEND_DECODE_F16: ByDim = attend_decode_f16_64 attend_decode_f16_96 attend_decode_f16_128 attend_decode_f16_256;
        ATTEND_DECODE_BF16: ByDim = attend_decode_bf16_64 attend_decode_bf16_96 attend_decode_bf16_128 attend_decode_bf16_256;
    }
    AttendPrefill {
        ATTEND_PREFILL_F16: ByDim = attend_prefill_f16_64 attend_prefill_f16_96 attend_prefill_f16_128 attend_prefill_f16_256;
        ATTEND_PREFILL_BF16: ByDim = attend_prefill_bf16_64 attend_prefill_bf16_96 attend_prefill_bf16_128 attend_prefill_bf16_256;
    }
    AttendFloats { ATTEND_FLOATS: ByDim = attend_floats_64 attend_floats_128 attend_floats_256 attend_floats_512; }
    AttendMerge { ATTEND_MERGE: &Kernel = attend_merge; }
    Boxes { COPY_BOXES: ByUnit = copy_boxes_16 copy_boxes_8 copy_boxes_4 copy_boxes_2 copy_boxes_1; }
    Holes { ZERO_SLOTS: &Kernel = zero_slots; }
    Quantise {
        SEAL: [&'static Kernel; 2] = seal_4 seal_1;
        UNSEAL: [&'static Kernel; 2] = unseal_4 unseal_1;
    }
    Shift { SHIFT: ByUnit = shift_16 shift_8 shift_4 shift_2 shift_1; }
    Strips {
        SCATTER: ByUnit = scatter_16 scatter_8 scatter_4 scatter_2 scatter_1;
        GATHER: ByUnit = gather_16 gather_8 gather_4 gather_2 gather_1;
    }
    Pieces {
        COPY_PIECES: ByUnit = copy_pieces_16 copy_pieces_8 copy_pieces_4 copy_pieces_2 copy_pieces_1;
        ZERO_PIECES: ByUnit = zero_pieces_16 zero_pieces_8 zero_pieces_4 zero_pieces_2 zero_pieces_1;
    }
}
