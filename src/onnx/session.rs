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
#![expect(unsafe_code, reason = "a model is given to a C library, and tensors of ours for the length of a call")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use kvtide_core::{Code, Error, details};
use kvtide_tensor::{Budget, StepRun};
use napi::bindgen_prelude::{AsyncTask, Either};
use napi::{Env, Result, Task};
use napi_derive::napi;

use super::api::{CustomOpDomain, MemoryInfo, SessionObject, SessionOptions, Value, number};
use super::library::{Library, NONE, encoded, small};
use super::operator::{Operator, Shared, dims, memory};
use super::task::OnnxTask;
use crate::border::argument::{ArrayArg, positive};
use crate::border::handle::{Handle, budget, catch, guard};
use crate::border::refusal::{Outcome, Refusal};
use crate::sampling::logits::{Logits, NativeLogits};
use crate::sequences::run::{LentRun, NativeStepRun};

/// Inputs that a rewritten graph has, beside token ids.
const POSITIONS: &str = "position_ids";
const ROWS: &str = "logit_rows";
const LOGITS: &str = "logits";

/// A session, and what it is made of. All of it lives as long as the library may call.
struct Session {
    library: &'static Library,
    session: *mut SessionObject,
    domain: *mut CustomOpDomain,
    memory: *mut MemoryInfo,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    shared: Arc<Shared>,
    running: AtomicBool,
    _operators: Vec<Box<Operator>>,
}

// SAFETY: sessions may be used from any thread; the pointers are those of this one.
unsafe impl Send for Session {}
// SAFETY: `Run` may be called from any thread, and `running` lets one caller in at a time.
unsafe impl Sync for Session {}

struct Port {
    name: CString,
    element: c_int,
}

struct Options {
    threads: usize,
    folder: Option<CString>,
    spin: bool,
}

enum ModelData {
    Path(String),
    Bytes(Vec<u8>),
}

impl Drop for Session {
    fn drop(&mut self) {
        let api = &self.library.api;
        // SAFETY: each was made for this session, or is null, which is released as nothing; kernels go before their operators.
        unsafe {
            (api.release_session)(self.session);
            (api.release_memory)(self.memory);
            (api.release_domain)(self.domain);
        }
    }
}

