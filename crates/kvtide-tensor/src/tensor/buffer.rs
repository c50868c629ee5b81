//! One allocation of token rows, the log of writes to it, and the rows that snapshots keep of it.
//!
//! ```text
//! [parts (k, v)] [dims before the sequence] [slots] [dims after it]
//! ```
//!
//! A snapshot is the buffer, the slots that it shows, and the rows that were saved before they were overwritten:
//!
//! ```text
//! buffer   0 1 2 3 4 5 6 7        the snapshot shows 0..8; the cache was truncated to 5 and appends two tokens:
//!          0 1 2 3 4 x y 7        rows 5 and 6 were saved first, for every snapshot that still reads them here
//! patches            5 6
//! ```
//!
//! Taking a snapshot is O(1). A slot is read from the first patch that has it, else from the buffer.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use candle_core::Tensor;
use kvtide_core::{Run, Runs, Stamp, WriteLog};
use kvtide_cuda::Span;

use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::life::{Life, Pin};
use crate::base::lock::lock;
use crate::base::memory::{Budget, Lease};
use crate::base::region::Place;
use crate::device::edit::{edit, first_byte, identity, inspect, launch};
use crate::device::form::{Form, is_seen};
use crate::device::memory::{unwritten, zeroed};
use crate::kernels::Stretches;
use crate::kernels::portable::RowTensor;

/// The shape of a buffer, except for its number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowShape {
    /// 1, or 2 for K and V.
    pub parts: usize,
    /// The dims of one part; the size at `axis` is ignored.
    pub dims: Dims,
    /// The axis of the sequence.
    pub axis: usize,
    /// The element type.
    pub dtype: DType,
}

impl RowShape {
    /// The dims of one part with this many slots.
    pub fn part(&self, slots: u32) -> Dims {
        self.dims.with(self.axis, slots as usize)
    }

    /// The elements of one part with this many slots. The caller has checked a buffer of that size for overflow.
    pub fn part_elements(&self, slots: u32) -> usize {
        self.part(slots).iter().product()
    }

    /// Bytes of one token in one stretch of neighbouring slots.
    pub fn row_bytes(&self) -> usize {
        self.dims[self.axis + 1..].iter().product::<usize>() * self.dtype.bytes()
    }

    /// The place of the slots from `slot` on, in a buffer of `slots` slots.
    pub fn place(&self, part: usize, slots: u32, slot: u32) -> Place {
        let strides = self.part(slots).contiguous_strides().scaled(self.dtype.bytes());
        let part_bytes = self.part_elements(slots) * self.dtype.bytes();
        Place { offset: part * part_bytes + slot as usize * strides[self.axis], strides }
    }
}

/// A tensor of token rows.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub tensor: Tensor,
    /// A tensor of one element in the same memory. candle checks the layout of a tensor at each in-place change, and one
    /// element is the cheapest to check. An edit reaches the whole storage through it.
    door: Tensor,
    pub shape: RowShape,
    pub slots: u32,
    /// A process-wide unique number.
    pub id: u64,
    /// The shape of one part.
    pub part: Dims,
    /// The elements of one part.
    pub part_elements: usize,
    /// The host address; 0 if the host cannot address it.
    address: usize,
    identity: usize,
    /// The number of stretches of neighbouring slots in one part.
    stretches: usize,
    /// Bytes of one token in one stretch.
    row_bytes: usize,
    lease: Lease,
    log: Mutex<WriteLog>,
    snapshots: Mutex<Vec<Weak<Held>>>,
    /// All registered snapshots show only slots below this one. Only a caller with the right to write registers a snapshot,
    /// so reading this number is enough before a write behind it.
    shown_end: AtomicU32,
    /// The shared state of the cache that owns it.
    life: Option<Arc<Life>>,
}

static BUFFERS: AtomicU64 = AtomicU64::new(0);

impl Buffer {
    /// Allocates zeroed memory for `slots` tokens.
    pub fn new(shape: RowShape, slots: u32, budget: &Arc<Budget>, life: Option<Arc<Life>>) -> Result<Self> {
        Buffer::taking(shape, slots, budget, life, Budget::take, zeroed)
    }

