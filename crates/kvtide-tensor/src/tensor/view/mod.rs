//! Views: tensors in the cache's own memory, with a check that the shown slots were not overwritten.
//!
//! A view keeps its buffer alive. Reading it fails with `STALE_VIEW` if a slot that it shows was written after the view was
//! made. It has one run of slots, or two (sinks and window) that read as one sequence.
//!
//! The window of its cache is kept by every narrowed view that still has the sequence axis: it says how far queries attend,
//! and which positions the cache has dropped. Copies have no window, they are plain tensors. Narrowing a view does not count
//! as dropping: `gone` stays the range that the cache has dropped.
//!
//! ```text
//! positions   [ sinks ) gone [ shown ............ )
//! ```

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use kvtide_core::paged::Window;
use kvtide_core::{Run, Runs, Stamp, counted};

use crate::base::dims::Dims;
use crate::base::dtype::{DType, tensor_dtype};
use crate::base::error::{Error, Result};
use crate::base::life::Pin;
use crate::base::memory::Budget;
use crate::base::region::{Place, Region};
use crate::device::form::Form;
use crate::kernels::copy;
use crate::kernels::portable::{HostOrTensor, put};
use crate::tensor::buffer::{Buffer, RowShape};
use crate::tensor::host::HostTensor;

mod read;

/// A tensor in a cache's memory, or in memory of its own. Cheap to clone.
#[derive(Clone, Debug)]
pub struct View {
    pub(crate) buffer: Arc<Buffer>,
    region: Region,
    /// The axis along which `runs` are read; `None` once a reshape has changed the axes.
    sequence: Option<usize>,
    runs: Runs,
    positions: [u64; 2],
    /// The moment at which it was made; `None` if it is never stale.
    stamp: Option<Stamp>,
    /// The window of its cache, if any.
    window: Option<CacheWindow>,
    /// The positions that its cache has dropped.
    gone: [u64; 2],
    /// A pin that keeps its cache from changing, and lets the view be read after the cache was disposed of.
    pin: Option<Arc<Pin>>,
}

/// K and V.
#[derive(Clone, Debug)]
pub struct Kv {
    /// The keys.
    pub k: View,
    /// The values.
    pub v: View,
}

impl From<[View; 2]> for Kv {
    #[inline]
    fn from([k, v]: [View; 2]) -> Self {
        Kv { k, v }
    }
}

/// The window of the cache that a view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheWindow {
    /// The number of positions that a query attends to, including its own, and the number of sinks.
    pub window: Window,
    /// True if the last tokens belong to a draft with parents. The view then shows everything that the cache keeps, and each
    /// node's depth determines which tokens it attends to.
    pub is_tree: bool,
}

/// Neighbouring slots of a view, as a box of bytes.
pub(crate) struct ViewBox {
    /// The index in the view of its first token.
    pub token: usize,
    pub dims: Dims,
    pub place: Place,
}

impl View {
    /// The slots `runs` of one part of a buffer; the last token is at position `end - 1`.
    pub(crate) fn of(buffer: Arc<Buffer>, part: usize, runs: Runs, end: u64, stamp: Option<Stamp>) -> Self {
        let axis = buffer.shape.axis;
        let mut region = Region::whole(part * buffer.part_elements, buffer.part);
        region.dims[axis] = runs.len() as usize;
        let [head, tail] = runs.parts();
        let last = if tail.is_empty() { head.len } else { tail.len };
        let first = if tail.is_empty() { end - u64::from(last) } else { 0 };
        let positions = [first, end - u64::from(last)];
        let gone = if tail.is_empty() { [0, first] } else { [head.len.into(), positions[1]] };
        View { region, sequence: Some(axis), runs, positions, stamp, window: None, gone, pin: None, buffer }
    }

