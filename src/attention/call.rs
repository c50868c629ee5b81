//! Attention: one crossing for a call, and one for a call in the background.

use kvtide_tensor::{AttendedPart, Room, merge_attention as merge};
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result};
use napi_derive::napi;

use crate::attention::answer::{AnswerMemory, NativeAnswer, of_device};
use crate::attention::lists::ListsArg;
use crate::attention::queries::memory_for;
use crate::attention::request::Request;
use crate::attention::task::AttendTask;
use crate::border::array::ArrayArg;
use crate::border::handle::guard;
use crate::border::refusal::Outcome;
use crate::border::stop::NativeStop;
use crate::border::tensor_arg::{TensorArg, source};

/// Attends, and answers an output, or one with its sums.
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

/// The same in the background: an output in native memory.
#[napi(ts_return_type = "Promise<NativeAttendedView>")]
pub fn attend_async(
    env: &Env,
    q: TensorArg,
    k: TensorArg,
    v: TensorArg,
    call: ArrayArg,
    lists: ListsArg,
    stop: Option<&NativeStop>,
) -> Result<AsyncTask<AttendTask>> {
    guard(env, || Ok(AsyncTask::new(AttendTask::of(&Request::read([&q, &k, &v], &lists, call.numbers()?)?, stop)?)))
}

/// Puts the attention of the same queries over parts of the keys together.
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

/// Makes a call, its output in the caller's memory or in memory of its own.
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