    /// Allocates memory that a launch writes completely before it is read.
    pub fn unwritten(shape: RowShape, slots: u32, budget: &Arc<Budget>) -> Result<Self> {
        Buffer::taking(shape, slots, budget, None, Budget::take, unwritten)
    }

    /// Like [`Buffer::new`], for a copy that the cache hands out and does not keep.
    pub fn given(shape: RowShape, slots: u32, budget: &Arc<Budget>) -> Result<Self> {
        Buffer::taking(shape, slots, budget, None, Budget::take_given, zeroed)
    }

    fn taking(
        shape: RowShape,
        slots: u32,
        budget: &Arc<Budget>,
        life: Option<Arc<Life>>,
        take: impl FnOnce(&Arc<Budget>, u64) -> Result<Lease>,
        memory: impl FnOnce(DType, &[usize], &Budget) -> Result<Tensor>,
    ) -> Result<Self> {
        let dims = shape.part(slots);
        let elements = dims.elements().and_then(|elements| elements.checked_mul(shape.parts));
        let bytes = elements.and_then(|elements| elements.checked_mul(shape.dtype.bytes()));
        let (Some(elements), Some(bytes)) = (elements, bytes.filter(|&bytes| isize::try_from(bytes).is_ok())) else {
            return Err(budget.refusal(u64::MAX));
        };
        let lease = take(budget, bytes as u64)?;
        let full = if shape.parts == 1 { dims.to_vec() } else { [&[shape.parts], &dims[..]].concat() };
        let tensor = memory(shape.dtype, &full, budget)?;
        Ok(Buffer {
            address: if is_seen(tensor.device()) { first_byte(&tensor)?.addr() } else { 0 },
            identity: identity(&tensor),
            door: tensor.flatten_all()?.narrow(0, 0, elements.min(1))?,
            tensor,
            part: dims,
            part_elements: elements / shape.parts,
            stretches: shape.dims[..shape.axis].iter().product(),
            row_bytes: shape.row_bytes(),
            shape,
            slots,
            id: BUFFERS.fetch_add(1, Ordering::Relaxed),
            lease,
            log: Mutex::default(),
            snapshots: Mutex::default(),
            shown_end: AtomicU32::new(0),
            life,
        })
    }

    /// Bytes of the allocation.
    pub fn bytes(&self) -> u64 {
        self.lease.bytes()
    }

    /// Sets whether only views and snapshots keep it.
    pub fn set_held(&self, held: bool) {
        self.lease.set_held(held);
    }

    /// Sets whether only views keep it, so that the cache's own limit does not count it.
    pub fn set_spared(&self, spared: bool) {
        self.lease.set_spared(spared);
    }

    /// True if it belongs to no cache: it is the result of a prefill that is larger than any buffer of the cache.
    pub fn stands_alone(&self) -> bool {
        self.life.is_none()
    }

    /// True if the cache that owns it was disposed of.
    pub fn is_closed(&self) -> bool {
        self.life.as_ref().is_some_and(|life| life.is_closed())
    }

    /// True if it belongs to the cache with this life.
    pub fn is_of(&self, life: &Arc<Life>) -> bool {
        self.life.as_ref().is_some_and(|own| Arc::ptr_eq(own, life))
    }

    /// Makes the owning cache refuse changes until the pin is dropped; `None` if no cache owns it.
    pub fn pin(&self) -> Option<Arc<Pin>> {
        self.life.as_ref().map(Pin::new)
    }

    /// True if `tensor` is in this buffer's memory.
    pub fn shares_storage(&self, tensor: &Tensor) -> bool {
        identity(tensor) == self.identity
    }

    /// True if the `bytes` bytes at `memory` overlap this buffer.
    pub fn overlaps(&self, memory: *const u8, bytes: usize) -> bool {
        let (start, end) = (self.address, self.address + self.bytes() as usize);
        self.address > 0 && bytes > 0 && memory.addr() < end && memory.addr() + bytes > start
    }