impl Session {
    fn create(library: &'static Library, model: &ModelData, options: &Options) -> Outcome<Self> {
        let api = &library.api;
        let shared = Shared::new(library, options.threads);
        let mut session = Session {
            library,
            session: null_mut(),
            domain: null_mut(),
            memory: null_mut(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            _operators: Operator::all(&shared),
            shared,
            running: AtomicBool::new(false),
        };
        // SAFETY: places to write to are locals; operators live as long as the session.
        session.domain = library.make(|out| unsafe { (api.create_domain)(c"kvtide".as_ptr(), out) })?;
        for operator in &session._operators {
            // SAFETY: as above.
            library.check(unsafe { (api.add_to_domain)(session.domain, &operator.table) })?;
        }
        // SAFETY: as above.
        let made = library.make(|out| unsafe { (api.create_session_options)(out) })?;
        let created = session.configure(made, options).and_then(|()| session.load(made, model));
        // SAFETY: it was made above, and the session has what it needs of it.
        unsafe { (api.release_session_options)(made) };
        // What a kernel was refused with while it was made says more than the library.
        created.map_err(|refusal| session.shared.end().1.unwrap_or(refusal))?;
        // SAFETY: as above.
        session.memory = library
            .make(|out| unsafe { (api.create_cpu_memory)(number::ARENA, number::DEFAULT_MEMORY, out) })?;
        session.inputs = session.ports(true)?;
        session.outputs = session.ports(false)?;
        session.check_ports()?;
        Ok(session)
    }

    fn configure(&self, made: *mut SessionOptions, options: &Options) -> Outcome<()> {
        let (library, api) = (self.library, &self.library.api);
        let spin = if options.spin { c"1" } else { c"0" };
        let mut config = vec![
            (c"session.intra_op.allow_spinning", spin),
            (c"session.inter_op.allow_spinning", spin),
        ];
        if let Some(folder) = &options.folder {
            config.push((library.folder_key()?, folder));
        }
        // SAFETY: the options were just made, and all texts are strings that the library copies.
        unsafe {
            library.check((api.add_domain)(made, self.domain))?;
            library.check((api.set_log_level)(made, number::FATAL))?;
            library.check((api.set_intra_op_threads)(made, small(options.threads)))?;
            library.check((api.set_inter_op_threads)(made, 1))?;
            // A plan of memory for each shape would be kept for ever, and shapes change with each step.
            library.check((api.disable_mem_pattern)(made))?;
            config.iter().try_for_each(|(key, value)| library.check((api.add_config)(made, key.as_ptr(), value.as_ptr())))
        }
    }

    fn load(&mut self, options: *mut SessionOptions, model: &ModelData) -> Outcome<()> {
        let (library, api, env) = (self.library, &self.library.api, self.library.env);
        self.session = match model {
            ModelData::Path(path) => {
                let path = encoded(Path::new(path))?;
                // SAFETY: the path has an end, and the rest was made for this session.
                library.make(|out| unsafe { (api.create_session)(env, path.as_ptr(), options, out) })?
            }
            ModelData::Bytes(bytes) => {
                let (data, count) = (bytes.as_ptr().cast(), bytes.len());
                // SAFETY: the library reads so many bytes, and only during this call.
                library.make(|out| unsafe { (api.create_session_from_array)(env, data, count, options, out) })?
            }
        };
        Ok(())
    }

    /// Names and element types; an output's type is not asked for.
    fn ports(&self, is_input: bool) -> Outcome<Vec<Port>> {
        let (library, api, session) = (self.library, &self.library.api, self.session);
        let (count, name) = if is_input { (api.input_count, api.input_name) } else { (api.output_count, api.output_name) };
        // SAFETY: the session lives; the allocator is the library's own, and frees what it gave.
        let count = library.ask(|out| unsafe { count(session, out) })?;
        // SAFETY: as above.
        let allocator = library.make(|out| unsafe { (api.default_allocator)(out) })?;
        let port = |index| {
            // SAFETY: as above.
            let text: *mut c_char = library.make(|out| unsafe { name(session, index, allocator, out) })?;
            // SAFETY: as above.
            let name = unsafe { CStr::from_ptr(text) }.to_owned();
            // SAFETY: as above.
            library.check(unsafe { (api.allocator_free)(allocator, text.cast()) })?;
            Ok(Port { name, element: if is_input { self.element(index)? } else { 0 } })
        };
        (0..count).map(port).collect()
    }

    fn element(&self, index: usize) -> Outcome<c_int> {
        let (library, api) = (self.library, &self.library.api);
        // SAFETY: the session lives, and the type is released below.
        let kind = library.make(|out| unsafe { (api.input_type)(self.session, index, out) })?;
        let mut info = null();
        // SAFETY: as above; the tensor's type is part of it.
        let cast = library.check(unsafe { (api.tensor_type)(kind, &mut info) });
        let element = cast.and_then(|()| match info.is_null() {
            true => Ok(0),
            // SAFETY: as above.
            false => library.ask(|out| unsafe { (api.element_type)(info, out) }),
        });
        // SAFETY: it was made above.
        unsafe { (api.release_type)(kind) };
        element
    }

    /// Token ids, and what else a rewritten graph has; another input has nobody to give it.
    fn check_ports(&self) -> Outcome<()> {
        let ids = self.inputs.iter().filter(|port| !port.is(POSITIONS) && !port.is(ROWS)).count();
        for port in &self.inputs {
            let reason = if ![number::INT32, number::INT64].contains(&port.element) {
                "it takes no whole numbers"
            } else if ids > 1 && !["input_ids", POSITIONS, ROWS].iter().any(|name| port.is(name)) {
                "nothing is known that it could be given"
            } else {
                continue;
            };
            return Err(unsupported(&port.text(), "input", reason));
        }
        if ids == 0 {
            return Err(unsupported("input_ids", "input", "the graph has no input of token ids"));
        }
        if self.outputs.is_empty() {
            return Err(unsupported(LOGITS, "output", "the graph has no outputs"));
        }
        Ok(())
    }

    /// The output with logits.
    fn logits(&self) -> &Port {
        self.outputs.iter().find(|port| port.is(LOGITS)).unwrap_or(&self.outputs[0])
    }

    fn has_rows(&self) -> bool {
        self.inputs.iter().any(|port| port.is(ROWS))
    }
}

fn unsupported(node: &str, operator: &str, reason: &str) -> Refusal {
    let message = format!("the graph is not recognised at {node} ({operator}): {reason}");
    Refusal { code: Code::UnsupportedGraph, message, details: details![node: node, operator: operator, reason: reason] }
}

fn failed(reason: String) -> Refusal {
    let message = format!("onnxruntime failed: {reason}");
    Refusal { code: Code::RuntimeFailed, message, details: details![reason: reason] }
}

impl Port {
    fn is(&self, name: &str) -> bool {
        self.name.as_bytes() == name.as_bytes()
    }

