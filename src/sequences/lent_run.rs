//! A step run on the thread that computes it: another thread, or the cache's own. Calls write layers and compute
//! attention synchronously, because this thread may block.
//!
//! ```text
//! number = run.share()                   on the cache's thread; the run is lent from now on
//! lent = NativeLentRun.taken(number)     on the other thread
//!   .gather(layer, sequence)             K and V of a sequence from before the step
//!   .write(layer, k, v, meta)            writes K and V of a layer
//!   .attend(q, k, v, call, lists)        writes them and computes attention
//!   .readStates(index, out)              the states of a sequence from before the step
//!   .writeStates(index, bytes)           and those after its tokens
//!   .logits(data, dtype, rows, vocab)    stores the logits of the step
//!   .dispose()                           returns the run, so that its owner can end it
//! run.logits()                           on the cache's thread
//! ```
//!
//! A thread that ends returns its runs in their current state. Memory is counted on the cache's thread.

use std::cell::RefCell;
use std::sync::Arc;

use kvtide_tensor::attention::{AttendOptions, Room};
use kvtide_tensor::buffers::Source;
use kvtide_tensor::runtime::Budget;
use kvtide_tensor::{DType, StepRun, View};
use napi::bindgen_prelude::{Either, Unknown};
use napi::{Env, Result};
use napi_derive::napi;

use super::step_run::LentRun;
use crate::attention::call::zeros;
use crate::attention::queries::{ListsArg, Queries};
use crate::border::argument::{ArrayArg, NEW_BYTES_MAX, count, new_array};
use crate::border::external_array::ExternalArray;
use crate::border::handle::{Handle, guard};
use crate::border::refusal::Outcome;
use crate::border::shared;
use crate::border::tensor::{TensorArg, source};
use crate::sampling::logits::Logits;

/// A step run that this thread computes.
#[napi]
pub struct NativeLentRun {
    run: RefCell<Handle<LentRun>>,
}

/// K and V of a layer, and the queries that attend to it. The numbers of a call are those of attention
/// (`attention/queries.rs`), with K and V described after q.
struct LayerCall<'a> {
    queries: Queries<'a>,
    k: Source<'a>,
    v: Source<'a>,
}

impl<'a> LayerCall<'a> {
    fn read([q, k, v]: [&'a TensorArg; 3], lists: &'a ListsArg, call: &[f64]) -> Outcome<Self> {
        let queries = Queries::read(q, lists, call)?;
        Ok(LayerCall { queries, k: source("k", k, call, 1)?, v: source("v", v, call, 2)? })
    }

    /// Writes the layer and computes attention into the memory that `take` provides.
    fn run<'o>(
        &self,
        run: &mut StepRun,
        take: impl FnOnce(&Room) -> kvtide_tensor::Result<&'o mut [u8]>,
    ) -> Outcome<()> {
        let layer = self.queries.numbers.layer;
        if !run.is_shared(layer)? {
            run.write_layer(layer, self.k.clone(), self.v.clone())?;
        }
        self.queries.ask(None, |q, options| {
            let options = AttendOptions { lse: false, ..options.clone() };
            Ok(run.attend_layer_with(layer, q, &options, |room| Ok((take(room)?, &mut [][..])))?)
        })
    }
}

/// An output in native memory.
enum Output {
    Floats(Vec<f32>),
    /// Half floats, as bits.
    Bits(Vec<u16>),
}

impl Output {
    fn of(dtype: DType, elements: usize) -> kvtide_tensor::Result<Self> {
        fn list<T: Clone + Default>(elements: usize) -> kvtide_tensor::Result<Vec<T>> {
            let mut list = Vec::new();
            zeros(&mut list, elements)?;
            Ok(list)
        }
        Ok(if dtype == DType::F32 { Output::Floats(list(elements)?) } else { Output::Bits(list(elements)?) })
    }

