//! Logits of a step: rows of floats in native memory, counted in their thread's budget.
//!
//! They never change, so any number of tasks may read them while JavaScript continues. Disposing of them only ends
//! later calls: a running task keeps the memory until it is done. Creating them takes O(rows x vocabulary). All other
//! calls are cheaper; `row` and `fitted` copy one row.

use std::cell::RefCell;
use std::sync::Arc;

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use kvtide_core::Error;
use kvtide_sample::{Peak, Row};
use kvtide_tensor::DType;
use kvtide_tensor::runtime::{Budget, Lease};
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::argument::{ArrayArg, count};
use crate::border::external_array::ExternalArray;
use crate::border::handle::{Handle, budget, guard};
use crate::border::refusal::Outcome;
use crate::border::task::PoolTask;

/// Rows of floats, one float per token of the vocabulary.
pub(crate) struct Logits {
    values: Vec<f32>,
    /// The peak of each row, where one thread computes the logits and another one draws from them; otherwise empty.
    peaks: Vec<Option<Peak>>,
    rows: u32,
    vocab: u32,
    _lease: Lease,
}

impl Logits {
    /// Finds the peak of each row, on the thread that has just written them.
    pub fn with_peaks(mut self) -> Outcome<Self> {
        let bytes = self.rows as usize * size_of::<Option<Peak>>();
        self.peaks.try_reserve_exact(self.rows as usize).map_err(|_| Budget::process().refusal(bytes as u64))?;
        self.peaks.extend(self.values.chunks(self.vocab.max(1) as usize).map(Peak::of));
        Ok(self)
    }

    /// Concatenated rows, whose memory is already counted in the budget of the JavaScript thread that will own them.
    pub fn leased(values: Vec<f32>, rows: u32, vocab: u32, lease: Lease) -> Outcome<Self> {
        let wanted = u64::from(rows) * u64::from(vocab);
        if values.len() as u64 != wanted {
            let expected = format!("{wanted} logits: {rows} rows of {vocab}");
            return Err(Error::argument("logits", values.len() as u64, expected).into());
        }
        Ok(Logits { values, peaks: Vec::new(), rows, vocab, _lease: lease })
    }

    /// Converts the elements of a JavaScript array to floats.
    pub fn read(data: ArrayArg, dtype: &str, rows: u32, vocab: u32, budget: &Arc<Budget>) -> Outcome<Self> {
        let memory = data.memory("data")?;
        let dtype = dtype.parse::<DType>()?;
        let elements = memory.len() / dtype.bytes();
        let lease = budget.take(4 * elements as u64)?;
        let mut values = Vec::new();
        values.try_reserve_exact(elements).map_err(|_| Budget::process().refusal(4 * elements as u64))?;
        match dtype {
            DType::F32 => values.extend_from_slice(data.elements::<f32>("data")?.unwrap_or(&[])),
            DType::F16 | DType::BF16 => {
                values.resize(elements, 0.0);
                let bits = data.elements::<u16>("data")?.unwrap_or(&[]);
                match dtype {
                    DType::F16 => bits.reinterpret_cast::<f16>().convert_to_f32_slice(&mut values),
                    _ => bits.reinterpret_cast::<bf16>().convert_to_f32_slice(&mut values),
                }
            }
            DType::U8 => return Err(Error::argument("dtype", "u8", "f32, f16 or bf16").into()),
        }
        Logits::leased(values, rows, vocab, lease)
    }

    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// The number of tokens in the vocabulary.
    pub fn vocab(&self) -> u32 {
        self.vocab
    }

    /// The logits of a row. Returns an error if there is no such row.
    pub fn row(&self, row: u32) -> Outcome<&[f32]> {
        if row >= self.rows {
            return Err(Error::argument("row", row, format!("a row from 0 to less than {}", self.rows)).into());
        }
        self.rows_from(row, 1)
    }

    /// The logits of a row, with its peak if that is known.
    pub fn known_row(&self, row: u32) -> Outcome<Row<'_>> {
        let peak = self.peaks.get(row as usize).copied().flatten();
        Ok(Row::new(self.row(row)?, peak))
    }

    /// True if the peaks of all rows are known.
    pub fn has_peaks(&self) -> bool {
        self.peaks.len() == self.rows as usize
    }

    /// A number of consecutive rows.
    fn rows_from(&self, first: u32, count: u32) -> Outcome<&[f32]> {
        if u64::from(first) + u64::from(count) > u64::from(self.rows) {
            let expected = format!("rows below {}", self.rows);
            return Err(Error::argument("rows", format!("{count} from {first} on"), expected).into());
        }
        let (first, count, vocab) = (first as usize, count as usize, self.vocab as usize);
        Ok(&self.values[first * vocab..(first + count) * vocab])
    }
}

/// A JavaScript handle of logits.
#[napi]
pub struct NativeLogits {
    logits: RefCell<Handle<Arc<Logits>>>,
}