    fn text(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }
}

/// What one step is given.
struct StepInputs {
    ids: Vec<i64>,
    positions: Vec<i64>,
    /// The rows that are wanted, where not all are.
    rows: Option<Vec<i64>>,
}

impl StepInputs {
    fn read(ids: ArrayArg, positions: ArrayArg, rows: Option<ArrayArg>) -> Outcome<Self> {
        let ids: Vec<i64> = ids.elements::<u32>("ids")?.unwrap_or(&[]).iter().map(|&id| id.into()).collect();
        let positions = positions.elements::<i32>("positions")?.unwrap_or(&[]).iter().map(|&at| at.into()).collect::<Vec<_>>();
        let rows = rows.map(|rows| rows.elements::<i32>("rows")).transpose()?;
        let rows = rows.map(|rows| rows.unwrap_or(&[]).iter().map(|&row| row.into()).collect::<Vec<i64>>());
        if positions.len() != ids.len() {
            let expected = format!("{}, as many as token ids", ids.len());
            return Err(Error::argument("positions", format!("{} positions", positions.len()), expected).into());
        }
        let past = rows.iter().flatten().find(|&&row| row < 0 || row >= ids.len() as i64);
        if let Some(&row) = past {
            return Err(Error::argument("rows", row as f64, format!("a row from 0 to below {}", ids.len())).into());
        }
        Ok(StepInputs { ids, positions, rows })
    }

    fn check(&self, run: &StepRun) -> Outcome<()> {
        let tokens = run.tokens() as usize;
        if self.ids.len() == tokens {
            return Ok(());
        }
        let expected = format!("{tokens}, one for each token of the step");
        Err(Error::argument("ids", format!("{} token ids", self.ids.len()), expected).into())
    }

    /// How many rows of logits come back.
    fn count(&self) -> usize {
        self.rows.as_ref().map_or(self.ids.len(), Vec::len)
    }
}

/// A tensor of ours for the length of a call: whole numbers as the graph wants them.
struct Fed<'a> {
    session: &'a Session,
    value: *mut Value,
    _numbers: Box<[i64]>,
}

impl Drop for Fed<'_> {
    fn drop(&mut self) {
        // SAFETY: it was made for this call.
        unsafe { (self.session.library.api.release_value)(self.value) };
    }
}