    /// The place of `part` from `slot` on.
    pub fn place(&self, part: usize, slot: u32) -> Place {
        self.shape.place(part, self.slots, slot)
    }

    /// Bytes of one token in one stretch.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes of this many tokens, over all stretches of all parts.
    pub fn bytes_of(&self, tokens: u32) -> u64 {
        (self.all_stretches() * self.row_bytes) as u64 * u64::from(tokens)
    }

    /// The number of stretches of neighbouring slots in one part.
    pub fn stretch_count(&self) -> usize {
        self.stretches
    }

    /// The rows from `slot` on in the stretches of `part`; the next part's follow at the same distance.
    pub fn stretches(&self, part: usize, slot: u32) -> Stretches {
        let stride = self.slots as usize * self.row_bytes;
        Stretches { offset: part * self.stretches * stride + slot as usize * self.row_bytes, stride }
    }

    /// The number of stretches of all parts.
    pub fn all_stretches(&self) -> usize {
        self.shape.parts * self.stretches
    }

    /// The buffer as a tensor of rows: the stretches of all parts one after the other; `None` if it is empty.
    pub fn row_tensor(&self) -> Result<Option<RowTensor>> {
        RowTensor::new(&self.tensor, self.all_stretches())
    }

    /// The current moment in its write log.
    pub fn stamp(&self) -> Stamp {
        lock(&self.log).stamp()
    }

    /// Logs that slots are about to be written, and returns the moment after that.
    pub fn record(&self, run: Run) -> Stamp {
        let mut log = lock(&self.log);
        log.record(run);
        log.stamp()
    }

    /// True if one of these slots was written after `stamp`.
    pub fn written_since(&self, stamp: Stamp, runs: &Runs) -> bool {
        let log = lock(&self.log);
        runs.iter().any(|run| log.written_since(stamp, run))
    }

    /// Returns the slots of `run` that were written after `stamp`, in ascending order.
    pub fn written(&self, stamp: Stamp, run: Run) -> Vec<Run> {
        lock(&self.log).written(stamp, run)
    }

    /// Registers a snapshot, so that its rows are saved before they are overwritten.
    pub fn register(&self, held: &Arc<Held>) {
        let mut snapshots = lock(&self.snapshots);
        if snapshots.len() == snapshots.capacity() {
            snapshots.retain(|known| known.strong_count() > 0);
        }
        snapshots.push(Arc::downgrade(held));
        self.shown_end.fetch_max(held.runs.end(), Ordering::Release);
    }

    /// The live snapshots that show a slot of `run`, or all live ones if `run` is `None`.
    pub fn snapshots(&self, run: Option<Run>) -> Vec<Arc<Held>> {
        if run.is_some_and(|run| run.start >= self.shown_end.load(Ordering::Acquire)) {
            return Vec::new();
        }
        let mut snapshots = lock(&self.snapshots);
        snapshots.retain(|known| known.strong_count() > 0);
        let living: Vec<_> = snapshots.iter().filter_map(Weak::upgrade).collect();
        self.shown_end.store(living.iter().map(|held| held.runs.end()).max().unwrap_or(0), Ordering::Release);
        let shows =
            |held: &Arc<Held>| run.is_none_or(|run| held.runs.iter().any(|shown| !shown.overlap(run).is_empty()));
        living.into_iter().filter(shows).collect()
    }

    /// Runs `work` on its bytes and those of `sources`, which must not overlap it.
    pub fn edit(&self, sources: &[&Tensor], work: impl Fn(&mut [u8], &[&[u8]])) -> Result<()> {
        edit(&self.door, sources, work)
    }

    /// Runs `work`, which launches kernels, on its memory and that of `sources`, which must not overlap it.
    pub fn launch(&self, sources: &[&Tensor], work: impl Fn(Span<'_>, &[Span<'_>]) -> Result<()>) -> Result<()> {
        launch(&self.door, sources, work)
    }

    /// The way that operations on it run.
    pub fn form(&self) -> Result<Form> {
        Form::of(self.tensor.device())
    }

    /// Runs `work` on its bytes.
    pub fn inspect<T>(&self, work: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        inspect(&self.tensor, work)
    }
}

