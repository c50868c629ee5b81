//! One attention node of a graph: its attributes, and its computation. All inputs and outputs are in onnxruntime's
//! memory.
#![expect(unsafe_code, reason = "attributes and tensors are read from a C library, and work is shared on its threads")]

use std::borrow::Cow;
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
use super::operator::{COSINES, POSITIONS, SINES};
use super::rotary::{Heads, Tables, lay};
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
    /// True if the first input has queries, keys and values.
    packed: bool,
    /// Rotated elements of a head, if the operator rotates queries and keys.
    rotary_dim: Option<usize>,
    interleaved: bool,
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
            packed: whole(c"packed").is_ok_and(|packed| packed == 1),
            rotary_dim: whole(c"rotary_dim").ok().map(|dims| dims as usize),
            interleaved: whole(c"interleaved").is_ok_and(|interleaved| interleaved == 1),
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

fn none() -> Refusal {
    wrong("no step is being computed".into())
}

pub(super) fn wrong(reason: String) -> Refusal {
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

impl<'a> Input<'a> {
    /// Its numbers. Weights that the library maps from a file may not be aligned.
    fn floats(&self) -> Cow<'a, [f32]> {
        let aligned = bytemuck::try_cast_slice(self.bytes).map(Cow::Borrowed);
        aligned.unwrap_or_else(|_| self.bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())
    }
}