impl<'a> Fed<'a> {
    fn new(session: &'a Session, port: &Port, numbers: &[i64], dims: &[i64]) -> Outcome<Self> {
        let (library, api) = (session.library, &session.library.api);
        let mut own: Box<[i64]> = numbers.into();
        let mut bytes = 8 * own.len();
        if port.element == number::INT32 {
            // The same memory, with half of it used.
            bytes = 4 * own.len();
            let narrow: &mut [i32] = bytemuck::cast_slice_mut(&mut own);
            for (place, &value) in numbers.iter().enumerate() {
                narrow[place] = i32::try_from(value).map_err(|_| failed(format!("{value} is too large for {}", port.text())))?;
            }
        }
        let data = own.as_mut_ptr().cast();
        // SAFETY: the numbers live as long as the tensor, and have so many bytes.
        let value = library.make(|out| unsafe {
            (api.create_tensor)(session.memory, data, bytes, dims.as_ptr(), dims.len(), port.element, out)
        })?;
        Ok(Fed { session, value, _numbers: own })
    }
}

/// What the library made.
struct Made<'a> {
    library: &'a Library,
    value: *mut Value,
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // SAFETY: the library gave it away, or it is null.
        unsafe { (self.library.api.release_value)(self.value) };
    }
}

impl Session {
    /// Runs one step; kernels find it in what they share.
    fn run(&self, inputs: &StepInputs, budget: &Arc<Budget>) -> Outcome<Arc<Logits>> {
        let (library, tokens) = (self.library, inputs.ids.len() as i64);
        let fed = self.inputs.iter().map(|port| {
            if port.is(POSITIONS) {
                return Fed::new(self, port, &inputs.positions, &[1, tokens]);
            }
            if !port.is(ROWS) {
                return Fed::new(self, port, &inputs.ids, &[1, tokens]);
            }
            match &inputs.rows {
                Some(rows) => Fed::new(self, port, rows, &[rows.len() as i64]),
                None => Fed::new(self, port, &(0..tokens).collect::<Vec<_>>(), &[tokens]),
            }
        });
        let fed = fed.collect::<Outcome<Vec<_>>>()?;
        let names: Vec<_> = self.inputs.iter().map(|port| port.name.as_ptr()).collect();
        let values: Vec<_> = fed.iter().map(|fed| fed.value.cast_const()).collect();
        let asked = [self.logits().name.as_ptr()];
        let mut made = Made { library, value: null_mut() };
        // SAFETY: names and tensors live until the call is over, and the output is a local.
        library.check(unsafe {
            let (run, count) = (library.api.run, names.len());
            run(self.session, NONE, names.as_ptr(), values.as_ptr(), count, asked.as_ptr(), 1, &mut made.value)
        })?;
        self.read(&made, inputs, budget)
    }

    /// The rows that were asked for, as floats.
    fn read(&self, made: &Made<'_>, inputs: &StepInputs, budget: &Arc<Budget>) -> Outcome<Arc<Logits>> {
        let library = self.library;
        let dims = dims(library, made.value)?;
        let rows = if self.has_rows() { inputs.count() } else { inputs.ids.len() };
        let vocab = match dims.as_slice() {
            &[1, found, vocab] if found as usize == rows => vocab as usize,
            _ => return Err(failed(format!("logits have the dimensions {dims:?}, expected [1, {rows}, vocabulary]"))),
        };
        // SAFETY: the tensor lives, and its info is released below.
        let info = library.make(|out| unsafe { (library.api.tensor_info)(made.value, out) })?;
        // SAFETY: as above.
        let element: Outcome<c_int> = library.ask(|out| unsafe { (library.api.element_type)(info, out) });
        // SAFETY: as above.
        unsafe { (library.api.release_tensor_info)(info) };
        let element = element?;
        let width = match element {
            number::FLOAT => 4,
            number::FLOAT16 | number::BFLOAT16 => 2,
            other => return Err(failed(format!("logits are of element type {other}, expected floats"))),
        };
        // SAFETY: the tensor has these dimensions and this element type, and nobody writes to it.
        let bytes: &[u8] = unsafe { memory(library, made.value, rows * vocab * width)? };
        let count = inputs.count();
        let mut values = Vec::new();
        values.try_reserve_exact(count * vocab).map_err(|_| Budget::process().refusal(4 * (count * vocab) as u64))?;
        let row = |place: usize| &bytes[place * vocab * width..(place + 1) * vocab * width];
        match &inputs.rows {
            Some(chosen) if !self.has_rows() => chosen.iter().for_each(|&place| widen(row(place as usize), element, &mut values)),
            _ => widen(bytes, element, &mut values),
        }
        Logits::new(values, count as u32, vocab as u32, budget)
    }
}

