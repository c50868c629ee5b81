//! The queries, mask, numbers and lists of an attention call. They borrow JavaScript's memory for the length of the
//! call, or own copies so that the call can run in the background.
//!
//! An array of numbers begins with the descriptions of four tensors (q, k, v, mask). After them come:
//!
//! ```text
//! scale (NaN: none)  causal  window (0: none)  sinks  softcap (0: none)  threads (0: all)  form of K and V  with lse
//! array of the caller's (0: none, 1: floats, 2: bits, 3: half floats)  its length  layer of pages
//! ```
//!
//! Arrays that few calls use are passed together, as one JavaScript array, or not at all:
//!
//! ```text
//! kvOffsets  sinkLogits  alibiSlopes  starts  positions  qOffsets  tree  treeOffsets  sequences  blockTables  kvLengths  mask
//! ```
#![expect(unsafe_code, reason = "the conversion of arguments is an unsafe trait function of napi")]

use std::borrow::Cow;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvtide_core::counted;
use kvtide_tensor::attention::{AttendOptions, Room};
use kvtide_tensor::buffers::{OwnedSource, Source};
use kvtide_tensor::runtime::Budget;
use kvtide_tensor::{DType, Error, HostTensor};
use napi::bindgen_prelude::{FromNapiValue, TypeName, ValidateNapiValue};
use napi::{Result, ValueType, check_status, sys};

use crate::border::argument::{ArrayArg, ArrayMemory, META, count, whole};
use crate::border::refusal::{Outcome, Refusal};
use crate::border::tensor::{TensorArg, source};

/// Offset of a call's own numbers, after the descriptions of q, k, v and the mask.
pub(crate) const NUMBERS: usize = 4 * META;

/// Form of K and V: `[tokens, heads, dim]` with offsets.
const RAGGED: f64 = 1.0;

/// Kinds of the caller's output array.
const FLOATS: f64 = 1.0;
const BITS: f64 = 2.0;
const HALVES: f64 = 3.0;

#[derive(Clone, Copy)]
pub(crate) struct CallNumbers {
    scale: Option<f32>,
    causal: bool,
    window: Option<u32>,
    sinks: u32,
    softcap: Option<f32>,
    threads: Option<usize>,
    /// True if K and V are `[tokens, heads, dim]`: all sequences concatenated, with offsets.
    pub ragged: bool,
    pub with_lse: bool,
    /// The kind of the caller's output array, and its length.
    out: (f64, f64),
    pub layer: u32,
}

pub(crate) struct Queries<'a> {
    q: Source<'a>,
    mask: Option<Source<'a>>,
    pub lists: Cow<'a, Lists<'a>>,
    pub numbers: CallNumbers,
}

/// Queries that outlive the JavaScript call that made them.
pub(crate) struct OwnedQueries {
    q: OwnedSource,
    mask: Option<OwnedSource>,
    lists: Lists<'static>,
    pub numbers: CallNumbers,
}

impl CallNumbers {
    fn read(call: &[f64]) -> Outcome<Self> {
        let &[scale, causal, window, sinks, softcap, threads, form, with_lse, kind, length, layer, ..] = call else {
            return Err(kvtide_core::Error::argument("call", call.len(), "the numbers of a call").into());
        };
        let given = |value: u32| (value > 0).then_some(value);
        Ok(CallNumbers {
            scale: (!scale.is_nan()).then_some(scale as f32),
            causal: causal != 0.0,
            window: given(count("window", window)?),
            sinks: count("sinks", sinks)?,
            softcap: (softcap != 0.0).then_some(softcap as f32),
            threads: given(count("threads", threads)?).map(|threads| threads as usize),
            ragged: form == RAGGED,
            with_lse: with_lse != 0.0,
            out: (kind, length),
            layer: count("layer", layer)?,
        })
    }

    /// Returns an error if the caller's output array has the wrong type or length.
    pub fn check_out(&self, room: &Room) -> kvtide_tensor::Result<()> {
        let (kind, length) = self.out;
        let given = match kind {
            FLOATS => "a Float32Array",
            BITS => "a Uint16Array",
            HALVES => "a Float16Array",
            _ => return Ok(()),
        };
        let expected = match room.dtype {
            DType::F16 if kind == BITS || kind == HALVES => None,
            DType::BF16 if kind == BITS => None,
            DType::F32 if kind == FLOATS => None,
            DType::F16 => Some("a Uint16Array or a Float16Array, for f16"),
            DType::BF16 => Some("a Uint16Array, for bf16"),
            _ => Some("a Float32Array, for f32"),
        };
        if let Some(expected) = expected {
            return Err(Error::argument("out", given, expected));
        }
        let elements: usize = room.shape.iter().product();
        if length != elements as f64 {
            let expected = format!("{}, for {:?}", counted(elements as u64, "element"), room.shape);
            return Err(Error::ShapeMismatch { argument: "out", value: vec![length as usize], expected });
        }
        Ok(())
    }
}

