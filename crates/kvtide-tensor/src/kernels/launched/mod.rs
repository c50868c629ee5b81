//! The kernels of a device, launched on its stream: one file per operation, each a sibling of the portable one.
//!
//! Callers have checked what they ask for; the launches check again that nothing reaches outside its memory.
//!
//! - Kernels (`kvtide-cuda/kernels`, one `.cu` file per operation) move bytes in units of up to 16, and know spans, strides, strips
//!   and lists. Their launchers check every bound before the launch, choose the widest unit that divides all addresses and strides, and
//!   hand lists along in the arguments while they are short.
//! - A CPU that stands in for a GPU (`kernels/emulate.h`, feature `emulate`): the same files, compiled by a C++ compiler, run thread by
//!   thread, each on a stack of its own and in an order drawn per launch; barriers and shuffles wait for all lanes, asynchronous copies
//!   happen when they are waited for. With `KVTIDE_KERNELS=emulated` every test of the caches runs over them.
//! - Attention (`kernels/attend*`, `kvtide-cuda/src/attend`, `attention/launched.rs`) reads keys and values where they lie, page by page or
//!   run by run, through tiles in shared memory that are copied ahead. Where queries have two bytes, tensor cores multiply 16 rows at a
//!   time, and low-bit tiles are widened to the queries' type first; else floats are multiplied as floats. Few rows share a block and its
//!   warps share the keys, many rows share the keys and each warp has its own. Keys are cut in shares by sizes alone, and put together by
//!   their log-sum-exps. Lengths and block tables may lie in the device's memory, for launches that are repeated as they are.
//! - Memory of a device is counted by the device's budget (`memory.rs`), and sources are brought there (`Resolved::bring`): what the host
//!   has is copied, what lies on another device is refused.
//! - All work of a GPU goes to one stream, in the order in which it was given; only a call that brings data back waits.

mod gather;
mod rows;
mod write;

pub(super) use gather::{gather, read};
pub(super) use rows::{copy_rows, move_rows};
pub(super) use write::write;
