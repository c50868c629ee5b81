//! The operator `kvtide::Attention`, as a library of onnxruntime calls it.
//!
//! ```text
//! Run                                    on the thread of the caller
//!   kernel of layer 0                    queries, keys and values in onnxruntime's memory
//!     write K and V to the step's pages
//!     attend into onnxruntime's output   shared through onnxruntime's own threads
//!   kernel of layer 1 ..
//! ```
//!
//! A kernel finds the step that is computed in what its session shares. Attributes are those that `kvtide-onnx` writes. There is an
//! operator for each element type: a library asks each which one it takes.
//!
//! No panic crosses to the library. What a kernel was refused with is kept aside: the library tells it in its own words, and the caller
//! gets the original.
#![expect(unsafe_code, reason = "a C library calls these functions and gives memory of its own")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtide_core::{Code, details};
use kvtide_tensor::{AttendOptions, Budget, DType, HostTensor, StepRun};

use super::api::{CustomOp, KernelContext, KernelInfo, ShapeContext, Status, TensorInfo, VERSION, Value, number};
use super::library::Library;
use crate::border::handle::catch;
use crate::border::refusal::{Outcome, Refusal};

/// What the kernels of one session share.
pub(super) struct Shared {
    pub library: &'static Library,
    /// How many threads the session has, the caller's among them.
    pub threads: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The step that is computed.
    run: Option<StepRun>,
    /// What a kernel was refused with first.
    refusal: Option<Refusal>,
    /// Queries and outputs with their tokens first, where the graph has heads first.
    turned: [Vec<f32>; 2],
}

