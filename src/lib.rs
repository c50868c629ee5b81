//! The Node-API addon of kvtide: glue alone, one class a file. Every call runs inside `guard` (`border/handle.rs`), so that a
//! refusal becomes a coded error and a panic never leaves the addon.
//!
//! - **Checks.** The TypeScript layer checks arguments and names the wrong one. What could reach memory is checked here again: numbers
//!   are taken whole or refused, lengths are compared, memory that other threads can change is refused.
//! - **Tensors.** One crosses as its typed array, or as the buffer that a cache showed, with a description in a shared `Float64Array`.
//!   Only one that someone has looked at crosses as a native view (`border/tensor.rs`, `lib/border/tensor-storage.ts`).
//! - **Results** cross as numbers. A cache hands its buffer over as an object once, and again when it has taken another. Disposing of a
//!   cache gives back the memory of everything that was made from it.
//! - **Attention** crosses once: descriptions and options in one array of numbers, and the lists that few calls have in one array
//!   (`attention/queries.rs`, `lib/attention/attend-call.ts`).
//! - **Work in the background** is a task, not a thread-safe function. It has copies of JavaScript's memory and pinned views, and lets
//!   go of them on the JavaScript thread, right before its promise is settled: whether a call is `BUSY` never depends on how fast the
//!   work was. What a task was called with stays borrowed until then, so an object that may be an argument has no calls that need it
//!   alone (`&mut self`). A paged cache has such calls; it gives a request, which is started by itself.
//! - **Sequences** are numbers, so losing an object loses nothing. Snapshots, matches and steps are native objects: what is collected
//!   gives its blocks back at the cache's next call.
//! - **Callbacks.** No change of a cache calls JavaScript, which could call the cache: a policy of eviction crosses as a table of ranks,
//!   and the time comes in before the call. Readers of events are woken by `lib/` and take up to 256 events in a crossing.
//! - **Memory** of ours that becomes a typed array is freed by `border/external_array.rs`, also where there is no JavaScript any more
//!   to take it.
//! - **Loading.** `lib/loading` chooses the addon, looks at the file before it is loaded and refuses a second one. The addon with CUDA
//!   links with stubs for NVIDIA's libraries, which open the real ones at the first call (`scripts/cuda/stubs.mjs`): so it loads
//!   anywhere, and every call without them is an error code.
//!
//! Integer arithmetic is checked in release builds too.
#![deny(unsafe_code)]

mod attention;
mod blocks;
mod border;
mod contiguous;
mod onnx;
mod router;
mod sampling;
mod sequences;
mod store;
