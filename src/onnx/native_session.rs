//! A model that onnxruntime runs as one graph; attention inside it works on the cache's pages.
//!
//! ```text
//! NativeOnnxSession.create(library, model, ..)     a task: the library reads the model and its weights
//!   .run(run, ids, positions, rows, embeddings)    a task: one step, logits in native memory
//!   .dispose()                                     a running step continues and keeps the session until it is done
//! ```
//!
//! A session computes one step at a time: a second call is refused with `BUSY`. If a step fails, its run keeps the
//! state from before the step, so the step can be undone. The library prints nothing about the failure; the promise is
//! rejected with the kernel's own error.

use std::cell::RefCell;
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvtide_core::Error;
use kvtide_tensor::runtime::Budget;
use napi::bindgen_prelude::{AsyncTask, Either};
use napi::{Env, Result, Task};
use napi_derive::napi;

use super::encoded::{Encoded, GivenEncoding, StepEncodings};
use super::library::Library;
use super::run::StepInputs;
use super::session::{ModelData, Options, Port, Purpose, Session};
use crate::border::argument::{ArrayArg, positive};
use crate::border::handle::{Handle, budget, catch, guard};
use crate::border::refusal::Outcome;
use crate::border::task::PoolTask;
use crate::sampling::logits::NativeLogits;
use crate::sequences::step_run::{LentRun, NativeStepRun};

/// A loaded model, usable until it is disposed of.
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
    /// Number of threads that compute a step, including the calling one.
    pub threads: f64,
    /// Folder with the weight files of a model that is given as bytes.
    pub folder: Option<String>,
    /// True for the model of a decoder's embeddings.
    pub embeds: Option<bool>,
    /// The inputs of a decoder that come from the model of its embeddings.
    pub embedded: Option<Vec<String>>,
}

/// Rows of embeddings that replace those of their tokens, and the encodings of a step: the number of each sequence's, and the
/// first token of each sequence, followed by the number of all tokens.
#[napi(object, object_to_js = false)]
#[derive(Default)]
pub struct NativeGiven {
    #[napi(ts_type = "Int32Array | undefined")]
    pub places: Option<ArrayArg>,
    #[napi(ts_type = "Float32Array | undefined")]
    pub embeds: Option<ArrayArg>,
    #[napi(ts_type = "Uint32Array | undefined")]
    pub encodings: Option<ArrayArg>,
    #[napi(ts_type = "Int32Array | undefined")]
    pub offsets: Option<ArrayArg>,
}