impl Shared {
    pub fn new(library: &'static Library, threads: usize) -> Arc<Self> {
        Arc::new(Shared { library, threads, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives kernels the step that is computed from here on.
    pub fn begin(&self, run: StepRun) {
        let mut state = self.state();
        (state.run, state.refusal) = (Some(run), None);
    }

    /// Takes it back, and what a kernel was refused with.
    pub fn end(&self) -> (Option<StepRun>, Option<Refusal>) {
        let mut state = self.state();
        (state.run.take(), state.refusal.take())
    }

    /// Runs `work` for the library: a refusal or a panic is kept, and becomes a status.
    fn answer(&self, work: impl FnOnce() -> Outcome<()>) -> Status {
        let Err(refusal) = catch(work).unwrap_or_else(Err) else { return null_mut() };
        let status = self.library.status(&refusal.message);
        self.state().refusal.get_or_insert(refusal);
        status
    }
}

/// An operator of one element type, and what its session shares. It has to stay where it is as long as the session.
#[repr(C)]
pub(super) struct Operator {
    /// First, so that a pointer to it is one to the whole.
    pub table: CustomOp,
    element: c_int,
    shared: Arc<Shared>,
}

// SAFETY: the table has functions alone.
unsafe impl Send for Operator {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Operator {}

/// Element types of tensors.
const ELEMENTS: [(c_int, DType); 3] =
    [(number::FLOAT, DType::F32), (number::FLOAT16, DType::F16), (number::BFLOAT16, DType::BF16)];

impl Operator {
    /// One for each element type.
    pub fn all(shared: &Arc<Shared>) -> Vec<Box<Operator>> {
        ELEMENTS.iter().map(|&(element, _)| Box::new(Operator { table: TABLE, element, shared: shared.clone() })).collect()
    }

    /// # Safety
    ///
    /// `operator` is the table of an [`Operator`] that lives.
    unsafe fn of<'a>(operator: *const CustomOp) -> &'a Operator {
        // SAFETY: the table is the first field of the whole.
        unsafe { &*operator.cast::<Operator>() }
    }
}

const TABLE: CustomOp = CustomOp {
    version: VERSION,
    create_kernel: None,
    get_name: name,
    get_execution_provider_type: any_provider,
    get_input_type: element,
    get_input_type_count: three,
    get_output_type: element,
    get_output_type_count: one,
    kernel_compute: None,
    kernel_destroy: destroy,
    get_input_characteristic: required,
    get_output_characteristic: required,
    get_input_memory_type: ordinary,
    get_variadic_input_min_arity: arity,
    get_variadic_input_homogeneity: arity,
    get_variadic_output_min_arity: arity,
    get_variadic_output_homogeneity: arity,
    create_kernel_v2: create,
    kernel_compute_v2: compute,
    infer_output_shape_fn: infer,
    get_start_version: arity,
    get_end_version: last_version,
};

unsafe extern "system" fn name(_: *const CustomOp) -> *const c_char {
    c"Attention".as_ptr()
}

/// The CPU's.
unsafe extern "system" fn any_provider(_: *const CustomOp) -> *const c_char {
    std::ptr::null()
}

unsafe extern "system" fn element(operator: *const CustomOp, _: usize) -> c_int {
    // SAFETY: the library asks with what it was given.
    unsafe { Operator::of(operator) }.element
}

unsafe extern "system" fn three(_: *const CustomOp) -> usize {
    3
}

unsafe extern "system" fn one(_: *const CustomOp) -> usize {
    1
}

unsafe extern "system" fn required(_: *const CustomOp, _: usize) -> c_int {
    number::REQUIRED
}

unsafe extern "system" fn ordinary(_: *const CustomOp, _: usize) -> c_int {
    number::DEFAULT_MEMORY
}

unsafe extern "system" fn arity(_: *const CustomOp) -> c_int {
    1
}

unsafe extern "system" fn last_version(_: *const CustomOp) -> c_int {
    c_int::MAX
}

/// The output has the queries' shape, where values are as wide as they; elsewhere it is not said.
unsafe extern "system" fn infer(operator: *const CustomOp, context: *mut ShapeContext) -> Status {
    // SAFETY: the library asks with what it was given.
    let library = unsafe { Operator::of(operator) }.shared.library;
    let attribute = |name: &CStr| -> Outcome<i64> {
        let mut found = std::ptr::null();
        // SAFETY: the context is that of this call; places to write to are locals, and the attribute is a whole number.
        library.check(unsafe { (library.api.inferred_attribute)(context, name.as_ptr(), &mut found) })?;
        let (mut value, mut bytes) = (0i64, 0);
        let data = (&raw mut value).cast();
        // SAFETY: as above.
        library.check(unsafe { (library.api.read_attribute)(found, number::INT_ATTRIBUTE, data, 8, &mut bytes) })?;
        Ok(value)
    };
    let same = || -> Outcome<()> {
        if attribute(c"head_dim")? != attribute(c"value_dim")? {
            return Ok(());
        }
        // SAFETY: as above; what is asked for is given on at once.
        let info = library.make(|out| unsafe { (library.api.inferred_input)(context, 0, out) })?;
        // SAFETY: as above.
        library.check(unsafe { (library.api.infer_output)(context, 0, info) })
    };
    match catch(same).unwrap_or_else(Err) {
        Ok(()) => null_mut(),
        Err(refusal) => library.status(&refusal.message),
    }
}

unsafe extern "system" fn create(
    operator: *const CustomOp,
    _: *const c_void,
    info: *const KernelInfo,
    out: *mut *mut c_void,
) -> Status {
    // SAFETY: the library asks with what it was given.
    let operator = unsafe { Operator::of(operator) };
    operator.shared.answer(|| {
        let kernel = Kernel::read(operator, info)?;
        // SAFETY: the library gives a place for its kernel.
        unsafe { *out = Box::into_raw(Box::new(kernel)).cast() };
        Ok(())
    })
}

unsafe extern "system" fn destroy(kernel: *mut c_void) {
    // SAFETY: it is what `create` made, and this is the last that the library does with it.
    let kernel = unsafe { Box::from_raw(kernel.cast::<Kernel>()) };
    // A panic on the way out leaves nothing behind that could be used.
    let _ = catch(|| drop(kernel));
}

unsafe extern "system" fn compute(kernel: *mut c_void, context: *mut KernelContext) -> Status {
    // SAFETY: it is what `create` made.
    let kernel = unsafe { &*kernel.cast::<Kernel>() };
    kernel.shared.answer(|| KernelCall { kernel, context }.compute())
}

/// One attention.
struct Kernel {
    shared: Arc<Shared>,
    dtype: DType,
    layer: u32,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    value_dim: usize,
    heads_first: bool,
    scale: f32,
    softcap: Option<f32>,
    window: Option<u32>,
    sinks: Option<Vec<f32>>,
}

impl Kernel {
    fn read(operator: &Operator, info: *const KernelInfo) -> Outcome<Self> {
        let library = operator.shared.library;
        // SAFETY: the info is that of this call, and the place to write to a local.
        let int = |name: &CStr| library.ask(|out| unsafe { (library.api.attribute_int)(info, name.as_ptr(), out) });
        // SAFETY: as above.
        let float = |name: &CStr| library.ask(|out| unsafe { (library.api.attribute_float)(info, name.as_ptr(), out) });
        let whole = |name: &CStr| -> Outcome<u32> {
            let value: i64 = int(name)?;
            let text = name.to_string_lossy();
            let refused = |_| wrong(format!("{text} is {value}, expected a whole number from 0 on"));
            u32::try_from(value).map_err(refused)
        };
        let dtype = ELEMENTS.iter().find(|entry| entry.0 == operator.element).map_or(DType::F32, |entry| entry.1);
        Ok(Kernel {
            shared: operator.shared.clone(),
            dtype,
            layer: whole(c"layer")?,
            heads: whole(c"num_heads")? as usize,
            kv_heads: whole(c"kv_num_heads")? as usize,
            dim: whole(c"head_dim")? as usize,
            value_dim: whole(c"value_dim")? as usize,
            heads_first: whole(c"heads_first")? == 1,
            scale: float(c"scale")?,
            // What is not there is refused, and that is the answer.
            softcap: float(c"softcap").ok(),
            window: int(c"window").ok().and_then(|window: i64| u32::try_from(window).ok()),
            sinks: floats(library, info, c"sinks")?,
        })
    }

    fn options(&self, threads: usize) -> AttendOptions<'_> {
        AttendOptions {
            scale: Some(self.scale),
            softcap: self.softcap,
            window: self.window,
            sink_logits: self.sinks.as_deref(),
            lse: false,
            threads: Some(threads),
            ..Default::default()
        }
    }
}

fn floats(library: &Library, info: *const KernelInfo, name: &CStr) -> Outcome<Option<Vec<f32>>> {
    // SAFETY: the info is that of this call; a list of no place is asked for its length.
    let asked = library.ask(|out| unsafe { (library.api.attribute_floats)(info, name.as_ptr(), null_mut(), out) });
    let Ok(mut count) = asked else { return Ok(None) };
    let mut list = vec![0f32; count];
    // SAFETY: the list has as many places as it said.
    library.check(unsafe { (library.api.attribute_floats)(info, name.as_ptr(), list.as_mut_ptr(), &mut count) })?;
    Ok(Some(list))
}

fn wrong(reason: String) -> Refusal {
    Refusal { code: Code::RuntimeFailed, message: format!("kvtide::Attention: {reason}"), details: details![reason: reason] }
}

/// A call of a kernel.
struct KernelCall<'a> {
    kernel: &'a Kernel,
    context: *mut KernelContext,
}

/// A tensor of the library's.
struct Input<'a> {
    dims: Vec<i64>,
    bytes: &'a [u8],
}

impl KernelCall<'_> {
    fn library(&self) -> &'static Library {
        self.kernel.shared.library
    }

    fn compute(&self) -> Outcome<()> {
        let kernel = self.kernel;
        let (dim, heads) = (kernel.dim, kernel.heads);
        let (q, k, v) = (self.input(0)?, self.input(1)?, self.input(2)?);
        let tokens = self.tokens(&q)?;
        let out = self.output(&q, tokens)?;
        let mut state = kernel.shared.state();
        let State { run, turned: [queries, rows], .. } = &mut *state;
        let run = run.as_mut().ok_or_else(|| wrong("no step is computed".into()))?;
        let (k, v) = (self.side("k", k.bytes, tokens, dim)?, self.side("v", v.bytes, tokens, kernel.value_dim)?);
        run.write_layer(kernel.layer, k, v)?;
        if !self.is_turned(tokens) {
            let q = HostTensor::new("q", q.bytes, kernel.dtype, &[tokens, heads, dim])?;
            return self.attend(run, q, out);
        }
        let bytes = kernel.dtype.bytes();
        let queries = room(queries, q.bytes.len())?;
        turn(q.bytes, queries, [heads, tokens, dim * bytes]);
        let rows = room(rows, out.len())?;
        self.attend(run, HostTensor::new("q", queries, kernel.dtype, &[tokens, heads, dim])?, rows)?;
        turn(rows, out, [tokens, heads, kernel.value_dim * bytes]);
        Ok(())
    }

    /// Whether heads lie before tokens in memory: of one token they do not.
    fn is_turned(&self, tokens: usize) -> bool {
        self.kernel.heads_first && tokens > 1 && self.kernel.heads > 1
    }

    /// The queries' tokens, of the only row of the batch: those of all sequences lie one behind the other.
    fn tokens(&self, q: &Input<'_>) -> Outcome<usize> {
        let kernel = self.kernel;
        let (tokens, rest) = match (kernel.heads_first, q.dims.as_slice()) {
            (true, &[1, heads, tokens, dim]) => (tokens, [heads, dim]),
            (false, &[1, tokens, width]) => (tokens, [width, 1]),
            (_, dims) => return Err(wrong(format!("queries have the dimensions {dims:?}, expected a batch of 1"))),
        };
        let wanted = if kernel.heads_first { [kernel.heads, kernel.dim] } else { [kernel.heads * kernel.dim, 1] };
        if rest != wanted.map(|size| size as i64) {
            let (heads, dim) = (kernel.heads, kernel.dim);
            return Err(wrong(format!("queries have the dimensions {:?}, expected {heads} heads of {dim}", q.dims)));
        }
        Ok(tokens as usize)
    }

    /// Keys or values as a source: their dimensions are checked with the layer's.
    fn side<'b>(&self, name: &'static str, bytes: &'b [u8], tokens: usize, dim: usize) -> Outcome<HostTensor<'b>> {
        let Kernel { dtype, kv_heads, heads_first, .. } = *self.kernel;
        if heads_first {
            return Ok(HostTensor::new(name, bytes, dtype, &[kv_heads, tokens, dim])?);
        }
        let host = HostTensor::new(name, bytes, dtype, &[tokens, kv_heads, dim])?;
        Ok(host.with_layout(name, kvtide_tensor::SequenceLayout::Bshd)?)
    }

    fn attend(&self, run: &StepRun, q: HostTensor<'_>, out: &mut [u8]) -> Outcome<()> {
        let kernel = self.kernel;
        let options = kernel.options(kernel.shared.threads);
        let work = || run.attend_layer_with(kernel.layer, q, &options, |_| Ok((out, &mut [])));
        let (library, context) = (self.library(), self.context);
        Ok(kvtide_tensor::with_host(kernel.shared.threads, move |count, job| share(library, context, count, job), work)?)
    }

    fn input<'b>(&self, index: usize) -> Outcome<Input<'b>> {
        let library = self.library();
        let mut value = std::ptr::null();
        // SAFETY: the context is that of this call, and the place to write to a local.
        library.check(unsafe { (library.api.kernel_input)(self.context, index, &mut value) })?;
        let dims = dims(library, value)?;
        let count = dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?));
        let count = count.ok_or_else(|| wrong(format!("input {index} has the dimensions {dims:?}")))?;
        // SAFETY: a tensor with these dimensions, of the element type that the operator takes; it lives as long as the call.
        Ok(Input { dims, bytes: unsafe { memory(library, value.cast_mut(), count * self.kernel.dtype.bytes())? } })
    }

    /// The output's memory.
    fn output<'b>(&self, q: &Input<'_>, tokens: usize) -> Outcome<&'b mut [u8]> {
        let (library, kernel) = (self.library(), self.kernel);
        let mut dims = q.dims.clone();
        if let Some(last) = dims.last_mut() {
            *last = if kernel.heads_first { kernel.value_dim } else { kernel.heads * kernel.value_dim } as i64;
        }
        // SAFETY: the context is that of this call.
        let value = library.make(|out| unsafe {
            (library.api.kernel_output)(self.context, 0, dims.as_ptr(), dims.len(), out)
        })?;
        let bytes = tokens * kernel.heads * kernel.value_dim * kernel.dtype.bytes();
        // SAFETY: a tensor that was just made with these dimensions, which nobody else looks at during this call.
        unsafe { memory(library, value, bytes) }
    }
}

