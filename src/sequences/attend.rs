//! Attention over the pages of a layer: those of sequences, of block tables, or of a step.

use kvtide_tensor::PagedKvCache;
use napi::{Env, Result};
use napi_derive::napi;

use super::cache::NativePagedKvCache;
use super::step::NativePagedStep;
use crate::attention::call::{NativeAnswer, Request, answer};
use crate::attention::queries::{ListsArg, PagesArg, Queries};
use crate::attention::task::NativeAttendRequest;
use crate::border::argument::ArrayArg;
use crate::border::handle::guard;
use crate::border::refusal::Outcome;
use crate::border::stop::NativeStop;
use crate::border::tensor::TensorArg;

#[napi]
impl NativePagedKvCache {
    /// Computes attention over pages of a layer. Returns the output, or the output with its log-sum-exps.
    #[napi(ts_return_type = "unknown")]
    pub fn attend_pages<'a>(
        &mut self,
        env: &'a Env,
        q: TensorArg,
        call: ArrayArg,
        out: ArrayArg,
        lists: ListsArg,
    ) -> Result<NativeAnswer<'a>> {
        guard(env, || {
            let numbers = call.numbers()?;
            answer(env, &self.pages_request(&q, &lists, numbers)?, out, numbers)
        })
    }

    /// Like `attendPages`, in the background, once the request is started.
    #[napi]
    pub fn attend_pages_request(
        &mut self,
        env: &Env,
        q: TensorArg,
        call: ArrayArg,
        lists: ListsArg,
        stop: Option<&NativeStop>,
    ) -> Result<NativeAttendRequest> {
        guard(env, || NativeAttendRequest::of(&self.pages_request(&q, &lists, call.numbers()?)?, stop))
    }

    #[napi(ts_return_type = "unknown")]
    pub fn attend_layer<'a>(
        &mut self,
        env: &'a Env,
        step: &NativePagedStep,
        q: TensorArg,
        call: ArrayArg,
        out: ArrayArg,
        lists: ListsArg,
    ) -> Result<NativeAnswer<'a>> {
        self.cache.change(env, |cache| {
            let numbers = call.numbers()?;
            answer(env, &step_request(cache, step, &q, &lists, numbers)?, out, numbers)
        })
    }

    /// Like `attendLayer`, in the background, once the request is started.
    #[napi]
    pub fn attend_layer_request(
        &mut self,
        env: &Env,
        step: &NativePagedStep,
        q: TensorArg,
        call: ArrayArg,
        lists: ListsArg,
        stop: Option<&NativeStop>,
    ) -> Result<NativeAttendRequest> {
        self.cache.change(env, |cache| {
            NativeAttendRequest::of(&step_request(cache, step, &q, &lists, call.numbers()?)?, stop)
        })
    }

    fn pages_request<'a>(&mut self, q: &'a TensorArg, lists: &'a ListsArg, call: &[f64]) -> Outcome<Request<'a>> {
        let queries = Queries::read(q, lists, call)?;
        let (cache, layer) = (self.cache.get_mut()?, queries.numbers.layer);
        let pages = match lists.pages()? {
            PagesArg::Sequences(ids) => cache.layer_pages(layer, &ids)?,
            PagesArg::Tables(tables, lengths) => cache.layer_pages_of_tables(layer, tables, lengths)?,
        };
        Ok(Request::over_pages(queries, pages))
    }
}

fn step_request<'a>(
    cache: &mut PagedKvCache,
    step: &NativePagedStep,
    q: &'a TensorArg,
    lists: &'a ListsArg,
    call: &[f64],
) -> Outcome<Request<'a>> {
    let step = step.get()?;
    let queries = Queries::read(q, lists, call)?;
    let pages = cache.step_layer(step, queries.numbers.layer)?;
    Ok(Request::over_pages(queries, pages))
}
