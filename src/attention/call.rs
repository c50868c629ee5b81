//! One attention call: its request, the keys and values that it reads, and its result.
//!
//! A request either borrows JavaScript's memory for the length of the call, or owns copies and pinned views so that it
//! can run in the background. An output of up to 64 KiB is allocated as a JavaScript typed array and its shape is
//! returned as numbers; a larger one is native memory, because V8 ends the process if it cannot allocate.
//!
//! ```text
//! after the numbers of a call   rank  dtype  dims ...
//! ```

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvtide_tensor::attention::{Attended, AttendedPart, KvRows, Room, attend_with, merge_attention as merge};
use kvtide_tensor::buffers::{OwnedSource, Source};
use kvtide_tensor::pages::LayerPages;
use kvtide_tensor::runtime::Budget;
use kvtide_tensor::{DType, HostTensor, View};
use napi::bindgen_prelude::{Either, Either3, Unknown};
use napi::{Env, Result};
use napi_derive::napi;

use crate::attention::queries::{ListsArg, NUMBERS, OwnedQueries, Queries, memory_for};
use crate::border::argument::{ArrayArg, ArrayMemory, NEW_BYTES_MAX, new_array};
use crate::border::external_array::ExternalArray;
use crate::border::handle::{budget, guard};
use crate::border::refusal::Outcome;
use crate::border::tensor::{Children, NativeView, TensorArg, source};

/// The keys and values that a call reads.
enum KeysAndValues<'a> {
    Tensors(Source<'a>, Source<'a>),
    Pages(Cow<'a, LayerPages<'static>>),
}

/// Owned keys and values, for background work.
enum OwnedKeysAndValues {
    Tensors(OwnedSource, OwnedSource),
    Pages(LayerPages<'static>),
}

pub(crate) struct Request<'a> {
    queries: Queries<'a>,
    kv: KeysAndValues<'a>,
}

/// A request that outlives the JavaScript call that made it.
pub(crate) struct OwnedRequest {
    queries: OwnedQueries,
    kv: OwnedKeysAndValues,
}

impl<'a> Request<'a> {
    pub fn read([q, k, v]: [&'a TensorArg; 3], lists: &'a ListsArg, call: &[f64]) -> Outcome<Self> {
        let queries = Queries::read(q, lists, call)?;
        Ok(Request { queries, kv: KeysAndValues::Tensors(source("k", k, call, 1)?, source("v", v, call, 2)?) })
    }

    pub fn over_pages(queries: Queries<'a>, pages: LayerPages<'_>) -> Self {
        Request { queries, kv: KeysAndValues::Pages(Cow::Owned(pages.pinned())) }
    }

    /// Copies data from JavaScript's memory, and pins the caches.
    pub fn to_owned(&self, budget: &Arc<Budget>) -> Outcome<OwnedRequest> {
        let own = |source: &Source<'_>, argument| OwnedSource::new(source, argument, budget);
        Ok(OwnedRequest {
            queries: self.queries.to_owned(budget)?,
            kv: match &self.kv {
                KeysAndValues::Tensors(k, v) => OwnedKeysAndValues::Tensors(own(k, "k")?, own(v, "v")?),
                KeysAndValues::Pages(pages) => OwnedKeysAndValues::Pages(pages.clone().into_owned()),
            },
        })
    }

    pub fn with_lse(&self) -> bool {
        self.queries.numbers.with_lse
    }

    /// True if any input of the request overlaps this memory.
    pub fn overlaps(&self, memory: *const u8, bytes: usize) -> bool {
        let is_kv = match &self.kv {
            KeysAndValues::Tensors(k, v) => k.overlaps(memory, bytes) || v.overlaps(memory, bytes),
            // No caller ever gets the memory of pages.
            KeysAndValues::Pages(_) => false,
        };
        is_kv || self.queries.overlaps(memory, bytes)
    }

    /// Computes attention into the memory that `take` provides.
    pub fn run<'o>(
        &self,
        stop: Option<&AtomicBool>,
        take: impl FnOnce(&Room) -> kvtide_tensor::Result<(&'o mut [u8], &'o mut [f32])>,
    ) -> Outcome<()> {
        let take = |room: &Room| {
            self.queries.numbers.check_out(room)?;
            take(room)
        };
        self.queries.ask(stop, |q, options| match &self.kv {
            KeysAndValues::Tensors(k, v) => Ok(attend_with(q, self.tensors(k, v), options, take)?),
            KeysAndValues::Pages(pages) => Ok(pages.attend_with(q, options, take)?),
        })
    }