    /// A copy of a host tensor, in memory of its own.
    pub fn from_host(host: &HostTensor<'_>, budget: &Arc<Budget>) -> Result<Self> {
        host.check_batched("data")?;
        let dims = host.dims();
        let view = View::zeros(dims, host.dtype(), budget)?;
        let from = Place { offset: 0, strides: host.byte_strides() };
        upload(HostOrTensor::Host { bytes: host.bytes(), dims, dtype: host.dtype(), from }, &view.buffer)?;
        Ok(view)
    }

    /// Copies its elements from host memory, in order. Only for a view that owns its memory.
    pub(crate) fn fill(&self, bytes: &[u8]) -> Result<()> {
        let (dims, dtype) = (self.dims(), self.dtype());
        let from = Place { offset: 0, strides: dims.contiguous_strides().scaled(dtype.bytes()) };
        upload(HostOrTensor::Host { bytes, dims, dtype, from }, &self.buffer)
    }

    /// A copy of a tensor, in memory of its own on the same device. Counted in `budget` if that is for the same device.
    pub(crate) fn from_tensor(tensor: &Tensor, budget: &Arc<Budget>) -> Result<Self> {
        let dtype = tensor_dtype("tensor", tensor)?;
        let budget = Budget::within(tensor.device(), Some(budget), None);
        let view = View::zeros(Dims::new("tensor", tensor.dims())?, dtype, &budget)?;
        upload(HostOrTensor::Tensor(tensor.clone()), &view.buffer)?;
        Ok(view)
    }

    /// The tensor of its buffer.
    pub(crate) fn memory(&self) -> &Tensor {
        &self.buffer.tensor
    }

    /// Zeros in memory of their own.
    pub(crate) fn zeros(dims: Dims, dtype: DType, budget: &Arc<Budget>) -> Result<Self> {
        View::alone(dims, dtype, budget, |shape| Buffer::new(shape, 1, budget, None))
    }

    /// Like [`View::zeros`], for memory that a launch writes completely before it is read.
    pub(crate) fn unwritten(dims: Dims, dtype: DType, budget: &Arc<Budget>) -> Result<Self> {
        View::alone(dims, dtype, budget, |shape| Buffer::unwritten(shape, 1, budget))
    }

    /// Like [`View::zeros`], for a copy that a cache hands out: counted as held, and not by the cache's own limit.
    pub(crate) fn given(dims: Dims, dtype: DType, budget: &Arc<Budget>) -> Result<Self> {
        View::alone(dims, dtype, budget, |shape| Buffer::given(shape, 1, budget))
    }

    fn alone(
        dims: Dims,
        dtype: DType,
        budget: &Arc<Budget>,
        take: impl FnOnce(RowShape) -> Result<Buffer>,
    ) -> Result<Self> {
        let elements = dims.elements().ok_or_else(|| budget.refusal(u64::MAX))?;
        let buffer = Arc::new(take(RowShape { parts: 1, dims: Dims::new("shape", &[1, elements])?, axis: 0, dtype })?);
        let region = Region::whole(0, dims);
        Ok(View {
            buffer,
            region,
            sequence: None,
            runs: Runs::one(Run::new(0, 1)),
            positions: [0; 2],
            stamp: None,
            window: None,
            gone: [0; 2],
            pin: None,
        })
    }

    /// A view of all of its memory, which is a copy of a sequence's tokens along `axis` before and after `gap`.
    pub(crate) fn with_gap(self, axis: usize, gap: Range<u32>) -> View {
        let tokens = self.region.dims[axis] as u32;
        let (head, behind) = if gap.is_empty() { (0, 0) } else { (gap.start, gap.end) };
        let runs = Runs::two(Run::new(0, head), Run::new(head, tokens - head));
        let first = if head > 0 { 0 } else { behind.into() };
        let gone = [head.into(), behind.into()];
        View { sequence: Some(axis), runs, positions: [first, behind.into()], gone, ..self }
    }

