//! The arguments of the attention kernels: `kernels/attend/args.cuh` in Rust.

use bytemuck::{Pod, Zeroable};

use crate::divisor::Divisor;
use crate::list::List;

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(super) struct Strided {
    pub pieces: [u64; 2],
    pub batch: u64,
    pub head: u64,
    pub token: u64,
    pub first: u32,
    pub unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(super) struct ReadSection {
    pub codes: u64,
    pub scales: u64,
    pub head_codes: u64,
    pub head_scales: u64,
    pub row_bytes: u32,
    pub format: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(super) struct ReadPart {
    pub rows: Strided,
    pub sections: [ReadSection; 2],
    pub dim: u32,
    pub unit: u32,
    pub is_direct: u32,
    pub stride: u32,
    pub units: Divisor,
    pub row_bytes: u32,
}

/// The place of numbers: an address in device memory, or an offset in the call's list.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Numbers {
    pub far: u64,
    pub near: u64,
}

impl Numbers {
    pub const NONE: Numbers = Numbers { far: 0, near: u64::MAX };
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(super) struct ReadSequence {
    pub positions: [i64; 2],
    pub start: i64,
    pub keys: [u32; 2],
    pub first_query: u32,
    pub queries: u32,
    pub first_key: u32,
    pub table: u32,
    pub nodes: u32,
    pub depths: u32,
    pub seen: u32,
    pub splits: u32,
    pub kept: u64,
    pub from: u32,
    pub stem: u32,
    pub stem_query: u32,
    pub members: u32,
    pub tail_from: u32,
    pub tail: u32,
    pub first_node: i32,
    pub unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(super) struct Shared {
    pub queries: u32,
    pub scratch: u32,
    pub states: u32,
    pub wide: [u32; 2],
    pub ring: u32,
    pub stage_bytes: u32,
    pub values: u32,
    pub scales: u32,
    pub entries: u32,
    pub stages: u32,
    pub rows: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Args {
    pub queries: Strided,
    pub parts: [ReadPart; 2],
    pub slabs: [u64; 2],
    pub block_bytes: [u64; 2],
    pub blocks: [u32; 2],
    pub out: u64,
    pub sums: u64,
    pub split_states: u64,
    pub split_rows: u64,
    pub mask: u64,
    pub mask_strides: [u64; 4],
    pub window: i64,
    pub sinks: i64,
    pub sequences: Numbers,
    pub ends: Numbers,
    pub tables: Numbers,
    pub positions: Numbers,
    pub logits: Numbers,
    pub seen: Numbers,
    pub depths: Numbers,
    pub members: Numbers,
    pub tails: Numbers,
    pub slopes: Numbers,
    pub member_positions: Numbers,
    pub scale: f32,
    pub softcap: f32,
    pub query_format: u32,
    pub is_paged: u32,
    pub is_ragged: u32,
    pub is_causal: u32,
    /// One bit for keys, and one for values.
    pub rotated: u32,
    pub query_heads: u32,
    pub has_shared_positions: u32,
    pub count: u32,
    pub block_size: Divisor,
    pub group: Divisor,
    pub shared: Shared,
    pub list: List,
}

/// The kernels assert the same size in `kernels/attend/args.cuh`.
const _: () = assert!(size_of::<Args>() == 2840);
