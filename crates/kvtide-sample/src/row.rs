//! A row of logits before sampling: checked, then changed by penalties, bias and mask.
//!
//! ```text
//! logits -> penalties -> bias -> mask
//! ```
//!
//! O(vocabulary): one pass over a row that is not changed; a copy and a second pass over one that is.

use crate::error::{Error, Result, reserve};
use crate::options::{Options, VOCABULARY_MAX};
use crate::seen::Seen;

/// The allowed tokens: bit `id % 32` of word `id / 32` is set for each. Bits beyond the vocabulary are ignored.
pub type Mask<'a> = &'a [u32];

/// Number of logits compared at a time; the first largest one is then looked up in one block only.
const BLOCK: usize = 64;

/// The largest logit of a row, and the first token that has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    pub(crate) token: u32,
    pub(crate) logit: f32,
}

impl Peak {
    /// Finds it in one pass. Returns [`None`] if a logit is NaN or +Infinity, or if all are -Infinity.
    #[must_use]
    pub fn of(logits: &[f32]) -> Option<Self> {
        peak(logits).ok().flatten()
    }
}

/// Logits to draw from, one per token of the vocabulary. Made of a slice; or of a slice and its peak, if that was found
/// where the logits were computed: a draw then reads them once less.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub(crate) logits: &'a [f32],
    peak: Option<Peak>,
}

impl<'a> Row<'a> {
    /// Logits whose peak may be known: it must be that of these logits.
    #[must_use]
    pub fn new(logits: &'a [f32], peak: Option<Peak>) -> Self {
        // A peak of other logits could point behind these.
        let own = peak.filter(|peak| logits.get(peak.token as usize) == Some(&peak.logit));
        Row { logits, peak: own }
    }
}

impl<'a, T: AsRef<[f32]> + ?Sized> From<&'a T> for Row<'a> {
    fn from(logits: &'a T) -> Self {
        Row { logits: logits.as_ref(), peak: None }
    }
}

/// The largest logit of a block, and true if all of them are valid. The remainder behind full lanes is padded to a
/// lane.
fn most(block: &[f32]) -> (f32, bool) {
    const LANES: usize = 8;
    let (mut most, mut wrong) = ([f32::NEG_INFINITY; LANES], [0u32; LANES]);
    let mut compare = |lanes: &[f32; LANES]| {
        for lane in 0..LANES {
            let logit = lanes[lane];
            wrong[lane] |= u32::from(logit.is_nan()) | u32::from(logit == f32::INFINITY);
            most[lane] = if logit > most[lane] { logit } else { most[lane] };
        }
    };
    let (whole, rest) = block.as_chunks::<LANES>();
    whole.iter().for_each(&mut compare);
    let mut last = [f32::NEG_INFINITY; LANES];
    last[..rest.len()].copy_from_slice(rest);
    compare(&last);
    let largest = most.iter().fold(f32::NEG_INFINITY, |most, &lane| if lane > most { lane } else { most });
    (largest, wrong == [0; LANES])
}

/// Finds the largest logit in one pass. Returns [`None`] if all are -Infinity, and an error with the place of the first
/// that is NaN or +Infinity.
fn peak(logits: &[f32]) -> Result<Option<Peak>> {
    let (mut best, mut best_block) = (f32::NEG_INFINITY, 0);
    for (place, block) in logits.chunks(BLOCK).enumerate() {
        let (most, all_numbers) = most(block);
        if !all_numbers {
            let inside = block.iter().position(|&logit| logit.is_nan() || logit == f32::INFINITY).unwrap_or(0);
            return Err(Error::NotFinite { row: 0, token: Some((place * BLOCK + inside) as u32) });
        }
        if most > best {
            (best, best_block) = (most, place);
        }
    }
    if best == f32::NEG_INFINITY {
        return Ok(None);
    }
    let start = best_block * BLOCK;
    let inside = logits[start..].iter().position(|&logit| logit == best).expect("the block has its largest logit");
    Ok(Some(Peak { token: (start + inside) as u32, logit: best }))
}