/// Calls `job` with each number below `count`, on the library's threads and this one.
fn share(library: &Library, context: *mut KernelContext, count: usize, job: &(dyn Fn(usize) + Sync)) {
    let data = (&raw const job).cast_mut().cast();
    // SAFETY: the context is that of the call that is under way. The library has called for every number when it answers, so `job`
    // outlives all of them.
    let shared = unsafe { (library.api.parallel_for)(context, call, count, 0, data) };
    // What the library leaves out is done by the caller.
    let _ = library.check(shared);
}

unsafe extern "C" fn call(data: *mut c_void, index: usize) {
    // SAFETY: it is what `share` gave, which waits for this call.
    let job = unsafe { *data.cast::<&(dyn Fn(usize) + Sync)>() };
    // Who gave the job takes panics out of it; whatever it does, none crosses to the library.
    let _ = catch(|| job(index));
}

/// The dimensions of a tensor.
pub(super) fn dims(library: &Library, value: *const Value) -> Outcome<Vec<i64>> {
    // SAFETY: the tensor lives, and the info is released below.
    let info = library.make::<TensorInfo>(|out| unsafe { (library.api.tensor_info)(value, out) })?;
    let read = || {
        // SAFETY: as above.
        let rank = library.ask(|out| unsafe { (library.api.rank)(info, out) })?;
        let mut dims = vec![0; rank];
        // SAFETY: as above; the list has as many places as there are dimensions.
        library.check(unsafe { (library.api.dims)(info, dims.as_mut_ptr(), rank) })?;
        Ok(dims)
    };
    let read = read();
    // SAFETY: it was made above, and nothing else has it.
    unsafe { (library.api.release_tensor_info)(info) };
    read
}

