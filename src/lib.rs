//! The Node-API addon of kvtide: glue alone.
//!
//! One file per exported class. Arguments were checked by the TypeScript layer; what arrives here is checked again where a
//! wrong value could reach memory. Every call runs inside [`guard`], so that a refusal becomes a coded error and a panic
//! never leaves the addon.
//!
//! - One addon a process. `lib/loading/binding-choice.ts` takes the one with CUDA where it is installed, else that of the platform (`lib/loading/platform.ts`),
//!   beside the package or in a package of its own, and refuses a second one, which it finds among the files that the process has mapped.
//!   What is chosen is looked at before it is loaded (`lib/loading/addon-file.ts`): a library that is cut short would end the process. So there is one
//!   loader, and none is generated; of the build, the package has the addon and its types. The addon with CUDA links with stubs for NVIDIA's libraries, which open the real
//!   ones at the first call (`scripts/cuda/stubs.mjs`): so it loads anywhere, and every call without them is an error code.
//! - All numbers cross as `f64` and are checked twice: in `lib/border/check.ts`, where the error names the argument, and in
//!   `border/number.rs`, where a wrong one could reach memory.
//! - A tensor argument crosses as its typed array, or as the buffer that a cache showed, with a description in a shared
//!   `Float64Array` (`lib/border/host-tensor.ts`, `border/tensor_arg.rs`); only one that someone has looked at crosses as a native view. Lengths are compared on both sides; memory that other threads can change is refused; memory of the cache
//!   itself, handed out by `data`, is copied first.
//! - A result crosses as numbers (`border/cache_views.rs`, `lib/border/cache-handle.ts`): an object with a finalizer costs V8 microseconds, and a decode
//!   loop seldom looks at what each append shows. The cache hands its buffer over as an object once, and again when it has taken
//!   another; a native view is made when someone looks at a `Tensor`, with the stamp of the call that showed it. The object lets go of
//!   the buffer once the cache shows another and no tensor may look at it any more, without waiting to be collected. Disposing of a cache gives back the memory of everything that was made from it.
//! - Options are read against a list of their names (`known` in `lib/border/check.ts`), which the compiler holds against their type: one that does
//!   not exist is refused. Memory that becomes an array of JavaScript's goes through `border/external_array.rs`, which frees it where there is no
//!   JavaScript any more to take it.
//! - Objects of `lib/` keep their native one in a private field, with the class that it was made for (`lib/border/owner.ts`): nothing
//!   else passes for one, whatever its prototype says.
//! - Refusals are thrown as instances of the package's own class (`border/refusal.rs`), built from code, message and fields: no text is
//!   parsed. The addon's codes and the TypeScript union are compared by a test.
//! - `attend` crosses once: descriptions and options in one `Float64Array` (`lib/attention/attend-call.ts`, `attention/queries.rs`), the
//!   lists that a call seldom has in one array. An output of up to 64 KiB is a typed array of JavaScript's own; its `Tensor` goes to
//!   native memory when someone looks at more than its elements. Larger ones are native memory: where V8 cannot allocate, it ends
//!   the process.
//! - What a call of attention asks (`attention/queries.rs`) is read apart from the keys and values: a request
//!   (`attention/request.rs`) is over tensors, pages, or a layer of a model: of a step, in whichever way it is kept, or of sequences in blocks.
//! - `prepareStep` begins a step and fills its tables in the caller's arrays in one crossing (`sequences/step_batch.rs`, `lib/sequences/step-batch.ts`): five
//!   arrays a group, checked to lie apart. Rows behind those of a short step have no tokens, so attention takes the arrays as they are.
//! - `attendAsync` is a task (`attention/task.rs`), not a thread-safe function, and so is reading a tensor off the main thread
//!   (`border/read_task.rs`). It has copies of JavaScript's memory and pinned
//!   views (`OwnedSource`), and lets go of them on the JavaScript thread, right before its promise is settled: whether a call is
//!   `BUSY` never depends on how fast the work was. What it was called with stays borrowed until then, so an object that may be an
//!   argument has no calls that need it alone (`&mut self`); a paged cache has, and gives a request that is started by itself.
//! - The engine. What the objects of one cache of sequences share is an `Engine` (`lib/sequences/engine.ts`): the native cache, its
//!   clock, and who waits for changes. A `Sequence` is a number and its engine, so that one of another cache is refused by
//!   looking, and losing the object loses nothing; the sequence ends when it is dropped. Snapshots, matches and steps are native
//!   objects: what is collected gives its blocks back at the cache's next call. A match is taken out of its object by the sequence
//!   that is made of it, after everything that could refuse it was asked.
//! - A policy of eviction is asked by the constructor, once for each priority and depth (`lib/sequences/eviction.ts`), and crosses as one table of
//!   ranks: no change of a cache calls JavaScript, which could call the cache.
//! - The clock is asked only while a time limit is in use, before calls that change something. Readers of `events()` are woken once
//!   the running code has ended, by calls that may have changed the index, and take up to 256 events in a crossing.
//! - A panic is caught at each call (`border/handle.rs`) and thrown as `INTERNAL`; the object it happened in is poisoned. Integer
//!   arithmetic is checked in release builds too.
#![deny(unsafe_code)]

mod attention;
mod blocks;
mod border;
mod contiguous;
mod sequences;