    /// If the queries are on a device with its own memory, computes attention there and leaves the result there.
    /// Otherwise returns `None`.
    pub fn stay(&self, stop: Option<&AtomicBool>) -> Outcome<Option<Attended>> {
        if !self.queries.are_away() {
            return Ok(None);
        }
        self.queries.ask(stop, |q, options| {
            Ok(Some(match &self.kv {
                KeysAndValues::Tensors(k, v) => kvtide_tensor::attention::attend(q, self.tensors(k, v), options)?,
                KeysAndValues::Pages(pages) => pages.attend(q, options)?,
            }))
        })
    }

    fn tensors<'b>(&'b self, k: &Source<'b>, v: &Source<'b>) -> KvRows<'b> {
        let (k, v) = (k.clone(), v.clone());
        match (self.queries.numbers.ragged, &self.queries.lists.kv_offsets) {
            (true, Some(offsets)) => KvRows::Ragged { k, v, offsets },
            _ => KvRows::Batched { k, v },
        }
    }
}

impl OwnedRequest {
    pub fn with_lse(&self) -> bool {
        self.queries.numbers.with_lse
    }

    pub fn request(&self) -> Outcome<Request<'_>> {
        Ok(Request {
            queries: self.queries.queries()?,
            kv: match &self.kv {
                OwnedKeysAndValues::Tensors(k, v) => KeysAndValues::Tensors(k.source()?, v.source()?),
                OwnedKeysAndValues::Pages(pages) => KeysAndValues::Pages(Cow::Borrowed(pages)),
            },
        })
    }
}

/// Computes attention. Returns the output, or the output with its log-sum-exps.
#[napi(ts_return_type = "unknown")]
pub fn attend<'a>(
    env: &'a Env,
    q: TensorArg,
    k: TensorArg,
    v: TensorArg,
    call: ArrayArg,
    out: ArrayArg,
    lists: ListsArg,
) -> Result<NativeAnswer<'a>> {
    guard(env, || {
        let numbers = call.numbers()?;
        answer(env, &Request::read([&q, &k, &v], &lists, numbers)?, out, numbers)
    })
}

/// Merges attention results of the same queries over different parts of the keys.
#[napi(ts_return_type = "unknown")]
pub fn merge_attention<'a>(
    env: &'a Env,
    outs: Vec<TensorArg>,
    sums: Vec<ArrayArg>,
    descriptions: ArrayArg,
    call: ArrayArg,
) -> Result<NativeAnswer<'a>> {
    guard(env, || {
        let described = descriptions.numbers()?;
        let parts = outs.iter().zip(&sums).enumerate().map(|(place, (out, lse))| {
            let lse = lse.elements("lse")?.unwrap_or(&[]);
            Ok(AttendedPart { out: source("out", out, described, place)?, lse })
        });
        let merged = merge(parts.collect::<Outcome<Vec<_>>>()?)?;
        let (shape, dtype) = (merged.out.shape().to_vec(), merged.out.dtype());
        let mut memory = AnswerMemory::default();
        let (bytes, lse) = memory.take(Some(env), None, &Room { shape, dtype, sums: merged.lse.len() })?;
        merged.out.read_into(bytes)?;
        lse.copy_from_slice(&merged.lse);
        memory.answer(env, true, call.numbers()?)
    })
}

/// Runs a request. The output goes to the caller's array if one was given, otherwise to newly allocated memory.
pub(crate) fn answer<'a>(
    env: &'a Env,
    request: &Request<'_>,
    out: ArrayArg,
    numbers: &mut [f64],
) -> Outcome<NativeAnswer<'a>> {
    let given = memory_for(out, |memory, bytes| request.overlaps(memory, bytes))?;
    let stayed = if given.is_none() { request.stay(None)? } else { None };
    if let Some(attended) = stayed {
        return of_device(env, attended, request.with_lse());
    }
    let mut memory = AnswerMemory::default();
    request.run(None, |room| memory.take(Some(env), given, room))?;
    memory.answer(env, request.with_lse(), numbers)
}

/// Offset of the result's shape, counted from the start of a call's own numbers.
const SHAPE: usize = 11;

/// An output with its log-sum-exps.
#[napi(object, object_from_js = false)]
pub struct NativeAttended<'a> {
    #[napi(ts_type = "unknown")]
    pub out: Option<Either<Unknown<'a>, NativeView>>,
    #[napi(ts_type = "Float32Array")]
    pub lse: Either<Unknown<'a>, ExternalArray>,
}

/// The output alone, or with its log-sum-exps; `None` for an output in the caller's own array.
pub(crate) type NativeAnswer<'a> = Option<Either3<Unknown<'a>, NativeView, NativeAttended<'a>>>;