/// The memory of a tensor.
///
/// # Safety
///
/// The tensor has so many bytes and outlives `'a`, and nobody else writes to it meanwhile.
pub(super) unsafe fn memory<'a>(library: &Library, value: *mut Value, bytes: usize) -> Outcome<&'a mut [u8]> {
    // SAFETY: as the caller says.
    let data = library.make(|out| unsafe { (library.api.tensor_data)(value, out) })?;
    if bytes == 0 || data.is_null() {
        return Ok(&mut []);
    }
    // SAFETY: as the caller says.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), bytes) })
}

/// Room for so many bytes, kept for the next call.
fn room(list: &mut Vec<f32>, bytes: usize) -> Outcome<&mut [u8]> {
    let floats = bytes.div_ceil(4);
    if list.len() < floats {
        let more = floats - list.len();
        list.try_reserve_exact(more).map_err(|_| Budget::process().refusal(4 * more as u64))?;
        list.resize(floats, 0.);
    }
    Ok(&mut bytemuck::cast_slice_mut(list)[..bytes])
}

/// `[outer, inner, row]` as `[inner, outer, row]`, rows in bytes.
fn turn(from: &[u8], to: &mut [u8], [outer, inner, row]: [usize; 3]) {
    for a in 0..outer {
        for b in 0..inner {
            let (at, place) = ((a * inner + b) * row, (b * outer + a) * row);
            to[place..place + row].copy_from_slice(&from[at..at + row]);
        }
    }
}
