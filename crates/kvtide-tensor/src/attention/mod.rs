//! Attention over a cache, in place: no gathered copy of keys and values, no matrix of scores.
//!
//! ```text
//! call    the checked arguments                            nothing is read before everything fits
//! split   units: some queries, some KV heads, a share of the keys
//! unit    tile by tile, with a running softmax             the only code that computes
//! output  rows divided by their sums, in the queries' dtype
//! exact   rows that are not finite, recomputed in 64-bit floats
//! ```
//!
//! Several queries of a sequence, and all query heads that share a KV head, read each key and value once. Sequences that
//! begin with the same pages share a *stem*, which is read once for all of them (`stem.rs`). A result depends on the call
//! alone, never on the number of threads.
//!
//! - Memory order. In a tensor, all rows of a head are together, and a unit is one head. In a page, all heads are together,
//!   and a unit of few queries has as many heads as keep its rows to 64. It reads K of a page in ascending order, all heads,
//!   then K of the next page; at the end of the tile V in the same way. Keys and values are prefetched 16 KiB ahead, which
//!   at the end of a page is the start of the next page.
//! - Tiles. A tile has up to 128 keys, divided into *segments* with equidistant rows: a piece of a tensor, or a page. A
//!   scale that belongs to a row is applied to scores and weights, a scale that belongs to a channel is folded into the
//!   queries; so codes become floats in registers. For many query rows, a segment is widened once instead.
//! - Rules are ranges of keys (`call/asked.rs`). Positions grow with the index, so the first and last key of a tile decide
//!   about the whole tile, and only tiles at an edge are checked key by key. A value that a row does not attend to is never
//!   read for it, whatever it is.
//! - Trees (`Family`) belong to sequences: the last keys are nodes, and the queries are the last of these, or more than the
//!   nodes. The pages of a paged cache and the layers of a step provide the drafted tokens of open transactions and of the
//!   step, unless they form a chain.
//! - Threads. Sizes alone determine how a call is divided. The shares of one row use at most 1 MiB and are merged in order.
//!   The same call gives the same bits on any number of threads.
//! - Implementations. The algorithms of `kernels/tile` are written once over `Lanes` (`kernels/simd`), and inlined into
//!   entry functions that have their instructions enabled. `portable.rs` does the same with candle's operations and serves
//!   as a reference; another reference, in 64-bit floats, is in the tests.
//! - Background calls. JavaScript's memory is copied first, and caches are pinned: they refuse changes with `BUSY`.

mod bytes;
mod call;
mod exact;
mod launched;
mod merge;
mod output;
mod own_page;
mod portable;
mod stem;
#[cfg(all(test, feature = "emulate"))]
mod tables_once;

pub use call::kv_rows::KvRows;
pub use call::options::{AttendOptions, Attended};
pub use merge::{AttendedPart, merge_attention};

use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::threads::threads;
use crate::base::zeroed::{zeroed_bytes, zeroed_vec};
use crate::device::edit::inspect_all;
use crate::device::form::Form;
use crate::kernels::tile::TileKernels;
use crate::tensor::host::HostTensor;
use crate::tensor::source::Source;
use crate::tensor::view::View;
use call::Call;
use output::Output;

/// The memory that the result of a call needs.
#[derive(Clone, Debug)]
pub struct Room {
    /// The shape of the output.
    pub shape: Vec<usize>,
    /// Its element type.
    pub dtype: DType,
    /// The number of sums, one for each query and head; 0 if the options do not ask for them.
    pub sums: usize,
}

impl Room {
    fn of(call: &Call<'_>, with_lse: bool) -> Room {
        Room { shape: call.out_shape(), dtype: call.dtype(), sums: if with_lse { call.rows_out() } else { 0 } }
    }

    /// Fails unless the given memory has these sizes.
    pub(crate) fn check(&self, out: &[u8], lse: &[f32]) -> Result<()> {
        let elements = self.shape.iter().product::<usize>();
        if out.len() != elements * self.dtype.bytes() {
            let expected = format!("{elements} {} elements for {:?}", self.dtype, self.shape);
            let value = vec![out.len() / self.dtype.bytes()];
            return Err(Error::ShapeMismatch { argument: "out", value, expected });
        }
        if lse.len() != self.sums {
            let expected = match self.sums {
                0 => "0: lse is not requested, or there is no query".to_owned(),
                sums => format!("{sums}, one for each query and head"),
            };
            return Err(Error::ShapeMismatch { argument: "lse", value: vec![lse.len()], expected });
        }
        Ok(())
    }
}

/// Attends from `q`, `[batch, heads, n, dim]` or `[tokens, heads, dim]`, to keys and values in place.
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

/// Like [`attend`], for queries on a device with kernels, where the result stays; `None` for other calls.
fn stay(call: &Call<'_>, q: &Source<'_>, kv: &KvRows<'_>, with_lse: bool) -> Result<Option<Attended>> {
    if matches!(q, Source::Host(_)) || call.out_shape().contains(&0) {
        return Ok(None);
    }
    let Form::Launched(stream) = Form::of(call.device())? else { return Ok(None) };
    let budget = Budget::of(call.device());
    let out = View::unwritten(Dims::new("out", &call.out_shape())?, call.dtype(), &budget)?;
    let sums = if with_lse { call.rows_out() } else { 0 };
    let mut lse = zeroed_vec(sums).ok_or_else(|| Budget::process().refusal(4 * sums as u64))?;
    let done = launched::run_onto(&stream, call, kv, out.memory(), &mut lse)?;
    Ok(done.then_some(Attended { out, lse }))
}

/// Like [`attend`], into the caller's memory: the output's elements in the queries' dtype, and one number for each query and
/// head if the options ask for them.
pub fn attend_into<'a>(
    q: impl Into<Source<'a>>,
    kv: impl Into<KvRows<'a>>,
    options: &'a AttendOptions<'a>,
    out: &mut [u8],
    lse: &mut [f32],
) -> Result<()> {
    attend_with(q, kv, options, |_| Ok((out, lse)))
}

/// Like [`attend_into`], into memory that `take` returns once everything else is known to fit.
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
    if let Form::Launched(stream) = &form
        && launched::run(stream, call, kv, &mut output)?
    {
        return Ok(());
    }
    let Some(kernels) = TileKernels::of(&form) else {
        kv.check()?;
        portable::run(&call.asked, q, kv, call.device(), &mut output)?;
        exact::redo(&call.asked, q, kv, &mut output, 1)?;
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
    exact::redo(&call.asked, q, kv, &mut output, threads)?;
    // The memory was unlocked in between.
    kv.check()
}
