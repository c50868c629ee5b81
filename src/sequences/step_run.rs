//! A step that is computed apart from its cache: its layers are written and attended to here, or on a thread of the runtime's pool.
//!
//! ```text
//! run = cache.runStep(step)
//! run.attend(q, k, v, call, lists)          writes K and V of a layer and attends to it, in one call: small work, at once
//! run.attendLater(q, k, v, call, lists)     the same in the background
//! cache.endRun(step, run)
//! ```
//!
//! Whoever works on a run in the background takes it along ([`NativeStepRun::lend`]) and brings it back; meanwhile other calls are
//! refused with `BUSY`. It is back right before the promise is settled, and never earlier. One that was disposed of meanwhile is not
//! brought back: its memory goes with the work.
//!
//! The numbers of a call are those of attention (`attention/queries.rs`), with K and V described behind q.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use kvtide_tensor::{AttendOptions, Budget, DType, OwnedSource, Room, Source, StepRun};
use napi::bindgen_prelude::{AsyncTask, Either, Unknown};
use napi::{Env, Result, Task};
use napi_derive::napi;

use super::cache::NativePagedKvCache;
use super::step::NativePagedStep;
use crate::attention::call::zeros;
use crate::attention::queries::{ListsArg, OwnedQueries, Queries};
use crate::border::argument::{ArrayArg, NEW_BYTES_MAX, new_array};
use crate::border::external_array::ExternalArray;
use crate::border::handle::{budget, catch, guard};
use crate::border::refusal::Outcome;
use crate::border::tensor::{TensorArg, source};

/// Elements of products up to which a call is worked on at once: some 200 us on one thread.
const PRODUCTS_AT_ONCE: u64 = 1 << 22;

/// Where a run is.
enum Place {
    Here(Box<StepRun>),
    /// With work in the background.
    Lent,
    /// It was taken back, or disposed of.
    Ended,
}

type Slot = Arc<Mutex<Place>>;

/// A run of a step.
#[napi]
pub struct NativeStepRun {
    slot: Slot,
}

/// A run that is with work in the background, until this is dropped.
pub(crate) struct LentRun {
    slot: Slot,
    /// Nothing once it is on its way back.
    run: Option<Box<StepRun>>,
}

impl Deref for LentRun {
    type Target = StepRun;

    fn deref(&self) -> &StepRun {
        self.run.as_ref().expect("a run until it is dropped")
    }
}

impl DerefMut for LentRun {
    fn deref_mut(&mut self) -> &mut StepRun {
        self.run.as_mut().expect("a run until it is dropped")
    }
}

impl Drop for LentRun {
    fn drop(&mut self) {
        let mut place = locked(&self.slot);
        if let (Place::Lent, Some(run)) = (&*place, self.run.take()) {
            *place = Place::Here(run);
        }
    }
}

fn locked(slot: &Slot) -> std::sync::MutexGuard<'_, Place> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NativeStepRun {
    /// The run, to be worked on elsewhere: refused while other work has it, and once it has ended.
    pub(crate) fn lend(&self) -> Outcome<LentRun> {
        let run = self.take(Place::Lent)?;
        Ok(LentRun { slot: self.slot.clone(), run: Some(run) })
    }

    /// Takes the run out, and leaves this in its place.
    fn take(&self, left: Place) -> Outcome<Box<StepRun>> {
        let mut place = locked(&self.slot);
        check_here(&place)?;
        match std::mem::replace(&mut *place, left) {
            Place::Here(run) => Ok(run),
            Place::Lent | Place::Ended => unreachable!("it is here"),
        }
    }

    /// Works on the run where it is.
    fn with<R>(&self, work: impl FnOnce(&mut StepRun) -> Outcome<R>) -> Outcome<R> {
        let mut place = locked(&self.slot);
        check_here(&place)?;
        match &mut *place {
            Place::Here(run) => work(run),
            Place::Lent | Place::Ended => unreachable!("it is here"),
        }
    }
}

