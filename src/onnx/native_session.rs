//! A model that onnxruntime runs as one graph, attention on kvtide's pages within.
//!
//! ```text
//! NativeOnnxSession.create(library, model, ..)     a task: the library reads the model and its weights
//!   .run(run, ids, positions, rows)                a task: one step, logits in native memory
//!   .dispose()                                     a step that is computed goes on, and keeps the session until it is done
//! ```
//!
//! One step at a time: a second one is refused with `BUSY`. A step that fails leaves its run where it was, so the step can be undone. The
//! library prints nothing of it; what a kernel was refused with is what the promise is rejected with.
//!
//! Threads of the library do not spin unless that is asked for: they would take the processor from everybody else between two steps.

use std::cell::RefCell;
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvtide_core::Error;
use kvtide_tensor::Budget;
use napi::bindgen_prelude::{AsyncTask, Either};
use napi::{Env, Result, Task};
use napi_derive::napi;

use super::library::Library;
use super::run::StepInputs;
use super::session::{ModelData, Options, Port, Session};
use crate::border::argument::{ArrayArg, positive};
use crate::border::handle::{Handle, budget, catch, guard};
use crate::border::refusal::Outcome;
use crate::border::task::PoolTask;
use crate::sampling::logits::NativeLogits;
use crate::sequences::step_run::{LentRun, NativeStepRun};

/// A model that can be run, until it is disposed of.
#[napi]
pub struct NativeOnnxSession {
    session: RefCell<Handle<Arc<Session>>>,
}

impl NativeOnnxSession {
    fn read<R>(&self, env: &Env, work: impl FnOnce(&Arc<Session>) -> Outcome<R>) -> Result<R> {
        self.session.borrow().read(env, work)
    }
}

#[napi(object, object_to_js = false)]
pub struct NativeOnnxSessionOptions {
    /// How many threads a step uses, the one that it runs on among them.
    pub threads: f64,
    /// Where weights in files of their own lie, of a model that is given as bytes.
    pub folder: Option<String>,
    /// Whether threads without work wait for it busily.
    pub spin: Option<bool>,
}

/// A model's bytes, or where they lie.
type ModelArg = Either<String, ArrayArg>;

#[napi]
impl NativeOnnxSession {
    #[napi(
        ts_args_type = "library: string, model: string | Uint8Array, options: NativeOnnxSessionOptions",
        ts_return_type = "Promise<NativeOnnxSession>"
    )]
    pub fn create(
        env: &Env,
        library: String,
        model: ModelArg,
        options: NativeOnnxSessionOptions,
    ) -> Result<AsyncTask<PoolTask<NativeOnnxSession, NativeOnnxSession>>> {
        guard(env, || {
            let threads = positive("threads", options.threads)? as usize;
            let folder = options.folder.map(|folder| {
                let refused = |_| Error::argument("folder", "a zero", "a path without a zero in it");
                CString::new(folder).map_err(refused)
            });
            let options = Options { threads, folder: folder.transpose()?, spin: options.spin.unwrap_or(false) };
            let model = match model {
                Either::A(path) => ModelData::Path(path),
                Either::B(bytes) => ModelData::Bytes(copied(bytes.memory("model")?.bytes())?),
            };
            Ok(PoolTask::of(
                move || {
                    let library = Library::open(Path::new(&library))?;
                    let session = Arc::new(Session::create(library, &model, &options)?);
                    Ok(NativeOnnxSession { session: RefCell::new(Handle::new("session", session)) })
                },
                |session| session,
            ))
        })
    }

    #[napi(getter)]
    pub fn inputs(&self, env: &Env) -> Result<Vec<String>> {
        self.read(env, |session| Ok(session.inputs.iter().map(Port::text).collect()))
    }

    #[napi(getter)]
    pub fn outputs(&self, env: &Env) -> Result<Vec<String>> {
        self.read(env, |session| Ok(session.outputs.iter().map(Port::text).collect()))
    }

    /// Computes a step: token ids and positions of all its sequences one behind the other, and the rows whose logits are wanted.
    #[napi(
        ts_args_type = "run: NativeStepRun, ids: Uint32Array, positions: Int32Array, rows?: Int32Array | undefined",
        ts_return_type = "Promise<NativeLogits>"
    )]
    pub fn run(
        &self,
        env: &Env,
        run: &NativeStepRun,
        ids: ArrayArg,
        positions: ArrayArg,
        rows: Option<ArrayArg>,
    ) -> Result<AsyncTask<StepTask>> {
        self.read(env, |session| {
            let inputs = StepInputs::read(ids, positions, rows)?;
            let lent = run.lend()?;
            inputs.check(&lent)?;
            if session.running.swap(true, Ordering::AcqRel) {
                return Err(kvtide_tensor::Error::Busy.into());
            }
            let running = Running(session.clone());
            Ok(AsyncTask::new(StepTask { running: Some(running), lent: Some(lent), inputs, budget: budget() }))
        })
    }

    /// Shared as all its calls are: a step that is computed borrows the object until it ends.
    #[napi]
    pub fn dispose(&self, env: &Env) {
        self.session.borrow_mut().dispose(env, |_| ());
    }
}

fn copied(bytes: &[u8]) -> Outcome<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| Budget::process().refusal(bytes.len() as u64))?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// A session that computes; free for the next step when it is dropped.
struct Running(Arc<Session>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}

/// One step, on a thread of the runtime's pool.
pub struct StepTask {
    running: Option<Running>,
    lent: Option<LentRun>,
    inputs: StepInputs,
    budget: Arc<Budget>,
}

impl StepTask {
    fn compute_step(&mut self) -> Outcome<NativeLogits> {
        let gone = || kvtide_tensor::Error::Aborted;
        let Running(session) = self.running.as_ref().ok_or_else(gone)?;
        session.shared.begin(self.lent.take().ok_or_else(gone)?);
        let computed = catch(|| session.run(&self.inputs, &self.budget)).unwrap_or_else(Err);
        let (lent, refusal) = session.shared.end();
        self.lent = lent;
        computed.map(NativeLogits::of).map_err(|failed| refusal.unwrap_or(failed))
    }
}

impl Task for StepTask {
    type Output = Outcome<NativeLogits>;
    type JsValue = NativeLogits;

    fn compute(&mut self) -> Result<Self::Output> {
        Ok(catch(|| self.compute_step()).unwrap_or_else(Err))
    }

    fn resolve(&mut self, env: Env, computed: Self::Output) -> Result<NativeLogits> {
        // Both are free again right before the promise is settled.
        (self.running, self.lent) = (None, None);
        guard(&env, || computed)
    }
}
