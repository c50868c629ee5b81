//! One attention node of a graph: its attributes, and its computation. All inputs and outputs are in onnxruntime's
//! memory.
#![expect(unsafe_code, reason = "attributes and tensors are read from a C library, and work is shared on its threads")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use kvtide_core::{Code, details};
use kvtide_tensor::attention::AttendOptions;
use kvtide_tensor::buffers::SequenceLayout;
use kvtide_tensor::runtime::{Budget, with_host};
use kvtide_tensor::{DType, HostTensor, StepRun};

use super::api::{KernelContext, KernelInfo};
use super::library::Library;
use super::shared::{ELEMENTS, Shared, State};
use super::tensor::{dims, memory};
use crate::border::handle::catch;
use crate::border::refusal::{Outcome, Refusal};

/// One attention node.
pub(super) struct Kernel {
    pub shared: Arc<Shared>,
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
    alibi_slopes: Option<Vec<f32>>,
}

impl Kernel {
    pub fn read(shared: &Arc<Shared>, element: c_int, info: *const KernelInfo) -> Outcome<Self> {
        let library = shared.library;
        // SAFETY: the info is that of this call, and the output pointer points to a local.
        let int = |name: &CStr| library.ask(|out| unsafe { (library.api.attribute_int)(info, name.as_ptr(), out) });
        // SAFETY: as above.
        let float = |name: &CStr| library.ask(|out| unsafe { (library.api.attribute_float)(info, name.as_ptr(), out) });
        let whole = |name: &CStr| -> Outcome<u32> {
            let value: i64 = int(name)?;
            let text = name.to_string_lossy();
            let refused = |_| wrong(format!("{text} is {value}, expected a whole number of at least 0"));
            u32::try_from(value).map_err(refused)
        };
        let dtype = ELEMENTS.iter().find(|entry| entry.0 == element).map_or(DType::F32, |entry| entry.1);
        Ok(Kernel {
            shared: shared.clone(),
            dtype,
            layer: whole(c"layer")?,
            heads: whole(c"num_heads")? as usize,
            kv_heads: whole(c"kv_num_heads")? as usize,
            dim: whole(c"head_dim")? as usize,
            value_dim: whole(c"value_dim")? as usize,
            heads_first: whole(c"heads_first")? == 1,
            scale: float(c"scale")?,
            // The library reports a missing attribute as an error; here that means that the node does not set it.
            softcap: float(c"softcap").ok(),
            window: int(c"window").ok().and_then(|window: i64| u32::try_from(window).ok()),
            sinks: floats(library, info, c"sinks")?,
            alibi_slopes: floats(library, info, c"alibi_slopes")?,
        })
    }

    fn options(&self, threads: usize) -> AttendOptions<'_> {
        AttendOptions {
            scale: Some(self.scale),
            softcap: self.softcap,
            window: self.window,
            sink_logits: self.sinks.as_deref(),
            alibi_slopes: self.alibi_slopes.as_deref(),
            lse: false,
            threads: Some(threads),
            ..Default::default()
        }
    }
}

fn floats(library: &Library, info: *const KernelInfo, name: &CStr) -> Outcome<Option<Vec<f32>>> {
    // SAFETY: the info is that of this call; a null list asks for the length only.
    let asked = library.ask(|out| unsafe { (library.api.attribute_floats)(info, name.as_ptr(), null_mut(), out) });
    let Ok(mut count) = asked else { return Ok(None) };
    let mut list = vec![0f32; count];
    // SAFETY: the list has the length that the library reported.
    library.check(unsafe { (library.api.attribute_floats)(info, name.as_ptr(), list.as_mut_ptr(), &mut count) })?;
    Ok(Some(list))
}

fn wrong(reason: String) -> Refusal {
    Refusal {
        code: Code::RuntimeFailed,
        message: format!("kvtide::Attention: {reason}"),
        details: details![reason: reason],
    }
}

/// One call of a kernel.
pub(super) struct KernelCall<'a> {
    pub kernel: &'a Kernel,
    pub context: *mut KernelContext,
}

/// An input tensor in onnxruntime's memory.
struct Input<'a> {
    dims: Vec<i64>,
    bytes: &'a [u8],
}

