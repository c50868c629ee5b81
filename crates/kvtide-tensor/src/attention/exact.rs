//! Recomputes rows whose results are not finite, in 64-bit floats, key by key.
//!
//! The kernels compute in 32-bit floats. There, sums may overflow although the mean does not, and the weight of a value may
//! round to 0, so that an infinite value becomes NaN. The correct result is a softmax without such rounding:
//!
//! ```text
//! score   a 32-bit float: NaN or +infinity makes the row NaN, -infinity hides the key
//! value   an infinity or NaN counts wherever it is visible, however small its weight
//! ```
//!
//! O(keys) for each such row, and free for others.

use std::sync::Mutex;

use candle_core::Device;

use super::call::asked::Asked;
use super::call::kv_rows::KvRows;
use super::output::{Output, Suspect};
use super::own_page::OwnPage;
use super::portable::{host, rows};
use crate::base::error::Result;
use crate::base::lock::lock;
use crate::base::threads::try_share;
use crate::tensor::source::Source;

/// The number of rows at once, and the keys of a tile.
const ROWS: usize = 64;
const TILE: usize = 256;

/// The running softmax of one row.
struct SuspectRow {
    of: Suspect,
    query: Vec<f32>,
    max: f64,
    sum: f64,
    /// The weighted sum of finite values.
    out: Vec<f64>,
    /// The sum of the other values, whose weights do not matter.
    beyond: Vec<f64>,
    /// True once the row is NaN, whatever follows.
    is_lost: bool,
}

/// Recomputes the rows whose results are not finite.
pub(super) fn redo(
    asked: &Asked<'_>,
    q: &Source<'_>,
    kv: &KvRows<'_>,
    output: &mut Output<'_>,
    threads: usize,
) -> Result<()> {
    let mut suspects = std::mem::take(&mut output.suspects);
    suspects.sort_unstable_by_key(|of| (of.sequence, of.token, of.head));
    let query = |of: &Suspect| of.token - asked.sequences[of.sequence].first_query;
    let own = |of: &Suspect| OwnPage::of(asked, kv.pages(), of.sequence, query(of)).place;
    let are_alike = |one: &Suspect, other: &Suspect| one.sequence == other.sequence && own(one) == own(other);
    let chunks: Vec<_> = suspects.chunk_by(are_alike).flat_map(|alike| alike.chunks(ROWS)).collect();
    let shared = Mutex::new(&mut *output);
    try_share(chunks.len(), threads, |index| {
        asked.check_stop()?;
        let chunk = chunks[index];
        let mut found = chunk.iter().map(|of| SuspectRow::new(asked, q, *of)).collect::<Result<Vec<_>>>()?;
        attend(asked, kv, (chunk[0].sequence, own(&chunk[0])), &mut found)?;
        for row in found {
            let (values, lse) = row.end();
            lock(&shared).put(asked, row.of.sequence, row.of.token, row.of.head, &values, lse);
        }
        Ok(())
    })?;
    // Results that are still not finite are correct.
    output.suspects.clear();
    Ok(())
}

/// Attends from some rows of a sequence, all with the same own page, to its keys.
fn attend(asked: &Asked<'_>, kv: &KvRows<'_>, (sequence, own): (usize, usize), found: &mut [SuspectRow]) -> Result<()> {
    let (of, sizes) = (&asked.sequences[sequence], asked.sizes);
    let batch = asked.batch(sequence);
    for start in (0..of.keys.len()).step_by(TILE) {
        asked.check_stop()?;
        if found.iter().all(|row| row.is_lost) {
            break;
        }
        let count = TILE.min(of.keys.len() - start);
        let (keys, values) = kv.tile(own, sequence, batch, of.first_key + start, count)?;
        let (keys, values) = (host(&keys.to_device(&Device::Cpu)?)?, host(&values.to_device(&Device::Cpu)?)?);
        for row in found.iter_mut().filter(|row| !row.is_lost) {
            let head = row.of.head / sizes.group();
            for place in 0..count {
                let at = head * count + place;
                let key = &keys[at * sizes.dim..][..sizes.dim];
                let score = row.score(asked, key, start + place);
                row.add(score, &values[at * sizes.value_dim..][..sizes.value_dim]);
            }
        }
    }
    Ok(())
}

impl SuspectRow {
    fn new(asked: &Asked<'_>, q: &Source<'_>, of: Suspect) -> Result<Self> {
        let sizes = asked.sizes;
        let token = if sizes.is_ragged { of.token } else { of.token - asked.sequences[of.sequence].first_query };
        let queries = rows(q, asked.axes(), asked.batch(of.sequence), token, 1)?;
        let sink = asked.rules.sink_logits.map_or(f32::NEG_INFINITY, |logits| logits[of.head]);
        Ok(SuspectRow {
            of,
            query: host(&queries.narrow(0, of.head, 1)?)?,
            max: sink.into(),
            sum: if sink > f32::NEG_INFINITY { 1.0 } else { 0.0 },
            out: vec![0.0; sizes.value_dim],
            beyond: vec![0.0; sizes.value_dim],
            is_lost: false,
        })
    }

    /// The score of a key; -infinity if the row does not attend to it.
    fn score(&self, asked: &Asked<'_>, key: &[f32], index: usize) -> f32 {
        let Suspect { sequence, token, head } = self.of;
        let query = token - asked.sequences[sequence].first_query;
        let added = asked.mask.as_ref().map_or(0.0, |mask| mask.at(sequence, head, query, index));
        let position = asked.position(sequence, query);
        if added == f32::NEG_INFINITY || !asked.visible(sequence).shows(position, query, index) {
            return f32::NEG_INFINITY;
        }
        let products = self.query.iter().zip(key).map(|(one, other)| f64::from(*one) * f64::from(*other));
        let score = (products.sum::<f64>() * f64::from(asked.rules.scale)) as f32;
        let bent = match asked.rules.softcap.map(f64::from) {
            Some(cap) => (cap * (f64::from(score) / cap).tanh()) as f32,
            None => score,
        };
        let bias = asked.slope(head).map_or(0.0, |slope| asked.visible(sequence).bias(slope, position, index));
        bent + bias + added
    }

    fn add(&mut self, score: f32, values: &[f32]) {
        if score == f32::NEG_INFINITY || self.is_lost {
            return;
        }
        if score.is_nan() || score == f32::INFINITY {
            self.is_lost = true;
            return;
        }
        let score = f64::from(score);
        if score > self.max {
            let factor = (self.max - score).exp();
            self.sum *= factor;
            self.out.iter_mut().for_each(|total| *total *= factor);
            self.max = score;
        }
        let weight = (score - self.max).exp();
        self.sum += weight;
        for (place, &value) in values.iter().enumerate() {
            if value.is_finite() {
                self.out[place] += weight * f64::from(value);
            } else {
                self.beyond[place] += f64::from(value);
            }
        }
    }

    /// The row's output, and the logarithm of its sum.
    fn end(&self) -> (Vec<f32>, f32) {
        if self.is_lost {
            return (vec![f32::NAN; self.out.len()], f32::NAN);
        }
        if self.sum == 0.0 {
            return (vec![0.0; self.out.len()], f32::NEG_INFINITY);
        }
        let values = self.out.iter().zip(&self.beyond).map(|(total, beyond)| (total / self.sum + beyond) as f32);
        (values.collect(), (self.max + self.sum.ln()) as f32)
    }
}