impl<'a> Queries<'a> {
    pub fn read(q: &'a TensorArg, lists: &'a ListsArg, call: &[f64]) -> Outcome<Self> {
        Ok(Queries {
            numbers: CallNumbers::read(call.get(NUMBERS..).unwrap_or(&[]))?,
            q: source("q", q, call, 0)?,
            mask: lists.mask().map(|mask| source("mask", mask, call, 3)).transpose()?,
            lists: Cow::Owned(lists.lists()?),
        })
    }

    /// Copies data from JavaScript's memory, and pins the caches.
    pub fn to_owned(&self, budget: &Arc<Budget>) -> Outcome<OwnedQueries> {
        Ok(OwnedQueries {
            q: OwnedSource::new(&self.q, "q", budget)?,
            mask: self.mask.as_ref().map(|mask| OwnedSource::new(mask, "mask", budget)).transpose()?,
            lists: self.lists.copied(),
            numbers: self.numbers,
        })
    }

    /// True if the queries, the mask or a list overlaps this memory.
    pub fn overlaps(&self, memory: *const u8, bytes: usize) -> bool {
        let sources = [Some(&self.q), self.mask.as_ref()];
        sources.into_iter().flatten().any(|source| source.overlaps(memory, bytes)) || self.lists.overlap(memory, bytes)
    }

    /// True if the queries are on a device with its own memory: the result stays there.
    pub fn are_away(&self) -> bool {
        matches!(&self.q, Source::View(view) if !view.device().is_cpu())
    }

    /// Calls `work` with the queries and the options of the call.
    pub fn ask<R>(
        &self,
        stop: Option<&AtomicBool>,
        work: impl FnOnce(Source<'_>, &AttendOptions<'_>) -> Outcome<R>,
    ) -> Outcome<R> {
        let CallNumbers { scale, causal, window, sinks, softcap, threads, .. } = self.numbers;
        let copied;
        let mask = match &self.mask {
            Some(Source::View(view)) => {
                copied = view.to_bytes()?;
                Some(HostTensor::new("mask", &copied, view.dtype(), view.shape())?)
            }
            Some(Source::Host(mask)) => Some(mask.clone()),
            Some(Source::Tensor(_)) | None => None,
        };
        let options = AttendOptions {
            scale,
            causal,
            window,
            sinks,
            sink_logits: self.lists.sink_logits.as_deref(),
            alibi_slopes: self.lists.alibi_slopes.as_deref(),
            softcap,
            mask,
            tree: self.lists.tree.as_deref(),
            tree_offsets: self.lists.tree_offsets.as_deref(),
            starts: self.lists.starts.as_deref(),
            positions: self.lists.positions.as_deref(),
            query_offsets: self.lists.query_offsets.as_deref(),
            lse: self.numbers.with_lse,
            threads,
            stop,
        };
        work(self.q.clone(), &options)
    }
}

impl OwnedQueries {
    /// Borrows the queries for one call.
    pub fn queries(&self) -> Outcome<Queries<'_>> {
        Ok(Queries {
            q: self.q.source()?,
            mask: self.mask.as_ref().map(OwnedSource::source).transpose()?,
            lists: Cow::Borrowed(&self.lists),
            numbers: self.numbers,
        })
    }
}

/// The caller's own output memory, if given. Returns an error if it overlaps an input.
pub(crate) fn memory_for(
    out: ArrayArg,
    is_read: impl FnOnce(*const u8, usize) -> bool,
) -> Outcome<Option<ArrayMemory>> {
    if !out.is_array() {
        return Ok(None);
    }
    let memory = out.memory("out")?;
    if is_read(memory.address(), memory.len()) {
        let value = "an array that overlaps an input";
        return Err(kvtide_core::Error::argument("out", value, "memory that no input uses").into());
    }
    Ok(Some(memory))
}

/// Number of typed arrays in the list; the mask follows them.
const LISTS: usize = 11;

/// The array of arrays, or nothing if the argument is not an array.
pub struct ListsArg(Option<Box<Entries>>);

/// The arrays as JavaScript passed them.
struct Entries {
    lists: [Option<ArrayArg>; LISTS],
    mask: Option<TensorArg>,
}

impl TypeName for ListsArg {
    fn type_name() -> &'static str {
        "array of arrays"
    }

    fn value_type() -> ValueType {
        ValueType::Object
    }
}

impl ValidateNapiValue for ListsArg {}

impl FromNapiValue for ListsArg {
    unsafe fn from_napi_value(env: sys::napi_env, value: sys::napi_value) -> Result<Self> {
        let mut is_array = false;
        // SAFETY: environment and value are those of the call whose arguments are converted.
        check_status!(unsafe { sys::napi_is_array(env, value, &mut is_array) })?;
        if !is_array {
            return Ok(ListsArg(None));
        }
        let mut found = Box::new(Entries { lists: [None; LISTS], mask: None });
        let entry = |index: usize| {
            let mut entry = ptr::null_mut();
            // SAFETY: as above; the array was made by our own code, and reading it runs no getter.
            check_status!(unsafe { sys::napi_get_element(env, value, index as u32, &mut entry) })?;
            Ok::<_, napi::Error>(entry)
        };
        for (index, list) in found.lists.iter_mut().enumerate() {
            // SAFETY: the entry was just read in this environment.
            *list = Some(unsafe { ArrayArg::from_napi_value(env, entry(index)?)? });
        }
        // SAFETY: as above.
        found.mask = Some(unsafe { TensorArg::from_napi_value(env, entry(LISTS)?)? });
        Ok(ListsArg(Some(found)))
    }
}