fn check_here(place: &Place) -> Outcome<()> {
    match place {
        Place::Here(_) => Ok(()),
        Place::Lent => Err(kvtide_tensor::Error::Busy.into()),
        Place::Ended => Err(kvtide_tensor::Error::Disposed { object: "StepRun" }.into()),
    }
}

#[napi]
impl NativePagedKvCache {
    /// What computing an open step needs, apart from the cache.
    #[napi]
    pub fn run_step(&mut self, env: &Env, step: &mut NativePagedStep) -> Result<NativeStepRun> {
        self.cache.change(env, |cache| {
            let run = cache.run_step(step.get_mut()?)?;
            Ok(NativeStepRun { slot: Arc::new(Mutex::new(Place::Here(Box::new(run)))) })
        })
    }

    /// Takes a run back: what it has written counts as written. While work has it, it is refused and stays.
    #[napi]
    pub fn end_run(&mut self, env: &Env, step: &mut NativePagedStep, run: &NativeStepRun) -> Result<()> {
        self.cache.change(env, |cache| {
            let step = step.get_mut()?;
            Ok(cache.end_run(step, *run.take(Place::Ended)?)?)
        })
    }
}

/// K and V of a layer, and the queries that attend to it.
struct LayerCall<'a> {
    queries: Queries<'a>,
    k: Source<'a>,
    v: Source<'a>,
}

/// The same, for work in the background.
struct OwnedLayerCall {
    queries: OwnedQueries,
    k: OwnedSource,
    v: OwnedSource,
}

impl<'a> LayerCall<'a> {
    fn read([q, k, v]: [&'a TensorArg; 3], lists: &'a ListsArg, call: &[f64]) -> Outcome<Self> {
        let queries = Queries::read(q, lists, call)?;
        Ok(LayerCall { queries, k: source("k", k, call, 1)?, v: source("v", v, call, 2)? })
    }

    /// Copies what lies in JavaScript's memory.
    fn to_owned(&self) -> Outcome<OwnedLayerCall> {
        let budget = budget();
        Ok(OwnedLayerCall {
            queries: self.queries.to_owned(&budget)?,
            k: OwnedSource::new(&self.k, "k", &budget)?,
            v: OwnedSource::new(&self.v, "v", &budget)?,
        })
    }

    /// Writes the layer and attends to it, in memory that `take` gives.
    fn run<'o>(
        &self,
        run: &mut StepRun,
        take: impl FnOnce(&Room) -> kvtide_tensor::Result<&'o mut [u8]>,
    ) -> Outcome<()> {
        let layer = self.queries.numbers.layer;
        run.write_layer(layer, self.k.clone(), self.v.clone())?;
        self.queries.ask(None, |q, options| {
            let options = AttendOptions { lse: false, ..options.clone() };
            Ok(run.attend_layer_with(layer, q, &options, |room| Ok((take(room)?, &mut [][..])))?)
        })
    }
}

impl OwnedLayerCall {
    fn call(&self) -> Outcome<LayerCall<'_>> {
        Ok(LayerCall { queries: self.queries.queries()?, k: self.k.source()?, v: self.v.source()? })
    }
}

/// An output in native memory.
pub enum Output {
    Floats(Vec<f32>),
    /// Half floats, as their bits.
    Bits(Vec<u16>),
}

impl Output {
    fn of(room: &Room) -> kvtide_tensor::Result<Self> {
        fn list<T: Clone + Default>(room: &Room) -> kvtide_tensor::Result<Vec<T>> {
            let mut list = Vec::new();
            zeros(&mut list, room.shape.iter().product())?;
            Ok(list)
        }
        Ok(if room.dtype == DType::F32 { Output::Floats(list(room)?) } else { Output::Bits(list(room)?) })
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Output::Floats(floats) => bytemuck::cast_slice_mut(floats),
            Output::Bits(bits) => bytemuck::cast_slice_mut(bits),
        }
    }

    fn array(self) -> ExternalArray {
        match self {
            Output::Floats(floats) => ExternalArray::floats(floats),
            Output::Bits(bits) => ExternalArray::bits(bits),
        }
    }
}

