//! Divides a call into units, distributes them over threads, and merges the shares of each row.
//!
//! The division depends on the call's sizes alone, never on the number of threads: the same call gives the same bits
//! everywhere. If there are few units, they are split along their keys; the results of the shares take at most 1 MiB until
//! the last one is done.

use std::f32::consts::LOG2_E;
use std::sync::Mutex;

use super::job::{Job, WorkUnit};
use super::scratch::{Scratch, State, TILE};
use super::unit::Work;
use crate::attention::call::Call;
use crate::attention::call::asked::UNITS;
use crate::attention::output::{Output, Suspect, larger};
use crate::attention::stem::Stem;
use crate::base::error::Result;
use crate::base::lock::{lock, unlocked};
use crate::base::memory::Budget;
use crate::base::threads::{is_hosted, try_share};
use crate::kernels::tile::{TileKernels, padded};

/// The fewest keys of a share: with half as many, keeping and merging shares costs a call over pages 2 % more.
const SHARE_MIN: usize = 8 * TILE;

/// The fewest keys of a share of a call with less than [`FEW`] units, so that two threads have work after short prompts too.
const FEW_SHARE_MIN: usize = TILE;

/// The number of units below which a call is split into shares of fewer keys.
const FEW: usize = 4;

/// The most floats for the results of shares: 1 MiB.
const SHARES_MAX: usize = 1 << 18;

/// The number of products below which waking another thread does not pay.
const ALONE_MAX: usize = 1 << 20;

/// The same for threads of a host, which need not be woken.
const HOSTED_ALONE_MAX: usize = 1 << 16;

/// Runs a whole call with the memory of its tensors.
pub(in crate::attention) fn run(
    call: &Call<'_>,
    kernels: &'static TileKernels,
    memory: &[&[u8]],
    output: &mut Output<'_>,
    threads: usize,
) -> Result<()> {
    let job = &Job::new(call, kernels, memory);
    let planned = Units::new(job);
    let units = &planned.all;
    let rows = units.iter().map(|unit| unit.rows(job.asked.sizes.group())).max().unwrap_or(0);
    let shares = Shares::new(&planned, job.asked.sizes.value_dim)?;
    let output = Mutex::new(output);
    let alone = job.asked.products() < if is_hosted() { HOSTED_ALONE_MAX } else { ALONE_MAX };
    try_share(units.len(), if alone { 1 } else { threads }, |index| {
        Scratch::with(rows, job.asked.sizes.dim, job.asked.sizes.value_dim, |scratch| {
            let unit = &units[index];
            let rows = Work::run(job, unit, scratch)?.rows;
            let stride = padded(job.asked.sizes.value_dim);
            if is_merged(job, unit) {
                shares.keep(unit, rows, &scratch.state[..rows], &scratch.out, stride);
            } else {
                write(&mut lock(&output), job, unit, &scratch.state[..rows], &scratch.out, stride);
            }
            Ok(())
        })
    })?;
    let output = unlocked(output);
    for unit in units.iter().filter(|unit| unit.stem.is_none() && unit.split == 0 && is_merged(job, unit)) {
        Scratch::with(rows, job.asked.sizes.dim, job.asked.sizes.value_dim, |scratch| {
            shares.merge(job, unit, scratch);
            write(output, job, unit, &scratch.state[..], &scratch.out, padded(job.asked.sizes.value_dim));
            Ok(())
        })?;
    }
    Ok(())
}

/// The units of a call.
struct Units {
    /// All units, those of stems first.
    all: Vec<WorkUnit>,
    /// The index of the first row of each group's shares, and the end of the last one's. A group is a unit before it is
    /// split.
    first_rows: Vec<usize>,
    stems: Vec<Cut>,
}

/// The division of a stem's queries and heads.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// The index of its first group.
    group: usize,
    /// The KV heads, and the queries, of one unit.
    heads: usize,
    queries: usize,
    /// The number of groups that together have all queries of the same heads.
    groups_of_heads: usize,
    splits: usize,
}

