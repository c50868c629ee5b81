//! Attention over a cache, where its keys and values lie: no gather, no matrix of scores.
//!
//! ```text
//! call    what was asked, checked                          nothing is read before everything fits
//! split   units: some queries, some heads of K and V, a share of the keys
//! unit    tile by tile, with a running softmax             the only code that computes
//! output  rows divided by their sums, in the queries' dtype
//! exact   rows that are no finite numbers, once more in 64-bit floats
//! ```
//!
//! A captured step has a form of its own (`captured.rs`): lengths and tables are those that the device holds when it is replayed.
//!
//! Several queries of a sequence, and all query heads that share a head of K and V, read each key and value once; sequences that begin
//! with the same pages share a *stem*, which is read once for all of them (`stem.rs`). A result depends on the call alone,
//! never on how many threads there are.
//!
//! - Memory in its order. In a tensor a head has all its rows together, and a unit is one head; a page has all heads together,
//!   and a unit of few queries is as many heads as keep its rows to 64. It reads the K of a page from front to back, all heads,
//!   then that of the next page; at the end of the tile the V alike. Keys and values are asked for 16 KiB ahead of their use, which
//!   at the end of a page is the start of the next.
//! - Tiles. A tile is up to 128 keys, cut in *segments* whose rows lie at one distance: a piece of a tensor, a page. Where a
//!   format's scale belongs to a row it is applied to scores and weights, where it belongs to a channel it is folded into the
//!   queries; so codes become floats in registers. Many query rows over such a segment widen it once instead.
//! - Rules are ranges of keys (`call/asked.rs`): positions grow with the index, so a tile is decided by its first and last key, and
//!   only tiles on an edge are looked at key by key. A value that a row does not see is not read for it, whatever it holds.
//! - Trees (`Family`) belong to sequences: the last keys are nodes, the queries the last of them, or more than there are. The pages of
//!   a paged cache and the layers of a step bring along what is drafted in open transactions and in the step, unless it is a chain.
//! - Threads. How a call is cut depends on its sizes alone; shares of one row are kept in at most 1 MiB and put together in
//!   order. The same call gives the same bits on any number of threads.
//! - Forms. The algorithms of `kernels/tile` are written once over `Lanes` (`kernels/simd`), and inlined into entries that have
//!   their instructions enabled. `portable.rs` is the same in candle's operations, and an oracle of its own; another, in 64-bit
//!   floats, is in the tests.
//! - In the background JavaScript's memory is copied first, and caches are pinned: they refuse changes with `BUSY`.

mod bytes;
mod call;
#[cfg(feature = "captured-steps")]
mod captured;
mod exact;
mod launched;
mod merge;
mod output;
mod portable;
mod stem;
#[cfg(all(test, feature = "emulate"))]
mod tables_once;

pub use call::kv_rows::KvRows;
pub use call::options::{AttendOptions, Attended};
#[cfg(feature = "captured-steps")]
pub(crate) use captured::attend_captured;
pub use merge::{AttendedPart, merge_attention};

use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::threads::threads;
use crate::base::zeroed::{zeroed_bytes, zeroed_vec};
use crate::device::edit::inspect_all;
use crate::device::form::Form;
use crate::device::memory::pass;
use crate::kernels::tile::TileKernels;
use crate::tensor::host::HostTensor;
use crate::tensor::source::Source;
use crate::tensor::view::View;
use call::Call;
use output::Output;

/// What the result of a call needs memory for.
#[derive(Clone, Debug)]
pub struct Room {
    /// The shape of the output.
    pub shape: Vec<usize>,
    /// Its element type.
    pub dtype: DType,
    /// One number for each query and head; 0 where the options do not ask for them.
    pub sums: usize,
}

impl Room {
    fn of(call: &Call<'_>, with_lse: bool) -> Room {
        Room { shape: call.out_shape(), dtype: call.dtype(), sums: if with_lse { call.rows_out() } else { 0 } }
    }

    /// Refuses memory that is not as large.
    pub(crate) fn check(&self, out: &[u8], lse: &[f32]) -> Result<()> {
        let elements = self.shape.iter().product::<usize>();
        if out.len() != elements * self.dtype.bytes() {
            let expected = format!("{elements} {} elements, for {:?}", self.dtype, self.shape);
            let value = vec![out.len() / self.dtype.bytes()];
            return Err(Error::ShapeMismatch { argument: "out", value, expected });
        }
        if lse.len() != self.sums {
            let expected = match self.sums {
                0 => "0: they are not asked for, or there is no query".to_owned(),
                sums => format!("{sums}, one for each query and head"),
            };
            return Err(Error::ShapeMismatch { argument: "lse", value: vec![lse.len()], expected });
        }
        Ok(())
    }
}

