//! The Node-API addon of kvtide: conversions between JavaScript and the Rust crates, one class per file. A call that
//! can fail takes the environment and runs inside `guard` or a `Handle` (`border/handle.rs`), so that errors become
//! JavaScript errors with a code; every other call is marked `catch_unwind`. No panic leaves the addon.
//!
//! - **Checks.** The TypeScript layer checks arguments and names the wrong one. Everything that could cause an invalid
//!   memory access is checked here again: numbers must be whole, lengths are compared, and memory that other threads
//!   can change is refused.
//! - **Tensors.** A tensor is passed as its typed array, or as the buffer that a cache handed out, with a description
//!   in a shared `Float64Array`. It becomes a native view only when the caller reads it (`border/tensor.rs`,
//!   `lib/border/tensor-storage.ts`).
//! - **Results** are returned as numbers. A cache returns its buffer as an object once, and again after it has
//!   allocated a new one. Disposing of a cache frees the memory of everything that was made from it.
//! - **Attention** takes one call: descriptions and options in one array of numbers, and the lists that few calls use
//!   in one array (`attention/queries.rs`, `lib/attention/attend-call.ts`).
//! - **Background work** is a task, not a thread-safe function. It owns copies of JavaScript's memory and pins the
//!   views it reads. It releases both on the JavaScript thread, right before its promise settles, so whether a call
//!   throws `BUSY` never depends on how fast the work was. The arguments of the call that starts a task stay borrowed
//!   until then, so a class whose objects may be such arguments has no methods with `&mut self`. A paged cache has such
//!   methods; it returns a request object instead, and starting that object is a call of its own.
//! - **Sequences** are numbers, so losing a JavaScript object loses nothing. Snapshots, matches and steps are native
//!   objects: after garbage collection their blocks are released at the cache's next call.
//! - **Callbacks.** No change to a cache calls JavaScript, because JavaScript could then call the cache. An eviction
//!   policy is passed as a table of ranks, and the current time is passed in before each call. `lib/` wakes the readers
//!   of events; they take up to 256 events per call.
//! - **Memory** that becomes a typed array is freed by `border/external_array.rs`, even if the JavaScript environment
//!   that should receive it is already gone.
//! - **Loading.** `lib/loading` chooses the addon, checks the file before loading it and refuses to load a second one.
//!   The CUDA addon links against stubs of NVIDIA's libraries, which open the real libraries at the first call
//!   (`scripts/cuda/stubs.mjs`). So it loads on every machine, and without the libraries every CUDA call returns an
//!   error code.
//!
//! Integer overflow is checked in release builds too.
#![deny(unsafe_code)]

mod attention;
mod blocks;
mod border;
mod contiguous;
mod files;
mod onnx;
mod router;
mod sampling;
mod sequences;
mod tiers;
