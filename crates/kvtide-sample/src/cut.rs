//! The tokens that can be drawn, and their weights: top-k, then top-p, then min-p.
//!
//! ```text
//! top-k   the k largest logits, lowest ids first among equals   one pass that keeps at most 2k, and selects the k-th largest when full
//! top-p   the fewest tokens with p of their total weight        the sum in one pass; tokens that are too light to matter are left out;
//!                                                               the others are halved, and only the half with the border is added up
//! min-p   tokens with minP of the largest weight                one comparison each
//! ```
//!
//! Nothing is sorted. Tokens stay in the order of their ids. O(vocabulary).

use std::cmp::Ordering;

use crate::error::{Result, reserve};
use crate::options::Options;
use crate::row::Peak;
use crate::weight::{BLOCK, ONE, Scale};

/// A token that can be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub id: u32,
    pub logit: f32,
    pub weight: u64,
}

/// Orders candidates by logit, the largest first, and among equals by id.
pub(crate) fn order(one: &Candidate, other: &Candidate) -> Ordering {
    // No logit is NaN, and the two zeros are equal.
    other.logit.partial_cmp(&one.logit).unwrap_or(Ordering::Equal).then(one.id.cmp(&other.id))
}

/// Writes the candidates of a row at `options.temperature` to `found`, in the order of their ids. `spare` is scratch
/// memory.
pub(crate) fn candidates(
    row: &[f32],
    peak: Peak,
    options: &Options,
    found: &mut Vec<Candidate>,
    spare: &mut Vec<Candidate>,
) -> Result<()> {
    let scale = Scale::new(peak.logit, options.temperature);
    let least = f64::from(options.min_p) * ONE as f64;
    found.clear();
    let sum = match options.top_k.filter(|&k| (k as usize) < row.len()) {
        Some(k) => {
            let last = kth(row, k as usize, spare)?;
            collect(row, last.logit, found, |candidate| {
                candidate.weight = scale.weight(candidate.logit);
                order(candidate, &last) != Ordering::Greater
            })?;
            found.iter().map(|candidate| candidate.weight).sum()
        }
        None => all(row, scale, least, options.top_p, found)?,
    };
    if options.top_p < 1.0 {
        narrow(found, spare, sum, options.top_p)?;
    }
    found.retain(|candidate| candidate.weight > 0 && candidate.weight as f64 >= least);
    Ok(())
}

/// The candidates without top-k: those that top-p and min-p could keep. Returns the sum of all weights if top-p needs
/// it.
fn all(row: &[f32], scale: Scale, least: f64, top_p: f32, found: &mut Vec<Candidate>) -> Result<u64> {
    let sum = if top_p < 1.0 { scale.total(row) } else { 0 };
    // Tokens lighter than an equal share of the weight that top-p drops are, together, lighter than that weight.
    let share = (1.0 - f64::from(top_p)) * sum as f64 / row.len() as f64 * (1.0 - 1e-9);
    let least = least.max(share);
    if least < 1.0 {
        let mut room = [0; BLOCK];
        reserve(found, row.len())?;
        for (place, block) in row.chunks(BLOCK).enumerate() {
            scale.block(block, &mut room);
            let ids = (place * BLOCK) as u32..;
            let both = ids.zip(block).zip(room);
            found.extend(both.map(|((id, &logit), weight)| Candidate { id, logit, weight }));
        }
        return Ok(sum);
    }
    collect(row, scale.threshold(least), found, |candidate| {
        candidate.weight = scale.weight(candidate.logit);
        true
    })?;
    Ok(sum)
}

/// Adds the tokens whose logit is at least `threshold` and for which `weigh`, which sets their weight, returns true.
/// Blocks without such a token are only compared.
fn collect(
    row: &[f32],
    threshold: f32,
    found: &mut Vec<Candidate>,
    weigh: impl Fn(&mut Candidate) -> bool,
) -> Result<()> {
    const WIDTH: usize = 32;
    for (place, block) in row.chunks(WIDTH).enumerate() {
        if !block.iter().fold(false, |any, &logit| any | (logit >= threshold)) {
            continue;
        }
        reserve(found, WIDTH)?;
        for (inside, &logit) in block.iter().enumerate() {
            if logit >= threshold {
                let mut candidate = Candidate { id: (place * WIDTH + inside) as u32, logit, weight: 0 };
                if weigh(&mut candidate) {
                    found.push(candidate);
                }
            }
        }
    }
    Ok(())
}

/// The token at place `k`, counted from 1, by logit. Afterwards, the first `k` of `room` are the tokens up to it, in no
/// order. `room` collects the best tokens so far, and is cut to `k` of them when it is full.
pub(crate) fn kth(row: &[f32], k: usize, room: &mut Vec<Candidate>) -> Result<Candidate> {
    /// The smallest capacity of `room`.
    const FULL: usize = 512;
    const WIDTH: usize = 32;
    let full = (2 * k).max(FULL);
    room.clear();
    reserve(room, full + WIDTH)?;
    let mut threshold = f32::NEG_INFINITY;
    for (place, block) in row.chunks(WIDTH).enumerate() {
        // A later token with the same logit ranks behind the k-th, so only larger logits matter once there are k.
        let is_short = room.len() < k;
        if !is_short && !block.iter().fold(false, |any, &logit| any | (logit > threshold)) {
            continue;
        }
        for (inside, &logit) in block.iter().enumerate() {
            if is_short || logit > threshold {
                room.push(Candidate { id: (place * WIDTH + inside) as u32, logit, weight: 0 });
            }
        }
        if room.len() >= full {
            room.select_nth_unstable_by(k - 1, order);
            room.truncate(k);
            threshold = room[k - 1].logit;
        }
    }
    Ok(*room.select_nth_unstable_by(k - 1, order).1)
}

/// Keeps the fewest candidates, largest logits first, that have `top_p` of `sum`.
fn narrow(found: &mut Vec<Candidate>, spare: &mut Vec<Candidate>, sum: u64, top_p: f32) -> Result<()> {
    let wanted = ((f64::from(top_p) * sum as f64).ceil() as u64).clamp(1, sum);
    spare.clear();
    reserve(spare, found.len())?;
    spare.extend_from_slice(found);
    // The border is in `from..to`: candidates before it are kept, and weigh `before`, which is too little.
    let (mut from, mut to, mut before) = (0, spare.len(), 0);
    while to - from > 1 {
        let middle = (to - from) / 2;
        spare[from..to].select_nth_unstable_by(middle, order);
        let half: u64 = spare[from..from + middle].iter().map(|candidate| candidate.weight).sum();
        if before + half >= wanted {
            to = from + middle;
        } else {
            before += half;
            from += middle;
        }
    }
    let last = spare[from];
    found.retain(|candidate| order(candidate, &last) != Ordering::Greater);
    Ok(())
}