impl Units {
    fn new(job: &Job<'_>) -> Self {
        let (mut units, mut stems) = whole_units(job);
        let (groups, group) = (units.len(), job.asked.sizes.group());
        let mut first_rows = vec![0];
        let rows = units.iter().map(|unit| unit.rows(group)).max().unwrap_or(0);
        let share_floats = groups * rows * (padded(job.asked.sizes.value_dim) + 2);
        let wanted = UNITS.div_ceil(groups.max(1)).min(SHARES_MAX / share_floats.max(1)).max(1);
        for unit in &mut units {
            let keys = match unit.stem {
                Some(stem) => job.stems.all[stem].keys,
                None => job.asked.sequences[unit.sequence].keys.len() - job.stems.shared(unit.sequence),
            };
            unit.splits = wanted.min((keys / SHARE_MIN).max(few_shares(groups, keys))).max(1);
            if let Some(stem) = unit.stem {
                stems[stem].splits = unit.splits;
            }
            // Only results that are merged are kept: a long prompt beside sequences with a stem has none.
            let kept = if is_merged(job, unit) { unit.splits * unit.rows(group) } else { 0 };
            first_rows.push(first_rows[unit.group] + kept);
        }
        let shares = |unit: WorkUnit| (0..unit.splits).map(move |split| WorkUnit { split, ..unit.clone() });
        Units { all: units.into_iter().flat_map(shares).collect(), first_rows, stems }
    }
}

/// The number of shares of each of a few units: 1, 2 or 4, which two threads compute in equal times.
fn few_shares(groups: usize, keys: usize) -> usize {
    let most = (FEW / groups.max(1)).min(keys / FEW_SHARE_MIN).max(1);
    1 << most.ilog2()
}

/// The units before they are split along their keys, and the division of stems.
fn whole_units(job: &Job<'_>) -> (Vec<WorkUnit>, Vec<Cut>) {
    let (chunk, kv_heads) = (job.asked.queries_max(), job.asked.sizes.kv_heads);
    let mut units = Vec::new();
    let mut add = |sequence: usize, stem: Option<usize>, all: usize| {
        let (heads_max, group) = (job.heads_max(chunk.min(all)), units.len());
        for first_head in (0..kv_heads).step_by(heads_max) {
            let heads = first_head..kv_heads.min(first_head + heads_max);
            for first_query in (0..all).step_by(chunk) {
                let (queries, group) = (chunk.min(all - first_query), units.len());
                let heads = heads.clone();
                units.push(WorkUnit { sequence, stem, heads, first_query, queries, split: 0, splits: 1, group });
            }
        }
        Cut { group, heads: heads_max, queries: chunk, groups_of_heads: all.div_ceil(chunk), splits: 1 }
    };
    let of_stem = |(index, of): (usize, &Stem)| add(of.sequence, Some(index), of.queries.len());
    let stems = job.stems.all.iter().enumerate().map(of_stem).collect();
    for (sequence, of) in job.asked.sequences.iter().enumerate() {
        add(sequence, None, of.queries);
    }
    (units, stems)
}

/// Writes the rows of a unit, each divided by its sum; zeros if the row attended to no key.
fn write(output: &mut Output<'_>, job: &Job<'_>, unit: &WorkUnit, states: &[State], out: &[f32], stride: usize) {
    let asked = job.asked;
    let (sizes, group) = (asked.sizes, asked.sizes.group());
    let mut values = vec![0.0; sizes.value_dim];
    for row in 0..unit.rows(group) {
        let State { max, sum, .. } = states[row];
        let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
        for (value, total) in values.iter_mut().zip(&out[row * stride..]) {
            *value = total * factor;
        }
        let (query, head) = unit.query_and_head(row, group);
        let token = asked.sequences[unit.sequence].first_query + query;
        let lse = log_sum(max, sum);
        // Checked with the kernels, because another pass costs a decode step noticeable time. Squares of finite numbers may
        // overflow; such rows are then recomputed without need.
        let sums = &out[row * stride..][..stride];
        let is_finite = job.kernels.dot(sums, sums).is_finite();
        output.check(is_finite, Suspect { sequence: unit.sequence, token, head }, lse);
        output.put(asked, unit.sequence, token, head, &values, lse);
    }
}

/// The natural logarithm of a row's sum of exponentials.
fn log_sum(max: f32, sum: f32) -> f32 {
    if sum == 0.0 { f32::NEG_INFINITY } else { max + sum.ln() }
}