/// A model's path, or its bytes.
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
                let refused = |_| Error::argument("folder", "a path with a zero character", "a path without one");
                CString::new(folder).map_err(refused)
            });
            let purpose = match options.embeds {
                Some(true) => Purpose::Embeddings,
                _ => Purpose::Decoder { embedded: options.embedded.unwrap_or_default() },
            };
            let options = Options { threads, folder: folder.transpose()?, purpose };
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

    /// Keeps keys and values of an encoder's states under a number: layer by layer, keys before values, each `[heads, frames,
    /// dim]`. `sizes` has the heads and the elements of keys and of values of each layer, and `mask` has 1 for each state to
    /// attend to.
    #[napi(
        ts_args_type = "number: number, data: Float32Array | Uint16Array, frames: number, sizes: Uint32Array, mask?: Uint8Array | undefined",
        ts_return_type = "Promise<void>"
    )]
    pub fn keep_encoding(
        &self,
        env: &Env,
        number: f64,
        data: ArrayArg,
        frames: f64,
        sizes: ArrayArg,
        mask: Option<ArrayArg>,
    ) -> Result<AsyncTask<PoolTask<(), ()>>> {
        self.read(env, |session| {
            let number = positive("number", number)?;
            let given = GivenEncoding::read(data, positive("frames", frames)? as usize, sizes, mask)?;
            let session = session.clone();
            let keep = move || {
                let encoded = Arc::new(Encoded::new(given)?);
                session.encodings().insert(number, encoded);
                Ok(())
            };
            Ok(PoolTask::of(keep, |()| ()))
        })
    }

    /// Drops an encoding. A step that is being computed keeps it until it ends.
    #[napi]
    pub fn forget_encoding(&self, env: &Env, number: f64) -> Result<()> {
        self.read(env, |session| {
            session.encodings().remove(&positive("number", number)?);
            Ok(())
        })
    }

    /// Computes a step. Takes the token ids and positions of all its sequences, concatenated, and the rows whose logits
    /// are needed. For a decoder that takes embeddings, also the model of these.
    #[napi(
        ts_args_type = "run: NativeStepRun, ids: Uint32Array, positions: Int32Array, rows?: Int32Array | undefined, embeddings?: NativeOnnxSession | undefined, given?: NativeGiven | undefined",
        ts_return_type = "Promise<NativeLogits>"
    )]
    pub fn run(
        &self,
        env: &Env,
        run: &NativeStepRun,
        ids: ArrayArg,
        positions: ArrayArg,
        rows: Option<ArrayArg>,
        embeddings: Option<&NativeOnnxSession>,
        given: Option<NativeGiven>,
    ) -> Result<AsyncTask<StepTask>> {
        let embeddings = embeddings.map(|model| model.read(env, |session| Ok(session.clone()))).transpose()?;
        self.read(env, |session| {
            let NativeGiven { places, embeds, encodings, offsets } = given.unwrap_or_default();
            let inputs = StepInputs::read(ids, positions, rows, [places, embeds])?;
            let lent = run.lend()?;
            inputs.check(&lent)?;
            let encodings = session.encodings_of(encodings, offsets)?;
            if session.running.swap(true, Ordering::AcqRel) {
                return Err(kvtide_tensor::Error::Busy.into());
            }
            let running = Running(session.clone());
            let (running, lent, budget) = (Some(running), Some(lent), budget());
            Ok(AsyncTask::new(StepTask { running, embeddings, lent, encodings, inputs, budget }))
        })
    }

    /// Takes `&self` like all other methods, because a running step borrows the object until it ends.
    #[napi]
    pub fn dispose(&self, env: &Env) {
        self.session.borrow_mut().dispose(env, |_| ());
    }
}

impl Session {
    /// The encodings of a step: their numbers, and the first token of each sequence, followed by the number of all tokens.
    fn encodings_of(&self, numbers: Option<ArrayArg>, offsets: Option<ArrayArg>) -> Outcome<StepEncodings> {
        let mut all = StepEncodings::default();
        let (Some(numbers), Some(offsets)) = (numbers, offsets) else { return Ok(all) };
        let numbers = numbers.elements::<u32>("numbers")?.unwrap_or(&[]);
        let offsets = offsets.elements::<i32>("offsets")?.unwrap_or(&[]);
        if offsets.len() != numbers.len() + 1 || !offsets.is_sorted() {
            let expected = format!("{} numbers, ascending", numbers.len() + 1);
            return Err(Error::argument("offsets", format!("{} numbers", offsets.len()), expected).into());
        }
        let kept = self.encodings();
        for (&number, span) in numbers.iter().zip(offsets.windows(2)) {
            let missing = || Error::argument("numbers", f64::from(number), "the number of a kept encoding");
            let encoded = kept.get(&number).ok_or_else(missing)?;
            all.push(span[1].abs_diff(span[0]) as usize, encoded.clone());
        }
        Ok(all)
    }
}

fn copied(bytes: &[u8]) -> Outcome<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| Budget::process().refusal(bytes.len() as u64))?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Marks a session as computing. Dropping it frees the session for the next step.
struct Running(Arc<Session>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}

/// One step, on a thread of Node's pool.
pub struct StepTask {
    running: Option<Running>,
    embeddings: Option<Arc<Session>>,
    lent: Option<LentRun>,
    encodings: StepEncodings,
    inputs: StepInputs,
    budget: Arc<Budget>,
}

impl StepTask {
    fn compute_step(&mut self) -> Outcome<NativeLogits> {
        let gone = || kvtide_tensor::Error::Aborted;
        let Running(session) = self.running.as_ref().ok_or_else(gone)?;
        session.shared.begin(self.lent.take().ok_or_else(gone)?, std::mem::take(&mut self.encodings));
        let computed =
            catch(|| session.run(self.embeddings.as_deref(), &self.inputs, &self.budget)).unwrap_or_else(Err);
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
        // Both are released right before the promise settles.
        (self.running, self.lent) = (None, None);
        guard(&env, || computed)
    }
}