/// Attends from `q`, `[batch, heads, n, dim]` or `[tokens, heads, dim]`, to keys and values where they lie.
pub fn attend<'a>(
    q: impl Into<Source<'a>>,
    kv: impl Into<KvRows<'a>>,
    options: &'a AttendOptions<'a>,
) -> Result<Attended> {
    let (q, kv) = (q.into(), kv.into());
    let call = Call::new(&q, &kv, options)?;
    call.check_devices()?;
    if let Some(attended) = stay(&call, &q, &kv, options.lse)? {
        return Ok(attended);
    }
    let room = Room::of(&call, options.lse);
    let mut bytes = zeroed_bytes(room.shape.iter().product::<usize>() * room.dtype.bytes())?;
    let mut lse = zeroed_vec(room.sums).ok_or_else(|| Budget::process().refusal(4 * room.sums as u64))?;
    run(&call, &q, &kv, options, Output::new(room.dtype, &mut bytes, &mut lse))?;
    let out = View::from_host(&HostTensor::new("out", &bytes, room.dtype, &room.shape)?, &Budget::process())?;
    Ok(Attended { out, lse })
}

/// The same where the queries lie on a device with kernels of its own, and its result stays there; nothing for other calls.
fn stay(call: &Call<'_>, q: &Source<'_>, kv: &KvRows<'_>, with_lse: bool) -> Result<Option<Attended>> {
    if matches!(q, Source::Host(_)) || call.out_shape().contains(&0) {
        return Ok(None);
    }
    let Form::Launched(stream) = Form::of(call.device())? else { return Ok(None) };
    let _pass = pass(call.device());
    let budget = Budget::of(call.device());
    let out = View::unwritten(Dims::new("out", &call.out_shape())?, call.dtype(), &budget)?;
    let sums = if with_lse { call.rows_out() } else { 0 };
    let mut lse = zeroed_vec(sums).ok_or_else(|| Budget::process().refusal(4 * sums as u64))?;
    let done = launched::run_onto(&stream, call, kv, out.memory(), &mut lse)?;
    Ok(done.then_some(Attended { out, lse }))
}

/// The same, into the caller's memory: the output's elements in the queries' dtype, and one number for each query and head, where the
/// options ask for them.
pub fn attend_into<'a>(
    q: impl Into<Source<'a>>,
    kv: impl Into<KvRows<'a>>,
    options: &'a AttendOptions<'a>,
    out: &mut [u8],
    lse: &mut [f32],
) -> Result<()> {
    attend_with(q, kv, options, |_| Ok((out, lse)))
}

/// The same, into memory that `take` gives, once everything else is known to fit.
pub fn attend_with<'a, 'o>(
    q: impl Into<Source<'a>>,
    kv: impl Into<KvRows<'a>>,
    options: &'a AttendOptions<'a>,
    take: impl FnOnce(&Room) -> Result<(&'o mut [u8], &'o mut [f32])>,
) -> Result<()> {
    let (q, kv) = (q.into(), kv.into());
    let call = Call::new(&q, &kv, options)?;
    call.check_devices()?;
    let room = Room::of(&call, options.lse);
    let (out, lse) = take(&room)?;
    room.check(out, lse)?;
    run(&call, &q, &kv, options, Output::new(room.dtype, out, lse))
}

fn run(
    call: &Call<'_>,
    q: &Source<'_>,
    kv: &KvRows<'_>,
    options: &AttendOptions<'_>,
    mut output: Output<'_>,
) -> Result<()> {
    let threads = options.threads.unwrap_or(threads()?);
    let form = Form::of(call.device())?;
    // In front of candle's locks and operations.
    let _pass = pass(call.device());
    if let Form::Launched(stream) = &form
        && launched::run(stream, call, kv, &mut output)?
    {
        return Ok(());
    }
    let Some(kernels) = TileKernels::of(&form) else {
        kv.check()?;
        portable::run(&call.asked, q, kv, call.device(), &mut output)?;
        exact::redo(&call.asked, q, kv, &mut output)?;
        return kv.check();
    };
    let tensors = call.tensors();
    let present: Vec<_> = tensors.iter().flatten().copied().collect();
    inspect_all(&present, |memory| {
        kv.check()?;
        bytes::run(call, kernels, memory, &mut output, threads)
    })?;
    if output.suspects.is_empty() {
        return Ok(());
    }
    exact::redo(&call.asked, q, kv, &mut output)?;
    // It has let go of the memory in between.
    kv.check()
}