impl KernelCall<'_> {
    fn library(&self) -> &'static Library {
        self.kernel.shared.library
    }

    pub fn compute(&self) -> Outcome<()> {
        let kernel = self.kernel;
        let (dim, heads) = (kernel.dim, kernel.heads);
        let (q, k, v) = (self.input(0)?, self.input(1)?, self.input(2)?);
        let tokens = self.tokens(&q)?;
        let out = self.output(&q, tokens)?;
        let mut state = kernel.shared.state();
        let State { run, turned: [queries, rows], .. } = &mut *state;
        let run = run.as_mut().ok_or_else(|| wrong("no step is being computed".into()))?;
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

    /// True if heads come before tokens in memory. With a single token the order makes no difference.
    fn is_turned(&self, tokens: usize) -> bool {
        self.kernel.heads_first && tokens > 1 && self.kernel.heads > 1
    }

    /// The number of query tokens. The batch has one row, in which the tokens of all sequences are concatenated.
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

    /// Wraps keys or values as a tensor. The layer checks the dimensions.
    fn side<'b>(&self, name: &'static str, bytes: &'b [u8], tokens: usize, dim: usize) -> Outcome<HostTensor<'b>> {
        let Kernel { dtype, kv_heads, heads_first, .. } = *self.kernel;
        if heads_first {
            return Ok(HostTensor::new(name, bytes, dtype, &[kv_heads, tokens, dim])?);
        }
        let host = HostTensor::new(name, bytes, dtype, &[tokens, kv_heads, dim])?;
        Ok(host.with_layout(name, SequenceLayout::Bshd)?)
    }

    fn attend(&self, run: &StepRun, q: HostTensor<'_>, out: &mut [u8]) -> Outcome<()> {
        let kernel = self.kernel;
        let options = kernel.options(kernel.shared.threads);
        let work = || run.attend_layer_with(kernel.layer, q, &options, |_| Ok((out, &mut [])));
        let (library, context) = (self.library(), self.context);
        Ok(with_host(kernel.shared.threads, move |count, job| share(library, context, count, job), work)?)
    }

    fn input<'b>(&self, index: usize) -> Outcome<Input<'b>> {
        let library = self.library();
        let mut value = std::ptr::null();
        // SAFETY: the context is that of this call, and the output pointer points to a local.
        library.check(unsafe { (library.api.kernel_input)(self.context, index, &mut value) })?;
        let dims = dims(library, value)?;
        let count = dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?));
        let count = count.ok_or_else(|| wrong(format!("input {index} has the dimensions {dims:?}")))?;
        // SAFETY: a tensor with these dimensions and the operator's element type; it lives as long as the call.
        Ok(Input { dims, bytes: unsafe { memory(library, value.cast_mut(), count * self.kernel.dtype.bytes())? } })
    }

    /// Allocates the output and returns its memory.
    fn output<'b>(&self, q: &Input<'_>, tokens: usize) -> Outcome<&'b mut [u8]> {
        let (library, kernel) = (self.library(), self.kernel);
        let mut dims = q.dims.clone();
        if let Some(last) = dims.last_mut() {
            *last = if kernel.heads_first { kernel.value_dim } else { kernel.heads * kernel.value_dim } as i64;
        }
        // SAFETY: the context is that of this call.
        let value = library
            .make(|out| unsafe { (library.api.kernel_output)(self.context, 0, dims.as_ptr(), dims.len(), out) })?;
        let bytes = tokens * kernel.heads * kernel.value_dim * kernel.dtype.bytes();
        // SAFETY: the tensor was just made with these dimensions, and nothing else accesses it during this call.
        unsafe { memory(library, value, bytes) }
    }
}

/// Calls `job` with each number below `count`, on the library's threads and this one.
fn share(library: &Library, context: *mut KernelContext, count: usize, job: &(dyn Fn(usize) + Sync)) {
    let data = (&raw const job).cast_mut().cast();
    // SAFETY: the context is that of the running call. The library returns only after it has called for every number,
    // so `job` outlives all calls.
    let shared = unsafe { (library.api.parallel_for)(context, call, count, 0, data) };
    // If the library skips a number, the caller of this function does that work.
    let _ = library.check(shared);
}

unsafe extern "C" fn call(data: *mut c_void, index: usize) {
    // SAFETY: `share` passed this pointer and waits for this call.
    let job = unsafe { *data.cast::<&(dyn Fn(usize) + Sync)>() };
    // The code that provided the job catches its own panics; this makes sure that none reaches the library.
    let _ = catch(|| job(index));
}

/// A scratch buffer of so many bytes, kept for the next call.
fn room(list: &mut Vec<f32>, bytes: usize) -> Outcome<&mut [u8]> {
    let floats = bytes.div_ceil(4);
    if list.len() < floats {
        let more = floats - list.len();
        list.try_reserve_exact(more).map_err(|_| Budget::process().refusal(4 * more as u64))?;
        list.resize(floats, 0.);
    }
    Ok(&mut bytemuck::cast_slice_mut(list)[..bytes])
}

/// Transposes `[outer, inner, row]` to `[inner, outer, row]`, rows in bytes.
fn turn(from: &[u8], to: &mut [u8], [outer, inner, row]: [usize; 3]) {
    for a in 0..outer {
        for b in 0..inner {
            let (at, place) = ((a * inner + b) * row, (b * outer + a) * row);
            to[place..place + row].copy_from_slice(&from[at..at + row]);
        }
    }
}