/// Adds elements as floats.
fn widen(bytes: &[u8], element: c_int, to: &mut Vec<f32>) {
    if element == number::FLOAT {
        return to.extend_from_slice(bytemuck::cast_slice(bytes));
    }
    let bits: &[u16] = bytemuck::cast_slice(bytes);
    let start = to.len();
    to.resize(start + bits.len(), 0.);
    match element {
        number::FLOAT16 => bits.reinterpret_cast::<f16>().convert_to_f32_slice(&mut to[start..]),
        _ => bits.reinterpret_cast::<bf16>().convert_to_f32_slice(&mut to[start..]),
    }
}

/// A model that can be run, until it is disposed of.
#[napi]
pub struct NativeOnnxSession {
    session: Handle<Arc<Session>>,
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
    #[napi(ts_args_type = "library: string, model: string | Uint8Array, options: NativeOnnxSessionOptions", ts_return_type = "Promise<NativeOnnxSession>")]
    pub fn create(
        env: &Env,
        library: String,
        model: ModelArg,
        options: NativeOnnxSessionOptions,
    ) -> Result<AsyncTask<OnnxTask<NativeOnnxSession, NativeOnnxSession>>> {
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
            Ok(OnnxTask::of(
                move || {
                    let library = Library::open(Path::new(&library))?;
                    let session = Arc::new(Session::create(library, &model, &options)?);
                    Ok(NativeOnnxSession { session: Handle::new("session", session) })
                },
                |session| session,
            ))
        })
    }

    #[napi(getter)]
    pub fn inputs(&self, env: &Env) -> Result<Vec<String>> {
        self.session.read(env, |session| Ok(session.inputs.iter().map(Port::text).collect()))
    }

    #[napi(getter)]
    pub fn outputs(&self, env: &Env) -> Result<Vec<String>> {
        self.session.read(env, |session| Ok(session.outputs.iter().map(Port::text).collect()))
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
        self.session.read(env, |session| {
            let inputs = StepInputs::read(ids, positions, rows)?;
            let lent = run.lend(|run| inputs.check(run))?;
            if session.running.swap(true, Ordering::AcqRel) {
                return Err(kvtide_tensor::Error::Busy.into());
            }
            let running = Running(session.clone());
            Ok(AsyncTask::new(StepTask { running: Some(running), lent: Some(lent), inputs, budget: budget() }))
        })
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env) {
        self.session.dispose(env, |_| ());
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
    fn compute_step(&mut self) -> Outcome<Arc<Logits>> {
        let gone = || kvtide_tensor::Error::Aborted;
        let (Running(session), lent) = (self.running.as_ref().ok_or_else(gone)?, self.lent.as_mut().ok_or_else(gone)?);
        session.shared.begin(lent.take().ok_or_else(gone)?);
        let computed = catch(|| session.run(&self.inputs, &self.budget)).unwrap_or_else(Err);
        let (run, refusal) = session.shared.end();
        if let Some(run) = run {
            lent.put(run);
        }
        computed.map_err(|failed| refusal.unwrap_or(failed))
    }
}

impl Task for StepTask {
    type Output = Outcome<Arc<Logits>>;
    type JsValue = NativeLogits;

    fn compute(&mut self) -> Result<Self::Output> {
        Ok(catch(|| self.compute_step()).unwrap_or_else(Err))
    }

    fn resolve(&mut self, env: Env, computed: Self::Output) -> Result<NativeLogits> {
        // Both are free again right before the promise is settled.
        (self.running, self.lent) = (None, None);
        guard(&env, || Ok(NativeLogits::of(computed?)))
    }
}