#[napi]
impl NativeStepRun {
    /// Tokens of all sequences.
    #[napi]
    pub fn tokens(&self, env: &Env) -> Result<u32> {
        guard(env, || self.with(|run| Ok(run.tokens())))
    }

    /// Writes K and V of a layer and attends to it: an output of the queries' layout. Nothing, and nothing is done, where that would
    /// take long.
    #[napi(ts_return_type = "Float32Array | Uint16Array | undefined")]
    pub fn attend<'a>(
        &self,
        env: &'a Env,
        q: TensorArg,
        k: TensorArg,
        v: TensorArg,
        call: ArrayArg,
        lists: ListsArg,
    ) -> Result<Option<Either<Unknown<'a>, ExternalArray>>> {
        guard(env, || {
            let call = LayerCall::read([&q, &k, &v], &lists, call.numbers()?)?;
            self.with(|run| {
                if run.products(call.queries.numbers.layer, call.queries.source())? > PRODUCTS_AT_ONCE {
                    return Ok(None);
                }
                let (mut small, mut large) = (None, None);
                call.run(run, |room| {
                    let elements = room.shape.iter().product::<usize>();
                    let bytes = elements * room.dtype.bytes();
                    if bytes > NEW_BYTES_MAX {
                        return Ok(large.insert(Output::of(room)?).bytes());
                    }
                    let refused = |_| Budget::process().refusal(bytes as u64);
                    let (array, memory) = new_array(env, room.dtype.bytes(), elements).map_err(refused)?;
                    small = Some(array);
                    Ok(memory.bytes_mut())
                })?;
                Ok(small.map(Either::A).or_else(|| large.map(|output| Either::B(output.array()))))
            })
        })
    }

    /// The same on a thread of the runtime's pool, however long it takes. Typed arrays are copied first.
    #[napi(ts_return_type = "Promise<Float32Array | Uint16Array>")]
    pub fn attend_later(
        &self,
        env: &Env,
        q: TensorArg,
        k: TensorArg,
        v: TensorArg,
        call: ArrayArg,
        lists: ListsArg,
    ) -> Result<AsyncTask<RunTask>> {
        guard(env, || {
            let call = LayerCall::read([&q, &k, &v], &lists, call.numbers()?)?.to_owned()?;
            Ok(AsyncTask::new(RunTask { run: Some(self.lend()?), call }))
        })
    }

    /// Ends the run, if it has not: its step is as it was before. Never refused.
    #[napi]
    pub fn dispose(&self, env: &Env) -> Result<()> {
        guard(env, || {
            let before = std::mem::replace(&mut *locked(&self.slot), Place::Ended);
            drop(before);
            Ok(())
        })
    }
}

/// A layer that is written and attended to in the background.
pub struct RunTask {
    run: Option<LentRun>,
    call: OwnedLayerCall,
}

impl RunTask {
    fn attend(&mut self) -> Outcome<Output> {
        let run = self.run.as_mut().ok_or(kvtide_tensor::Error::Aborted)?;
        let mut output = Output::Bits(Vec::new());
        self.call.call()?.run(run, |room| {
            output = Output::of(room)?;
            Ok(output.bytes())
        })?;
        Ok(output)
    }
}

impl Task for RunTask {
    type Output = Outcome<Output>;
    type JsValue = ExternalArray;

    fn compute(&mut self) -> Result<Self::Output> {
        Ok(catch(|| self.attend()).unwrap_or_else(Err))
    }

    fn resolve(&mut self, env: Env, attended: Self::Output) -> Result<Self::JsValue> {
        self.run = None;
        guard(&env, || Ok(attended?.array()))
    }
}
