//! Attention on a thread of Node's pool, while JavaScript continues.
//!
//! A task owns copies of JavaScript's memory and pinned views: the caches that it reads refuse changes, and keep their
//! memory even if they are disposed of. They are released right before the promise settles, and never earlier, so
//! whether a call in between is refused does not depend on how fast the work was.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvtide_tensor::attention::{Attended, Room};
use kvtide_tensor::runtime::Budget;
use kvtide_tensor::{HostTensor, View};
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result, Task};
use napi_derive::napi;

use crate::attention::call::{OwnedRequest, Request, zeros};
use crate::attention::queries::ListsArg;
use crate::border::argument::ArrayArg;
use crate::border::external_array::ExternalArray;
use crate::border::handle::{budget, catch, guard};
use crate::border::refusal::Outcome;
use crate::border::stop::NativeStop;
use crate::border::tensor::{Children, NativeView, TensorArg};

#[napi(object, object_from_js = false)]
pub struct NativeAttendedView {
    pub out: NativeView,
    #[napi(ts_type = "Float32Array | undefined")]
    pub lse: Option<ExternalArray>,
}

/// A background attention call.
pub struct AttendTask {
    request: Option<OwnedRequest>,
    stop: Option<Arc<AtomicBool>>,
    budget: Arc<Budget>,
    with_lse: bool,
}

impl AttendTask {
    /// Copies data from JavaScript's memory, and pins the caches.
    pub(crate) fn of(request: &Request<'_>, stop: Option<&NativeStop>) -> Outcome<Self> {
        let budget = budget();
        let request = request.to_owned(&budget)?;
        let stop = stop.map(NativeStop::flag);
        Ok(AttendTask { with_lse: request.with_lse(), request: Some(request), stop, budget })
    }

    /// Computes attention into newly allocated memory: the output, and the log-sum-exps of its rows.
    fn attend(&self) -> Outcome<(View, Vec<f32>)> {
        let (mut room, mut lse, mut bytes) = (None, Vec::new(), Vec::new());
        let aborted = || kvtide_tensor::Error::Aborted;
        let request = self.request.as_ref().ok_or_else(aborted)?.request()?;
        if let Some(Attended { out, lse }) = request.stay(self.stop.as_deref())? {
            return Ok((out, lse));
        }
        request.run(self.stop.as_deref(), |found| {
            room = Some(found.clone());
            zeros(&mut bytes, found.shape.iter().product::<usize>() * found.dtype.bytes())?;
            zeros(&mut lse, found.sums)?;
            Ok((bytes.as_mut_slice(), lse.as_mut_slice()))
        })?;
        let Some(Room { shape, dtype, .. }) = room else { return Err(aborted().into()) };
        Ok((View::from_host(&HostTensor::new("out", &bytes, dtype, &shape)?, &self.budget)?, lse))
    }
}

/// Computes attention in the background. The output is native memory.
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

/// A call that is ready to run in the background.
///
/// One JavaScript call makes it and another one starts it. The arguments of a call that starts background work stay
/// borrowed until the work ends, and the methods of a paged cache borrow it exclusively: it could not even be read in
/// the meantime.
#[napi]
pub struct NativeAttendRequest {
    task: Cell<Option<AttendTask>>,
}

impl NativeAttendRequest {
    pub(crate) fn of(request: &Request<'_>, stop: Option<&NativeStop>) -> Outcome<Self> {
        Ok(NativeAttendRequest { task: Cell::new(Some(AttendTask::of(request, stop)?)) })
    }
}

#[napi]
impl NativeAttendRequest {
    /// Starts the work. A second start is an error.
    #[napi(ts_return_type = "Promise<NativeAttendedView>")]
    pub fn start(&self, env: &Env) -> Result<AsyncTask<AttendTask>> {
        guard(env, || Ok(AsyncTask::new(self.task.take().ok_or(kvtide_tensor::Error::Aborted)?)))
    }
}

impl Task for AttendTask {
    type Output = Outcome<(View, Vec<f32>)>;
    type JsValue = NativeAttendedView;

    fn compute(&mut self) -> Result<Self::Output> {
        Ok(catch(|| self.attend()).unwrap_or_else(Err))
    }

    fn resolve(&mut self, env: Env, attended: Self::Output) -> Result<Self::JsValue> {
        self.request = None;
        guard(&env, || {
            let (out, lse) = attended?;
            let lse = self.with_lse.then(|| ExternalArray::floats(lse));
            Ok(NativeAttendedView { out: NativeView::of(out, &Children::default()), lse })
        })
    }
}