/// The lists of a call: borrowed from JavaScript for its length, or copied.
#[derive(Clone, Default)]
pub(crate) struct Lists<'a> {
    pub kv_offsets: Option<Cow<'a, [i32]>>,
    pub sink_logits: Option<Cow<'a, [f32]>>,
    pub alibi_slopes: Option<Cow<'a, [f32]>>,
    pub starts: Option<Cow<'a, [i32]>>,
    pub positions: Option<Cow<'a, [i32]>>,
    pub query_offsets: Option<Cow<'a, [i32]>>,
    pub tree: Option<Cow<'a, [i32]>>,
    pub tree_offsets: Option<Cow<'a, [i32]>>,
}

/// The pages that a call reads.
pub(crate) enum PagesArg<'a> {
    /// The pages of sequences, given by their ids.
    Sequences(Vec<u64>),
    /// The pages in the rows of a block table, with lengths in tokens.
    Tables(&'a [i32], &'a [i32]),
}

impl ListsArg {
    pub(crate) fn mask(&self) -> Option<&TensorArg> {
        self.0.as_ref()?.mask.as_ref().filter(|mask| mask.is_given())
    }

    pub(crate) fn pages<'a>(&self) -> Outcome<PagesArg<'a>> {
        let missing = || kvtide_core::Error::argument("kv", "nothing", "sequences, or blockTables and kvLengths");
        let entries = self.0.as_ref().ok_or_else(missing)?;
        let [.., sequences, tables, lengths] = entries.lists;
        if let Some(ids) = sequences.map(|list| list.elements::<f64>("sequences")).transpose()?.flatten() {
            return Ok(PagesArg::Sequences(ids.iter().map(|&id| whole("sequences", id)).collect::<Outcome<_>>()?));
        }
        let ints = |argument, list: Option<ArrayArg>| {
            Ok::<_, Refusal>(list.ok_or_else(missing)?.elements::<i32>(argument)?.ok_or_else(missing)?)
        };
        Ok(PagesArg::Tables(ints("blockTables", tables)?, ints("lengths", lengths)?))
    }

    /// The lists, borrowed without copying.
    pub(crate) fn lists<'a>(&self) -> Outcome<Lists<'a>> {
        let Some(entries) = &self.0 else { return Ok(Lists::default()) };
        let [kv_offsets, sink_logits, alibi_slopes, starts, positions, query_offsets, tree, tree_offsets, ..] =
            entries.lists;
        fn list<'a, T: bytemuck::AnyBitPattern>(
            argument: &'static str,
            list: Option<ArrayArg>,
        ) -> Outcome<Option<Cow<'a, [T]>>> {
            let Some(list) = list else { return Ok(None) };
            Ok(list.elements(argument)?.map(Cow::Borrowed))
        }
        Ok(Lists {
            kv_offsets: list("kvOffsets", kv_offsets)?,
            sink_logits: list("sinkLogits", sink_logits)?,
            alibi_slopes: list("alibiSlopes", alibi_slopes)?,
            starts: list("starts", starts)?,
            positions: list("positions", positions)?,
            query_offsets: list("qOffsets", query_offsets)?,
            tree: list("tree", tree)?,
            tree_offsets: list("treeOffsets", tree_offsets)?,
        })
    }
}

impl Lists<'_> {
    pub fn copied(&self) -> Lists<'static> {
        fn copy<T: Clone>(list: &Option<Cow<'_, [T]>>) -> Option<Cow<'static, [T]>> {
            list.as_ref().map(|list| Cow::Owned(list.to_vec()))
        }
        Lists {
            kv_offsets: copy(&self.kv_offsets),
            sink_logits: copy(&self.sink_logits),
            alibi_slopes: copy(&self.alibi_slopes),
            starts: copy(&self.starts),
            positions: copy(&self.positions),
            query_offsets: copy(&self.query_offsets),
            tree: copy(&self.tree),
            tree_offsets: copy(&self.tree_offsets),
        }
    }

    /// True if one of the lists overlaps this memory.
    pub fn overlap(&self, memory: *const u8, bytes: usize) -> bool {
        let offsets = [&self.kv_offsets, &self.query_offsets, &self.tree_offsets];
        let ints = offsets.into_iter().chain([&self.starts, &self.positions, &self.tree]);
        let ints = ints.flatten().map(|list| bytemuck::cast_slice(list));
        let floats = [&self.sink_logits, &self.alibi_slopes].into_iter().flatten();
        let mut lists = ints.chain(floats.map(|list| bytemuck::cast_slice(list)));
        lists.any(|list: &[u8]| {
            let start = list.as_ptr().addr();
            memory.addr() < start + list.len() && memory.addr() + bytes > start
        })
    }
}
