//! One call of attention: what it reads, and how. It borrows JavaScript's memory for the length of the call, or has copies of
//! it and pinned views, to be worked on elsewhere.
//!
//! Behind the four descriptions of tensors (q, k, v, mask) an array of numbers says:
//!
//! ```text
//! scale (NaN: none)  causal  window (0: none)  sinks  softcap (0: none)  threads (0: all)  form of K and V  with lse
//! array of the caller's (0: none, 1: floats, 2: bits, 3: half floats)  its length  layer of pages
//! ```

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvtide_tensor::{
    AttendOptions, Budget, DType, Error, HostTensor, KvRows, OwnedSource, PageRows, Room, Source, attend_with,
};

use crate::attend_lists::{Lists, ListsArg};
use crate::guard::Outcome;
use crate::number::count;
use crate::paged_kv_cache::NativePagedKvCache;
use crate::source::{META, TensorArg, source};

/// Where the numbers of a call begin, behind the descriptions of q, k, v and the mask.
pub(crate) const NUMBERS: usize = 4 * META;

/// How K and V lie: `[tokens, heads, dim]` with offsets.
const RAGGED: f64 = 1.0;

/// Kinds of the caller's array.
const FLOATS: f64 = 1.0;
const BITS: f64 = 2.0;
const HALVES: f64 = 3.0;

/// The numbers of a call.
#[derive(Clone, Copy)]
struct Numbers {
    scale: Option<f32>,
    causal: bool,
    window: Option<u32>,
    sinks: u32,
    softcap: Option<f32>,
    threads: Option<usize>,
    ragged: bool,
    with_lse: bool,
    /// The kind of the caller's array for the output, and its length.
    out: (f64, f64),
    /// The layer whose pages are read.
    layer: u32,
}

/// What a call reads besides queries.
enum KeysAndValues<'a> {
    Tensors(Source<'a>, Source<'a>),
    Pages(Cow<'a, PageRows<'static>>),
}

/// The same, for work in the background.
enum OwnedKeysAndValues {
    Tensors(OwnedSource, OwnedSource),
    Pages(PageRows<'static>),
}

/// One call.
pub(crate) struct Request<'a> {
    q: Source<'a>,
    kv: KeysAndValues<'a>,
    mask: Option<Source<'a>>,
    lists: Lists<'a>,
    numbers: Numbers,
}

/// One call that outlives the one from JavaScript.
pub(crate) struct OwnedRequest {
    q: OwnedSource,
    kv: OwnedKeysAndValues,
    mask: Option<OwnedSource>,
    lists: Lists<'static>,
    numbers: Numbers,
}

