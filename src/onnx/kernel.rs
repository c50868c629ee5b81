//! One attention node of a graph: its attributes, and its computation. All inputs and outputs are in onnxruntime's
//! memory.

use std::ffi::CStr;
use std::sync::Arc;

use kvtide_tensor::attention::AttendOptions;
use kvtide_tensor::buffers::SequenceLayout;
use kvtide_tensor::runtime::with_host;
use kvtide_tensor::{DType, HostTensor, StepRun};

use super::api::KernelContext;
use super::call::{Call, Input, no_step, refused, room, turn};
use super::encoded::{CrossedQueries, StepEncodings};
use super::info::{Attributes, Info};
use super::operator::{COSINES, POSITIONS, SINES};
use super::rotary::{Heads, Tables, lay};
use super::shared::{Shared, State};
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
    /// True if it attends to the states of an encoder.
    crossed: bool,
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
    pub fn read(shared: &Arc<Shared>, dtype: DType, info: &Info) -> Outcome<Self> {
        let whole = |name: &CStr| info.whole(OPERATOR, name);
        Ok(Kernel {
            shared: shared.clone(),
            dtype,
            layer: whole(c"layer")?,
            heads: whole(c"num_heads")? as usize,
            kv_heads: whole(c"kv_num_heads")? as usize,
            dim: whole(c"head_dim")? as usize,
            value_dim: whole(c"value_dim")? as usize,
            heads_first: whole(c"heads_first")? == 1,
            crossed: info.is_set(c"crossed"),
            packed: info.is_set(c"packed"),
            rotary_dim: whole(c"rotary_dim").ok().map(|dims| dims as usize),
            interleaved: info.is_set(c"interleaved"),
            scale: info.float(c"scale").ok_or_else(|| wrong("scale is missing, expected a number".into()))?,
            softcap: info.float(c"softcap"),
            window: info.int(c"window").and_then(|window| u32::try_from(window).ok()),
            sinks: info.floats(c"sinks")?,
            alibi_slopes: info.floats(c"alibi_slopes")?,
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

fn none() -> Refusal {
    no_step(OPERATOR)
}

pub(super) fn wrong(reason: String) -> Refusal {
    refused(OPERATOR, reason)
}

/// The name of the operator.
const OPERATOR: &str = "Attention";

/// One call of a kernel.
pub(super) struct KernelCall<'a> {
    pub kernel: &'a Kernel,
    pub context: *mut KernelContext,
}

impl KernelCall<'_> {
    fn call(&self) -> Call {
        Call { library: self.kernel.shared.library, context: self.context, operator: OPERATOR }
    }

    pub fn compute(&self) -> Outcome<()> {
        let kernel = self.kernel;
        let q = self.input(0)?;
        let tokens = self.tokens(&q)?;
        let out = self.output(tokens)?;
        let mut state = kernel.shared.state();
        if kernel.crossed {
            return self.compute_crossed(&mut state, &q, tokens, out);
        }
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

    /// Attends to the encodings of the step.
    fn compute_crossed(&self, state: &mut State, q: &Input<'_>, tokens: usize, out: &mut [u8]) -> Outcome<()> {
        let Kernel { heads, dim, value_dim, dtype, .. } = *self.kernel;
        let State { encodings, turned: [queries, rows], .. } = state;
        if !self.is_turned(tokens) {
            return self.attend_encoded(encodings, q.bytes, out);
        }
        let (queries, rows) = (room(queries, q.bytes.len())?, room(rows, out.len())?);
        turn(q.bytes, queries, [heads, tokens, dim * dtype.bytes()]);
        self.attend_encoded(encodings, queries, rows)?;
        turn(rows, out, [tokens, heads, value_dim * dtype.bytes()]);
        Ok(())
    }

    /// Attends to encodings with queries in token-first order.
    fn attend_encoded(&self, encodings: &StepEncodings, bytes: &[u8], out: &mut [u8]) -> Outcome<()> {
        let Kernel { dtype, heads, kv_heads, dim, value_dim, layer, .. } = *self.kernel;
        let (threads, call) = (self.kernel.shared.threads, self.call());
        let options = AttendOptions { causal: false, ..self.kernel.options(threads) };
        let queries = CrossedQueries { layer: layer as usize, dtype, heads, kv_heads, dims: [dim, value_dim], bytes };
        let work = || encodings.attend(&queries, &options, out);
        with_host(threads, move |count, job| call.share(count, job), work).map_err(wrong)?
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
        let call = self.call();
        let share = |count, job: &(dyn Fn(usize) + Sync)| call.share(count, job);
        lay(heads, tables, bytemuck::cast_slice_mut(to), self.kernel.shared.threads, share);
        Ok(to)
    }

    /// The tables of the rotary embedding, if the operator rotates.
    fn tables(&self, tokens: usize) -> Outcome<Option<Tables<'_>>> {
        let Some(dims) = self.kernel.rotary_dim else { return Ok(None) };
        let [cos, sin] = [self.input(COSINES)?, self.input(SINES)?].map(|table| table.floats());
        let positions = self.call().input(POSITIONS, 8)?.map(|input| bytemuck::cast_slice(input.bytes));
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
        let call = self.call();
        Ok(with_host(kernel.shared.threads, move |count, job| call.share(count, job), work)?)
    }

    fn input<'b>(&self, index: usize) -> Outcome<Input<'b>> {
        let missing = || wrong(format!("its input {index} is missing"));
        self.call().input(index, self.kernel.dtype.bytes())?.ok_or_else(missing)
    }

    /// Allocates the output and returns its memory.
    fn output<'b>(&self, tokens: usize) -> Outcome<&'b mut [u8]> {
        let kernel = self.kernel;
        let [batch, tokens, heads, dim] = [1, tokens, kernel.heads, kernel.value_dim].map(|size| size as i64);
        let heads_first = [batch, heads, tokens, dim];
        let packed = [batch, tokens, heads * dim];
        let dims: &[i64] = if kernel.heads_first { &heads_first } else { &packed };
        self.call().output(dims, kernel.dtype.bytes())
    }
}