/// True if a unit's result has to be merged with those of others.
fn is_merged(job: &Job<'_>, unit: &WorkUnit) -> bool {
    unit.splits > 1 || unit.stem.is_some() || job.stems.member(unit.sequence).is_some()
}

/// The results of shares, until all of them are done.
struct Shares<'a> {
    floats: Mutex<Vec<f32>>,
    /// The floats for one row of a share: its max, its sum and its output.
    row: usize,
    units: &'a Units,
}

impl<'a> Shares<'a> {
    fn new(units: &'a Units, value_dim: usize) -> Result<Self> {
        let row = padded(value_dim) + 2;
        let has_shares = !units.stems.is_empty() || units.all.iter().any(|unit| unit.splits > 1);
        let count = if has_shares { units.first_rows.last().map_or(0, |rows| rows * row) } else { 0 };
        let mut floats = Vec::new();
        floats.try_reserve_exact(count).map_err(|_| Budget::process().refusal(4 * count as u64))?;
        floats.resize(count, 0.0);
        Ok(Shares { floats: Mutex::new(floats), row, units })
    }

    /// The index of the first share of a row's stem, the distance to the next ones, and their number.
    fn of_stem(&self, job: &Job<'_>, unit: &WorkUnit, row: usize) -> (usize, usize, usize) {
        let Some(member) = job.stems.member(unit.sequence) else { return (0, 0, 0) };
        let (group, cut) = (job.asked.sizes.group(), self.units.stems[member.stem]);
        let (query, head) = unit.query_and_head(row, group);
        let (query, kv_head) = (member.first_query + query, head / group);
        let (first_head, first_query) = (kv_head / cut.heads * cut.heads, query / cut.queries * cut.queries);
        let queries = cut.queries.min(job.stems.all[member.stem].queries.len() - first_query);
        let place = cut.group + kv_head / cut.heads * cut.groups_of_heads + query / cut.queries;
        let row = ((kv_head - first_head) * queries + query - first_query) * group + head % group;
        let heads = cut.heads.min(job.asked.sizes.kv_heads - first_head);
        ((self.units.first_rows[place] + row) * self.row, heads * queries * group * self.row, cut.splits)
    }

    /// The index of a unit's shares, which follow one another.
    fn place(&self, unit: &WorkUnit, split: usize, rows: usize) -> usize {
        (self.units.first_rows[unit.group] + split * rows) * self.row
    }

    fn keep(&self, unit: &WorkUnit, rows: usize, states: &[State], out: &[f32], stride: usize) {
        let mut floats = lock(&self.floats);
        let share = &mut floats[self.place(unit, unit.split, rows)..][..rows * self.row];
        for (row, kept) in share.chunks_exact_mut(self.row).enumerate() {
            (kept[0], kept[1]) = (states[row].max, states[row].sum);
            kept[2..].copy_from_slice(&out[row * stride..(row + 1) * stride]);
        }
    }

    /// Merges the shares of a unit's rows in the scratch memory.
    fn merge(&self, job: &Job<'_>, unit: &WorkUnit, scratch: &mut Scratch) {
        let floats = lock(&self.floats);
        let (stride, rows) = (self.row - 2, unit.rows(job.asked.sizes.group()));
        for row in 0..rows {
            let (of_stem, apart, splits) = self.of_stem(job, unit, row);
            let shares = || {
                let shared = (0..splits).map(|split| of_stem + split * apart);
                let own = (0..unit.splits).map(|split| self.place(unit, split, rows) + row * self.row);
                shared.chain(own).map(|at| &floats[at..][..self.row])
            };
            let max = shares().map(|share| share[0]).fold(f32::NEG_INFINITY, larger);
            let out = &mut scratch.out[row * stride..(row + 1) * stride];
            out.fill(0.0);
            let mut sum = 0.0;
            // A share whose scores are all NaN has no largest score, but does have a sum.
            for share in shares().filter(|share| share[1] != 0.0) {
                let factor = ((share[0] - max) * LOG2_E).exp2();
                sum += share[1] * factor;
                for (total, part) in out.iter_mut().zip(&share[2..]) {
                    *total += part * factor;
                }
            }
            scratch.state[row] = State { max, sum, bias: 0.0 };
        }
    }
}