impl Numbers {
    fn read(call: &[f64]) -> Outcome<Self> {
        let &[scale, causal, window, sinks, softcap, threads, form, with_lse, kind, length, layer, ..] = call else {
            return Err(kvtide_core::Error::argument("call", call.len(), "the numbers of a call").into());
        };
        let given = |value: u32| (value > 0).then_some(value);
        Ok(Numbers {
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

    /// Refuses an array of the caller's that is not what the output needs.
    fn check_out(&self, room: &Room) -> kvtide_tensor::Result<()> {
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
            let expected = format!("{elements} elements, for {:?}", room.shape);
            return Err(Error::ShapeMismatch { argument: "out", value: vec![length as usize], expected });
        }
        Ok(())
    }
}

impl<'a> Request<'a> {
    /// Reads the arguments of a call.
    pub fn read([q, k, v]: [&'a TensorArg; 3], lists: &'a ListsArg, call: &[f64]) -> Outcome<Self> {
        let numbers = call.get(NUMBERS..).unwrap_or(&[]);
        Ok(Request {
            q: source("q", q, call, 0)?,
            kv: KeysAndValues::Tensors(source("k", k, call, 1)?, source("v", v, call, 2)?),
            mask: lists.mask().map(|mask| source("mask", mask, call, 3)).transpose()?,
            lists: lists.lists()?,
            numbers: Numbers::read(numbers)?,
        })
    }

    /// Reads the arguments of a call over pages.
    pub fn over_pages(
        q: &'a TensorArg,
        cache: &mut NativePagedKvCache,
        lists: &'a ListsArg,
        call: &[f64],
    ) -> Outcome<Self> {
        let numbers = Numbers::read(call.get(NUMBERS..).unwrap_or(&[]))?;
        Ok(Request {
            q: source("q", q, call, 0)?,
            kv: KeysAndValues::Pages(Cow::Owned(cache.pages(numbers.layer, &lists.paged()?)?)),
            mask: lists.mask().map(|mask| source("mask", mask, call, 3)).transpose()?,
            lists: lists.lists()?,
            numbers,
        })
    }

    /// Copies what lies in JavaScript's memory, and pins the caches.
    pub fn to_owned(&self, budget: &Arc<Budget>) -> Outcome<OwnedRequest> {
        let own = |source: &Source<'_>, argument| OwnedSource::new(source, argument, budget);
        Ok(OwnedRequest {
            q: own(&self.q, "q")?,
            kv: match &self.kv {
                KeysAndValues::Tensors(k, v) => OwnedKeysAndValues::Tensors(own(k, "k")?, own(v, "v")?),
                KeysAndValues::Pages(pages) => OwnedKeysAndValues::Pages(pages.clone().into_owned()),
            },
            mask: self.mask.as_ref().map(|mask| own(mask, "mask")).transpose()?,
            lists: self.lists.to_owned(),
            numbers: self.numbers,
        })
    }

    /// True when the sums are wanted too.
    pub fn with_lse(&self) -> bool {
        self.numbers.with_lse
    }

    /// True when something that it reads lies in this memory.
    pub fn overlaps(&self, memory: *const u8, bytes: usize) -> bool {
        let [k, v] = match &self.kv {
            KeysAndValues::Tensors(k, v) => [Some(k), Some(v)],
            // Nobody outside has memory of pages.
            KeysAndValues::Pages(_) => [None; 2],
        };
        let sources = [Some(&self.q), k, v, self.mask.as_ref()];
        sources.into_iter().flatten().any(|source| source.overlaps(memory, bytes)) || self.lists.overlap(memory, bytes)
    }

    /// Does the work, in memory that `take` gives.
    pub fn run<'o>(
        &self,
        stop: Option<&AtomicBool>,
        take: impl FnOnce(&Room) -> kvtide_tensor::Result<(&'o mut [u8], &'o mut [f32])>,
    ) -> Outcome<()> {
        let Numbers { scale, causal, window, sinks, softcap, threads, .. } = self.numbers;
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
            softcap,
            mask,
            tree: self.lists.tree.as_deref(),
            starts: self.lists.starts.as_deref(),
            positions: self.lists.positions.as_deref(),
            query_offsets: self.lists.query_offsets.as_deref(),
            threads,
            stop,
        };
        let take = |room: &Room| {
            self.numbers.check_out(room)?;
            take(room)
        };
        Ok(attend_with(self.q.clone(), self.rows(), &options, take)?)
    }

    fn rows(&self) -> KvRows<'_> {
        let (k, v) = match &self.kv {
            KeysAndValues::Tensors(k, v) => (k.clone(), v.clone()),
            KeysAndValues::Pages(pages) => return KvRows::Pages(pages),
        };
        match (self.numbers.ragged, &self.lists.kv_offsets) {
            (true, Some(offsets)) => KvRows::Ragged { k, v, offsets },
            _ => KvRows::Batched { k, v },
        }
    }
}

impl OwnedRequest {
    /// True when the sums are wanted too.
    pub fn with_lse(&self) -> bool {
        self.numbers.with_lse
    }

    /// The call.
    pub fn request(&self) -> Outcome<Request<'_>> {
        Ok(Request {
            q: self.q.source()?,
            kv: match &self.kv {
                OwnedKeysAndValues::Tensors(k, v) => KeysAndValues::Tensors(k.source()?, v.source()?),
                OwnedKeysAndValues::Pages(pages) => KeysAndValues::Pages(Cow::Borrowed(pages)),
            },
            mask: self.mask.as_ref().map(OwnedSource::source).transpose()?,
            lists: self.lists.borrowed(),
            numbers: self.numbers,
        })
    }
}