impl KernelCall<'_> {
    fn library(&self) -> &'static Library {
        self.kernel.shared.library
    }

    pub fn compute(&self) -> Outcome<()> {
        let kernel = self.kernel;
        let q = self.input(0)?;
        let tokens = self.tokens(&q)?;
        let out = self.output(tokens)?;
        let mut state = kernel.shared.state();
        if kernel.packed || kernel.rotary_dim.is_some() {
            return self.compute_laid(&mut state, &q, tokens, out);
        }
        let State { run, turned: [queries, rows], .. } = &mut *state;
        let run = run.as_mut().ok_or_else(none)?;
        if !run.is_shared(kernel.layer)? {
            let (k, v) = (self.input(1)?, self.input(2)?);
            let k = self.side("k", k.bytes, tokens, kernel.dim)?;
            let v = self.side("v", v.bytes, tokens, kernel.value_dim)?;
            run.write_layer(kernel.layer, k, v)?;
        }
        if !self.is_turned(tokens) {
            let q = self.queries(q.bytes, tokens)?;
            return self.attend(run, q, out);
        }
        let bytes = kernel.dtype.bytes();
        let turned = room(queries, q.bytes.len())?;
        turn(q.bytes, turned, [kernel.heads, tokens, kernel.dim * bytes]);
        self.attend_turned(run, rows, self.queries(turned, tokens)?, out)
    }

    /// Splits a packed tensor and rotates queries and keys before it attends.
    fn compute_laid(&self, state: &mut State, q: &Input<'_>, tokens: usize, out: &mut [u8]) -> Outcome<()> {
        let Kernel { heads, kv_heads, dim, value_dim, packed, .. } = *self.kernel;
        let State { run, turned: [queries, rows], laid: [keys, values], .. } = state;
        let run = run.as_mut().ok_or_else(none)?;
        let tables = self.tables(tokens)?;
        let (own, others) = (heads * dim, kv_heads * dim);
        let width = if packed { own + others + kv_heads * value_dim } else { 0 };
        let k = if packed { q } else { &self.input(1)? };
        let k = Heads { start: if packed { own } else { 0 }, ..self.heads(k, kv_heads, dim, width.max(others)) };
        let k = self.laid(k, tables.as_ref(), tokens, keys)?;
        let k =
            HostTensor::new("k", k, DType::F32, &[tokens, kv_heads, dim])?.with_layout("k", SequenceLayout::Bshd)?;
        if packed {
            let v = Heads { start: own + others, ..self.heads(q, kv_heads, value_dim, width) };
            let v =
                HostTensor::new("v", self.laid(v, None, tokens, values)?, DType::F32, &[tokens, kv_heads, value_dim])?;
            run.write_layer(self.kernel.layer, k, v.with_layout("v", SequenceLayout::Bshd)?)?;
        } else {
            run.write_layer(self.kernel.layer, k, self.side("v", self.input(2)?.bytes, tokens, value_dim)?)?;
        }
        let q = self.laid(self.heads(q, heads, dim, width.max(own)), tables.as_ref(), tokens, queries)?;
        let q = self.queries(q, tokens)?;
        if self.is_turned(tokens) { self.attend_turned(run, rows, q, out) } else { self.attend(run, q, out) }
    }

    /// The heads of an input, whose rows have `width` elements if tokens come before heads.
    fn heads<'b>(&self, input: &Input<'b>, count: usize, dim: usize, width: usize) -> Heads<'b> {
        let from: &[f32] = bytemuck::cast_slice(input.bytes);
        let steps = if self.kernel.heads_first { [dim, from.len() / count] } else { [width, dim] };
        Heads { from, start: 0, steps, count, dim }
    }

    /// Heads in token-first order, rotated if there are tables.
    fn laid<'b>(
        &self,
        heads: Heads<'_>,
        tables: Option<&Tables<'_>>,
        tokens: usize,
        to: &'b mut Vec<f32>,
    ) -> Outcome<&'b [u8]> {
        let to = room(to, 4 * tokens * heads.count * heads.dim)?;
        let share = |count, job: &(dyn Fn(usize) + Sync)| share(self.library(), self.context, count, job);
        lay(heads, tables, bytemuck::cast_slice_mut(to), self.kernel.shared.threads, share);
        Ok(to)
    }

    /// The tables of the rotary embedding, if the operator rotates.
    fn tables(&self, tokens: usize) -> Outcome<Option<Tables<'_>>> {
        let Some(dims) = self.kernel.rotary_dim else { return Ok(None) };
        let [cos, sin] = [self.input(COSINES)?, self.input(SINES)?].map(|table| table.floats());
        let positions = self.input_of(POSITIONS, 8)?.map(|input| bytemuck::cast_slice(input.bytes));
        let tables = Tables { positions, cos, sin, dims, interleaved: self.kernel.interleaved };
        tables.check(self.kernel.dim, tokens)?;
        Ok(Some(tables))
    }

    fn queries<'b>(&self, bytes: &'b [u8], tokens: usize) -> Outcome<HostTensor<'b>> {
        Ok(HostTensor::new("q", bytes, self.kernel.dtype, &[tokens, self.kernel.heads, self.kernel.dim])?)
    }

    /// Attends with queries in token-first order, into an output with heads first.
    fn attend_turned(&self, run: &StepRun, rows: &mut Vec<f32>, q: HostTensor<'_>, out: &mut [u8]) -> Outcome<()> {
        let Kernel { heads, value_dim, dtype, .. } = *self.kernel;
        let tokens = out.len() / (heads * value_dim * dtype.bytes());
        let rows = room(rows, out.len())?;
        self.attend(run, q, rows)?;
        turn(rows, out, [tokens, heads, value_dim * dtype.bytes()]);
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
            (false, &[1, tokens, heads, dim]) => (tokens, [heads * dim, 1]),
            (_, dims) => return Err(wrong(format!("queries have the dimensions {dims:?}, expected a batch of 1"))),
        };
        let others = if kernel.packed { kernel.kv_heads * (kernel.dim + kernel.value_dim) } else { 0 };
        let wanted =
            if kernel.heads_first { [kernel.heads, kernel.dim] } else { [kernel.heads * kernel.dim + others, 1] };
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
        let missing = || wrong(format!("its input {index} is missing"));
        self.input_of(index, self.kernel.dtype.bytes())?.ok_or_else(missing)
    }

    /// An input whose elements have so many bytes, if the node has it.
    fn input_of<'b>(&self, index: usize, bytes: usize) -> Outcome<Option<Input<'b>>> {
        let library = self.library();
        let mut value = std::ptr::null();
        // SAFETY: the context is that of this call, and the output pointer points to a local.
        library.check(unsafe { (library.api.kernel_input)(self.context, index, &mut value) })?;
        if value.is_null() {
            return Ok(None);
        }
        let dims = dims(library, value)?;
        let count = dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?));
        let count = count.ok_or_else(|| wrong(format!("input {index} has the dimensions {dims:?}")))?;
        // SAFETY: a tensor with these dimensions and elements of the operator's type, or positions; it lives as long as
        // the call.
        Ok(Some(Input { dims, bytes: unsafe { memory(library, value.cast_mut(), count * bytes)? } }))
    }

    /// Allocates the output and returns its memory.
    fn output<'b>(&self, tokens: usize) -> Outcome<&'b mut [u8]> {
        let (library, kernel) = (self.library(), self.kernel);
        let [batch, tokens_of, heads, dim] = [1, tokens, kernel.heads, kernel.value_dim].map(|size| size as i64);
        let heads_first = [batch, heads, tokens_of, dim];
        let packed = [batch, tokens_of, heads * dim];
        let dims: &[i64] = if kernel.heads_first { &heads_first } else { &packed };
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