    /// The same view with a batch axis of size 1 in front; the view must show all of its memory.
    pub(crate) fn batched(self) -> Result<View> {
        let dims: Vec<usize> = std::iter::once(1).chain(self.region.dims.iter().copied()).collect();
        Ok(View { region: self.region.reshaped(Dims::new("shape", &dims)?), ..self })
    }

    /// Its shape.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.region.dims
    }

    pub(crate) fn dims(&self) -> Dims {
        self.region.dims
    }

    /// The device of its memory.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.buffer.tensor.device()
    }

    /// Its element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.buffer.shape.dtype
    }

    /// The distance from one index to the next in elements, for each axis, within a run.
    #[must_use]
    pub fn strides(&self) -> Vec<usize> {
        self.region.strides().to_vec()
    }

    /// The axis of the sequence; `None` if a reshape has changed the axes.
    #[must_use]
    pub fn sequence_axis(&self) -> Option<usize> {
        self.sequence
    }

    /// The slots that it shows.
    #[must_use]
    pub fn runs(&self) -> Runs {
        self.runs
    }

    /// The position of the first token of each run.
    #[must_use]
    pub fn key_positions(&self) -> &[u64] {
        &self.positions[..self.runs.iter().count().max(1)]
    }

    /// The position of the next token: the end of the positions that the cache has dropped. For a view without tokens after
    /// a gap.
    pub(crate) fn next_position(&self) -> u64 {
        self.positions[1]
    }

    /// The number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.region.dims.iter().product()
    }

    /// Bytes of all elements.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype().bytes()
    }

    /// True if its elements are contiguous in memory, in order.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.runs.single().is_some() && self.region.is_contiguous()
    }

    /// True if a slot that it shows was written after it was made.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.stamp.is_some_and(|stamp| self.buffer.written_since(stamp, &self.runs))
    }

    /// Fails if it can no longer be read.
    pub fn check(&self) -> Result<()> {
        if self.pin.is_none() && self.buffer.is_closed() {
            return Err(Error::Disposed { object: "cache of this view" });
        }
        if self.is_stale() {
            return Err(Error::StaleView);
        }
        Ok(())
    }

    /// The same view, for background calls: until it and its clones are dropped, calls that would change its cache fail with
    /// `BUSY`, and it can be read even if the cache was disposed of.
    pub fn pinned(&self) -> Result<View> {
        let pinned = View { pin: self.buffer.pin(), ..self.clone() };
        // Checked after the pin, when nothing can change any more.
        self.check()?;
        Ok(pinned)
    }

    /// True if the `bytes` bytes at `memory` are in the same allocation, so that a copy between the two would overlap.
    #[must_use]
    pub fn overlaps(&self, memory: *const u8, bytes: usize) -> bool {
        self.buffer.overlaps(memory, bytes)
    }

    /// Its runs as boxes of bytes.
    pub(crate) fn boxes(&self) -> impl Iterator<Item = ViewBox> + '_ {
        let (dims, place) = (self.region.dims, self.region.place(self.dtype().bytes()));
        let whole = self.sequence.is_none().then_some(ViewBox { token: 0, dims, place });
        let mut token = 0;
        let runs = self.sequence.into_iter().flat_map(|axis| self.runs.iter().map(move |run| (axis, run)));
        whole.into_iter().chain(runs.map(move |(axis, run)| {
            let offset = place.offset + run.start as usize * place.strides[axis];
            let len = run.len as usize;
            let run = ViewBox { token, dims: dims.with(axis, len), place: Place { offset, ..place } };
            token += len;
            run
        }))
    }

    /// Its runs as tensors in its buffer.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = Result<Tensor>> + '_ {
        let whole = self.sequence.is_none().then_some(self.region);
        let runs = self.sequence.into_iter().flat_map(|axis| self.runs.iter().map(move |run| (axis, run)));
        let runs = runs.map(|(axis, run)| self.region.narrow(axis, run.start as usize, run.len as usize));
        whole.into_iter().chain(runs).map(|region| Ok(region.tensor(&self.buffer.tensor)?))
    }

    /// The region of its elements, starting at its only run.
    fn anchored(&self) -> Region {
        match (self.sequence, self.runs.single()) {
            (Some(axis), Some(run)) => self.region.narrow(axis, run.start as usize, run.len as usize),
            _ => self.region,
        }
    }

    /// The window of the cache that it shows; `None` for a copy, and for a view whose axes were changed.
    #[must_use]
    pub fn window(&self) -> Option<CacheWindow> {
        self.window.filter(|_| self.sequence.is_some())
    }

    /// The positions after the sinks that its cache has dropped.
    pub(crate) fn gone(&self) -> Range<u64> {
        if self.sequence.is_some() { self.gone[0]..self.gone[1] } else { 0..0 }
    }

    /// Sets the window of its cache.
    pub(crate) fn in_window(self, window: Option<CacheWindow>) -> View {
        View { window, ..self }
    }

    /// The part `start .. start + len` along `axis`, without a copy.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<View> {
        let dims = self.region.dims;
        let Some(&size) = dims.get(axis) else {
            return Err(Error::argument("dim", axis, format!("below {}, the number of dimensions", dims.len())));
        };
        if start > size {
            return Err(Error::argument("start", start, format!("at most {size}, the size of dimension {axis}")));
        }
        if len > size - start {
            return Err(Error::argument("length", len, format!("at most {} from {start} on", size - start)));
        }
        let mut view = self.clone();
        if self.sequence == Some(axis) {
            let head = self.runs.iter().next().map_or(0, |run| run.len as usize);
            view.runs = self.runs.slice(start as u32, len as u32);
            view.positions = if start < head {
                // If the part ends within the first run, the next position is at its end; otherwise at the end of the second
                // run.
                let is_cut = start + len < size && start + len <= head;
                let next = if is_cut { self.positions[0] + (start + len) as u64 } else { self.positions[1] };
                [self.positions[0] + start as u64, next]
            } else {
                [self.positions[1] + (start - head) as u64; 2]
            };
            view.region.dims[axis] = len;
        } else {
            view.region = self.region.narrow(axis, start, len);
        }
        Ok(view)
    }

    /// The same elements in another shape: without a copy if they are contiguous, else in memory of its own.
    pub fn reshape(&self, shape: &[usize], budget: &Arc<Budget>) -> Result<View> {
        let dims = Dims::shape("shape", shape)?;
        if dims.elements() != Some(self.elements()) {
            let expected = format!("{}, the number in {:?}", counted(self.elements() as u64, "element"), self.shape());
            return Err(Error::ShapeMismatch { argument: "shape", value: shape.to_vec(), expected });
        }
        if !self.is_contiguous() {
            return self.copied(budget)?.reshape(shape, budget);
        }
        let region = self.anchored().reshaped(dims);
        Ok(View { region, sequence: None, ..self.clone() })
    }
}

impl Kv {
    /// Sets the window of its cache.
    pub(crate) fn in_window(self, window: Option<CacheWindow>) -> Kv {
        Kv { k: self.k.in_window(window), v: self.v.in_window(window) }
    }
}

/// Copies tokens to the only slot of `target`, contiguously.
fn upload(tokens: HostOrTensor<'_>, target: &Buffer) -> Result<()> {
    match (target.form()?, &tokens) {
        (Form::Bytes(_), HostOrTensor::Host { bytes, dims, dtype, from }) => {
            let to = Place { offset: 0, strides: dims.contiguous_strides().scaled(dtype.bytes()) };
            target.edit(&[], |target, _| copy(dims, dtype.bytes(), target, to, bytes, *from))
        }
        _ => match target.row_tensor()? {
            Some(tensor) => put(&tensor, 0, 0, &tokens),
            None => Ok(()),
        },
    }
}