/// Returns an error for invalid arguments, and otherwise the largest of the model's logits.
fn check(Row { logits, peak: known }: Row<'_>, options: &Options, mask: Option<Mask<'_>>) -> Result<Peak> {
    let most = format!("1 to {VOCABULARY_MAX} logits");
    let vocabulary = u32::try_from(logits.len()).ok().filter(|count| (1..=VOCABULARY_MAX).contains(count));
    let vocabulary = vocabulary.ok_or_else(|| Error::argument("logits", logits.len() as f64, most))?;
    if let Some(&(id, _)) = options.bias.iter().find(|(id, _)| *id >= vocabulary) {
        return Err(Error::argument("bias", id, format!("a token below {vocabulary}")));
    }
    let words = vocabulary.div_ceil(32);
    if let Some(mask) = mask.filter(|mask| mask.len() != words as usize) {
        return Err(Error::argument("allowed", mask.len() as f64, format!("{words} words for {vocabulary} tokens")));
    }
    let found = known.map_or_else(|| peak(logits), |peak| Ok(Some(peak)))?;
    found.ok_or(Error::NotFinite { row: 0, token: None })
}

/// Clamps a logit to finite numbers; -Infinity stays, so a token that is ruled out stays ruled out.
fn finite(logit: f64) -> f32 {
    if logit == f64::NEG_INFINITY {
        return f32::NEG_INFINITY;
    }
    (logit as f32).clamp(f32::MIN, f32::MAX)
}

/// Applies the penalties to the logits of tokens that were seen.
fn penalise(row: &mut [f32], options: &Options, seen: &Seen) {
    if options.repeats() {
        let penalty = f64::from(options.repetition_penalty);
        seen.each(|id| {
            if let Some(logit) = row.get_mut(id as usize) {
                let before = f64::from(*logit);
                *logit = finite(if before > 0.0 { before / penalty } else { before * penalty });
            }
        });
    }
    let (presence, frequency) = (f64::from(options.presence_penalty), f64::from(options.frequency_penalty));
    if presence == 0.0 && frequency == 0.0 {
        return;
    }
    for (id, times) in seen.generated() {
        if let Some(logit) = row.get_mut(id as usize) {
            *logit = finite(f64::from(*logit) - presence - frequency * f64::from(times));
        }
    }
}

fn apply_mask(row: &mut [f32], mask: Mask<'_>) {
    for (logits, &word) in row.chunks_mut(32).zip(mask) {
        if word == u32::MAX {
            continue;
        }
        for (bit, logit) in logits.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

/// Returns the row that a token is drawn from, in `room` if it differs from the model's own, and its peak.
pub(crate) fn process<'a>(
    row: Row<'a>,
    options: &Options,
    seen: &Seen,
    mask: Option<Mask<'_>>,
    room: &'a mut Vec<f32>,
) -> Result<(&'a [f32], Peak)> {
    let peak_before = check(row, options, mask)?;
    let logits = row.logits;
    if mask.is_none() && options.bias.is_empty() && !options.counts_generated() {
        return Ok((logits, peak_before));
    }
    room.clear();
    reserve(room, logits.len())?;
    room.extend_from_slice(logits);
    penalise(room, options, seen);
    for &(id, bias) in &options.bias {
        let logit = &mut room[id as usize];
        *logit = finite(f64::from(*logit) + f64::from(bias));
    }
    if let Some(mask) = mask {
        apply_mask(room, mask);
    }
    let peak = peak(room)?.ok_or(Error::NothingAllowed { vocabulary: logits.len() as u32 })?;
    Ok((room, peak))
}

#[cfg(test)]
mod tests {
    use super::{Peak, peak};
    use crate::error::Error;

    #[test]
    fn the_peak_is_the_first_of_the_largest() {
        for len in [1, 7, 8, 63, 64, 65, 200] {
            for place in 0..len {
                let mut logits = vec![-1.5; len];
                logits[place] = 2.0;
                logits[len - 1] = 2.0;
                assert_eq!(peak(&logits), Ok(Some(Peak { token: place as u32, logit: 2.0 })));
                logits[place] = f32::NAN;
                assert_eq!(peak(&logits), Err(Error::NotFinite { row: 0, token: Some(place as u32) }));
                logits[place] = f32::INFINITY;
                assert_eq!(peak(&logits), Err(Error::NotFinite { row: 0, token: Some(place as u32) }));
            }
            assert_eq!(peak(&vec![f32::NEG_INFINITY; len]), Ok(None));
        }
    }
}