    /// Copies the elements of a view; with `floats`, as 32-bit floats.
    fn read(view: &View, floats: bool) -> Outcome<Self> {
        if floats && view.dtype() != DType::F32 {
            return Ok(Output::Floats(view.to_f32()?));
        }
        let mut output = Output::of(view.dtype(), view.shape().iter().product())?;
        view.read_into(output.bytes())?;
        Ok(output)
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

impl NativeLentRun {
    pub(crate) fn with<R>(&self, env: &Env, work: impl FnOnce(&mut LentRun) -> Outcome<R>) -> Result<R> {
        // A panic in the middle of a layer concerns only the run: the run itself knows whether a write was cut short.
        guard(env, || work(self.run.borrow_mut().get_mut()?))
    }
}

#[napi]
impl NativeLentRun {
    /// Takes a run that `NativeStepRun.share` has shared.
    #[napi(factory)]
    pub fn taken(env: &Env, number: f64) -> Result<Self> {
        guard(env, || Ok(NativeLentRun { run: RefCell::new(Handle::new("StepRun", shared::take(number)?)) }))
    }

    /// K and V of a sequence in a layer from before the step, `[kvHeads, tokens, headDim]`, without tokens that have
    /// left its window; with `floats` as 32-bit floats, whatever the dtype of the pages.
    #[napi(ts_return_type = "Array<Float32Array | Uint16Array>")]
    pub fn gather(&self, env: &Env, layer: f64, sequence: f64, floats: bool) -> Result<Vec<ExternalArray>> {
        self.with(env, |run| {
            let kv = run.gather(count("layer", layer)?, count("sequence", sequence)? as usize)?;
            let each = [kv.k, kv.v].into_iter().map(|view| Ok(Output::read(&view, floats)?.array()));
            each.collect()
        })
    }

    /// Writes K and V of a layer.
    #[napi]
    pub fn write(&self, env: &Env, layer: f64, k: TensorArg, v: TensorArg, meta: &[f64]) -> Result<()> {
        self.with(env, |run| {
            let (k, v) = (source("k", &k, meta, 0)?, source("v", &v, meta, 1)?);
            Ok(run.write_layer(count("layer", layer)?, k, v)?)
        })
    }

    /// Writes K and V of a layer, unless it reads those of another layer, and computes attention. The output has the
    /// layout of the queries.
    #[napi(ts_return_type = "Float32Array | Uint16Array")]
    pub fn attend<'a>(
        &self,
        env: &'a Env,
        q: TensorArg,
        k: TensorArg,
        v: TensorArg,
        call: ArrayArg,
        lists: ListsArg,
    ) -> Result<Either<Unknown<'a>, ExternalArray>> {
        self.with(env, |run| {
            let call = LayerCall::read([&q, &k, &v], &lists, call.numbers()?)?;
            let (mut small, mut large) = (None, None);
            call.run(run, |room| {
                let elements = room.shape.iter().product::<usize>();
                let bytes = elements * room.dtype.bytes();
                if bytes > NEW_BYTES_MAX {
                    return Ok(large.insert(Output::of(room.dtype, elements)?).bytes());
                }
                let refused = |_| Budget::process().refusal(bytes as u64);
                let (array, memory) = new_array(env, room.dtype.bytes(), elements).map_err(refused)?;
                small = Some(array);
                Ok(memory.bytes_mut())
            })?;
            match (small, large) {
                (Some(array), _) => Ok(Either::A(array)),
                (None, large) => Ok(Either::B(large.map_or_else(|| ExternalArray::floats(Vec::new()), Output::array))),
            }
        })
    }

    /// The bytes of a sequence's states; 0 if no layer keeps one.
    #[napi]
    pub fn state_bytes(&self, env: &Env) -> Result<f64> {
        self.with(env, |run| Ok(run.model().state_layout().bytes as f64))
    }

    /// Writes the states of a sequence, by its index in the step, after the step's tokens.
    #[napi]
    pub fn write_states(&self, env: &Env, index: f64, bytes: ArrayArg) -> Result<()> {
        self.with(env, |run| Ok(run.write_states(count("index", index)? as usize, bytes.memory("bytes")?.bytes())?))
    }

    /// Copies the states that a sequence of the step had before it.
    #[napi]
    pub fn read_states(&self, env: &Env, index: f64, out: ArrayArg) -> Result<()> {
        self.with(env, |run| Ok(run.read_states_into(count("index", index)? as usize, out.memory("out")?.bytes_mut())?))
    }

    /// Copies the logits of the step; the owner of the run receives them.
    #[napi]
    pub fn logits(&self, env: &Env, data: ArrayArg, dtype: String, rows: f64, vocab: f64) -> Result<()> {
        self.with(env, |run| {
            let (rows, vocab) = (count("rows", rows)?, count("vocab", vocab)?);
            run.keep(Arc::new(Logits::read(data, &dtype, rows, vocab, run.budget())?.with_peaks()?));
            Ok(())
        })
    }

    /// Returns the run. Never fails.
    #[napi]
    pub fn dispose(&self, env: &Env) {
        self.run.borrow_mut().dispose(env, |_| ());
    }
}