impl NativeLogits {
    /// Wraps logits that were counted when they were made.
    pub(crate) fn of(logits: Arc<Logits>) -> Self {
        NativeLogits { logits: RefCell::new(Handle::new("logits", logits)) }
    }

    /// The rows, shared with other code.
    pub(crate) fn get(&self) -> Outcome<Arc<Logits>> {
        self.logits.borrow().get().cloned()
    }
}

#[napi]
impl NativeLogits {
    /// Copies `rows` rows of `vocab` elements: 32-bit floats, or the bits of half floats.
    #[napi(constructor)]
    pub fn from_array(env: &Env, data: ArrayArg, dtype: String, rows: f64, vocab: f64) -> Result<Self> {
        guard(env, || {
            let (rows, vocab) = (count("rows", rows)?, count("vocab", vocab)?);
            Ok(NativeLogits::of(Arc::new(Logits::read(data, &dtype, rows, vocab, &budget())?)))
        })
    }

    #[napi]
    pub fn rows(&self, env: &Env) -> Result<f64> {
        self.logits.borrow().read(env, |logits| Ok(logits.rows().into()))
    }

    #[napi]
    pub fn vocab(&self, env: &Env) -> Result<f64> {
        self.logits.borrow().read(env, |logits| Ok(logits.vocab().into()))
    }

    /// Copies one row, with `vocab` elements. A longer row is cut; a shorter one is extended by tokens of probability
    /// zero.
    #[napi]
    pub fn fitted(&self, env: &Env, row: f64, vocab: f64) -> Result<NativeLogits> {
        self.logits.borrow().read(env, |logits| {
            let (found, vocab) = (logits.row(count("row", row)?)?, count("vocab", vocab)?);
            let lease = budget().take(4 * u64::from(vocab))?;
            let mut values = Vec::new();
            values.try_reserve_exact(vocab as usize).map_err(|_| Budget::process().refusal(4 * u64::from(vocab)))?;
            values.extend_from_slice(&found[..found.len().min(vocab as usize)]);
            values.resize(vocab as usize, f32::NEG_INFINITY);
            Ok(NativeLogits::of(Arc::new(Logits::leased(values, 1, vocab, lease)?)))
        })
    }

    /// A copy of one row.
    #[napi(ts_return_type = "Float32Array")]
    pub fn row(&self, env: &Env, row: f64) -> Result<ExternalArray> {
        self.logits.borrow().read(env, |logits| {
            let found = logits.row(count("row", row)?)?;
            let mut copy = Vec::new();
            copy.try_reserve_exact(found.len()).map_err(|_| Budget::process().refusal(4 * found.len() as u64))?;
            copy.extend_from_slice(found);
            Ok(ExternalArray::floats(copy))
        })
    }

    #[napi]
    pub fn dispose(&self, env: &Env) {
        self.logits.borrow_mut().dispose(env, |_| ());
    }
}

/// Rows of logits that JavaScript reads as one array. They are shared until then, and copied once, in the background.
#[napi]
pub struct NativeLogitRows {
    rows: RefCell<Vec<LogitRows>>,
}

/// Consecutive rows of the same logits.
struct LogitRows {
    logits: Arc<Logits>,
    first: u32,
    count: u32,
}

#[napi]
impl NativeLogitRows {
    #[napi(catch_unwind, constructor)]
    pub fn new() -> Self {
        NativeLogitRows { rows: RefCell::new(Vec::new()) }
    }

    /// Adds rows after the ones added before.
    #[napi]
    pub fn add(&self, env: &Env, logits: &NativeLogits, first: f64, rows: f64) -> Result<()> {
        guard(env, || {
            let (logits, first, count) = (logits.get()?, count("first", first)?, count("rows", rows)?);
            logits.rows_from(first, count)?;
            self.rows.borrow_mut().push(LogitRows { logits, first, count });
            Ok(())
        })
    }

    /// Concatenates all rows. A second call returns an empty array.
    #[napi(catch_unwind, ts_return_type = "Promise<Float32Array>")]
    pub fn join(&self) -> AsyncTask<PoolTask<Vec<f32>, ExternalArray>> {
        let rows = self.rows.take();
        PoolTask::of(move || joined(&rows), ExternalArray::floats)
    }
}

fn joined(rows: &[LogitRows]) -> Outcome<Vec<f32>> {
    let parts = rows.iter().map(|LogitRows { logits, first, count }| logits.rows_from(*first, *count));
    let parts = parts.collect::<Outcome<Vec<_>>>()?;
    let elements = parts.iter().map(|part| part.len()).sum::<usize>();
    let mut all = Vec::new();
    all.try_reserve_exact(elements).map_err(|_| Budget::process().refusal(4 * elements as u64))?;
    parts.iter().for_each(|part| all.extend_from_slice(part));
    Ok(all)
}