/// The memory of an output.
#[derive(Default)]
pub(crate) enum OutputMemory<'a> {
    #[default]
    Given,
    Array(Unknown<'a>),
    Native(Vec<u8>),
}

/// The memory that a result is written to.
#[derive(Default)]
pub(crate) struct AnswerMemory<'a> {
    output: OutputMemory<'a>,
    pub lse: Vec<f32>,
    pub room: Option<Room>,
}

impl<'a> AnswerMemory<'a> {
    /// Allocates the memory that `room` describes, or uses the caller's if there is some.
    pub fn take<'o>(
        &'o mut self,
        env: Option<&'a Env>,
        given: Option<ArrayMemory>,
        room: &Room,
    ) -> kvtide_tensor::Result<(&'o mut [u8], &'o mut [f32])>
    where
        'a: 'o,
    {
        self.room = Some(room.clone());
        let elements: usize = room.shape.iter().product();
        let bytes = elements * room.dtype.bytes();
        zeros(&mut self.lse, room.sums)?;
        let out = match (given, env) {
            (Some(given), _) => given.bytes_mut(),
            (None, Some(env)) if bytes <= NEW_BYTES_MAX => {
                let refused = |_| Budget::process().refusal(bytes as u64);
                let (array, memory) = new_array(env, room.dtype.bytes(), elements).map_err(refused)?;
                self.output = OutputMemory::Array(array);
                memory.bytes_mut()
            }
            _ => {
                let mut native = Vec::new();
                zeros(&mut native, bytes)?;
                self.output = OutputMemory::Native(native);
                let OutputMemory::Native(native) = &mut self.output else { return Ok((&mut [], &mut self.lse)) };
                native.as_mut_slice()
            }
        };
        Ok((out, &mut self.lse))
    }

    /// Returns the result, and writes its shape to `numbers`.
    pub fn answer(self, env: &'a Env, with_lse: bool, numbers: &mut [f64]) -> Outcome<NativeAnswer<'a>> {
        let AnswerMemory { output, lse, room } = self;
        let Some(room) = room else { return Ok(None) };
        write_shape(&room, numbers);
        let out = match output {
            OutputMemory::Given => None,
            OutputMemory::Array(array) => Some(Either::A(array)),
            OutputMemory::Native(bytes) => {
                let host = HostTensor::new("out", &bytes, room.dtype, &room.shape)?;
                Some(Either::B(NativeView::of(View::from_host(&host, &budget())?, &Children::default())))
            }
        };
        Ok(match (out, with_lse) {
            (out, true) => Some(Either3::C(NativeAttended { out, lse: sums(env, lse)? })),
            (Some(Either::A(array)), false) => Some(Either3::A(array)),
            (Some(Either::B(view)), false) => Some(Either3::B(view)),
            (None, false) => None,
        })
    }
}

/// The result of a call whose output stays on its device.
pub(crate) fn of_device(env: &Env, attended: Attended, with_lse: bool) -> Outcome<NativeAnswer<'_>> {
    let Attended { out, lse } = attended;
    let out = NativeView::of(out, &Children::default());
    Ok(Some(match with_lse {
        true => Either3::C(NativeAttended { out: Some(Either::B(out)), lse: sums(env, lse)? }),
        false => Either3::B(out),
    }))
}

fn write_shape(room: &Room, numbers: &mut [f64]) {
    let dtype = DType::ALL.iter().position(|&dtype| dtype == room.dtype).unwrap_or(0);
    let shape = [room.shape.len(), dtype].into_iter().chain(room.shape.iter().copied());
    for (number, value) in numbers.iter_mut().skip(NUMBERS + SHAPE).zip(shape) {
        *number = value as f64;
    }
}

/// Converts log-sum-exps to a JavaScript array.
fn sums<'a>(env: &'a Env, lse: Vec<f32>) -> Outcome<Either<Unknown<'a>, ExternalArray>> {
    if 4 * lse.len() > NEW_BYTES_MAX {
        return Ok(Either::B(ExternalArray::floats(lse)));
    }
    let (array, memory) = new_array(env, 4, lse.len())?;
    memory.bytes_mut().copy_from_slice(bytemuck::cast_slice(&lse));
    Ok(Either::A(array))
}

/// Fills an empty list with zeros, or returns an error if there is not enough memory.
pub(crate) fn zeros<T: Clone + Default>(list: &mut Vec<T>, count: usize) -> kvtide_tensor::Result<()> {
    let refused = |_| Budget::process().refusal((count * size_of::<T>()) as u64);
    list.try_reserve_exact(count).map_err(refused)?;
    list.resize(count, T::default());
    Ok(())
}