/// Rows that were saved before they were overwritten.
#[derive(Debug)]
pub(crate) struct Patch {
    pub run: Run,
    pub rows: Buffer,
}

/// A snapshot's rows.
#[derive(Debug)]
pub(crate) struct Held {
    pub buffer: Arc<Buffer>,
    pub runs: Runs,
    saved: Mutex<Saved>,
}

/// The rows that were saved so far.
#[derive(Debug)]
struct Saved {
    /// The last moment at which the buffer still had all rows of the snapshot.
    whole: Stamp,
    /// Oldest first.
    patches: Vec<Arc<Patch>>,
    /// The slots that the patches have, ascending. Neighbouring runs are joined, so that tokens written one by one make one
    /// run.
    slots: Vec<Run>,
}

impl Saved {
    fn add(&mut self, patch: Arc<Patch>) {
        let run = patch.run;
        let first = self.slots.partition_point(|known| known.end() < run.start);
        let behind = self.slots.partition_point(|known| known.start <= run.end());
        let joined = self.slots[first..behind].iter().fold(run, |joined, &known| hull(joined, known));
        self.slots.splice(first..behind, [joined]);
        self.patches.push(patch);
    }

    /// The smallest run with all slots of `run` that no patch has; empty if there is none.
    fn missing(&self, run: Run) -> Run {
        let around = |slot: u32| {
            let place = self.slots.partition_point(|known| known.end() <= slot);
            self.slots.get(place).copied().filter(|known| known.start <= slot)
        };
        if run.is_empty() {
            return run;
        }
        let start = around(run.start).map_or(run.start, Run::end);
        let end = around(run.end() - 1).map_or(run.end(), |known| known.start);
        Run::new(start, end.saturating_sub(start))
    }
}

/// The smallest run with the slots of both; empty runs are ignored.
fn hull(one: Run, other: Run) -> Run {
    if one.is_empty() || other.is_empty() {
        return if one.is_empty() { other } else { one };
    }
    let start = one.start.min(other.start);
    Run::new(start, one.end().max(other.end()) - start)
}

impl Held {
    /// A snapshot of the current rows of `runs`.
    pub fn new(buffer: Arc<Buffer>, runs: Runs) -> Arc<Self> {
        let saved = Saved { whole: buffer.stamp(), patches: Vec::new(), slots: Vec::new() };
        let held = Arc::new(Held { buffer, runs, saved: Mutex::new(saved) });
        held.buffer.register(&held);
        held
    }

    /// The smallest run with all slots of `run` that are still read from the buffer; empty if there is none.
    pub fn unsaved(&self, run: Run) -> Run {
        let saved = lock(&self.saved);
        self.runs.iter().map(|shown| saved.missing(shown.overlap(run))).fold(Run::default(), hull)
    }

    /// Keeps rows that are about to be overwritten.
    pub fn save(&self, patch: Arc<Patch>) {
        lock(&self.saved).add(patch);
    }

    /// The rows that the buffer no longer has: slots of patches, to be copied back in this order.
    pub fn overwritten(&self) -> Vec<(Arc<Patch>, Run)> {
        let saved = lock(&self.saved);
        let mut found = Vec::new();
        for patch in saved.patches.iter().rev() {
            for shown in self.runs.iter() {
                let written = self.buffer.written(saved.whole, shown.overlap(patch.run));
                found.extend(written.into_iter().map(|run| (patch.clone(), run)));
            }
        }
        found
    }

    /// Notes that the buffer has all rows of the snapshot again.
    pub fn set_whole(&self) {
        lock(&self.saved).whole = self.buffer.stamp();
    }

    /// The patches, oldest first.
    pub fn patches(&self) -> Vec<Arc<Patch>> {
        lock(&self.saved).patches.clone()
    }
}
