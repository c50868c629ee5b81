//! Attention over the pages of sequences, compared with its definition in 64-bit floats.
//!
//! Rows that are not quantised are those of the model. Quantised rows are those that the cache gathers, which other checks compare with
//! the model. A full page of a step or draft lies both in floats, which are gathered, and quantised: the oracle quantises these floats in a
//! cache of its own, for the queries that come after it. If the page was quantised before, cut and filled again, they are not those that
//! were appended.

use kvtide_core::Code;
use kvtide_tensor::attention::{AttendOptions, attend};
use kvtide_tensor::{DType, HostTensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::oracle::{Naive, ancestors, slopes};
use super::tensors::{TensorCache, code};
use super::world::{Done, Seen, World};

/// A query's heads for each of K.
const GROUP: usize = 2;

/// The rows of one sequence in a layer.
struct Shown {
    /// `[heads, tokens, dim]`, as queries in the same page read them.
    rows: [Vec<f32>; 2],
    /// The same, as queries in later pages read them.
    before: [Vec<f32>; 2],
    positions: Vec<i64>,
    queries: usize,
    /// The tree that its last tokens are.
    parents: Option<Vec<i32>>,
}

impl World<TensorCache> {
    /// From the last tokens of all sequences, of those of the open step, and from the nodes of a draft's tree: told, and known.
    pub fn check_attention(&mut self, seed: u64) -> Done {
        // Pages that a run writes are not read in place.
        self.cache.home();
        let layer = (seed % u64::from(self.shape.layers)) as u32;
        let all: Vec<u64> = self.sequences.keys().copied().collect();
        self.check_rows(layer, &all, seed, None)?;
        if let Some(step) = self.step.take() {
            let ids: Vec<u64> = step.shares.iter().map(|share| share.0).collect();
            let whole = !self.is_stale(&step);
            self.step = Some(step);
            if whole {
                self.check_rows(layer, &ids, seed + 1, None)?;
            }
        }
        for id in all.into_iter().filter(|id| !self.is_stepping(*id)).collect::<Vec<_>>() {
            let parents = self.sequences[&id].drafts.last().map(|draft| draft.1.clone()).unwrap_or_default();
            if !parents.is_empty() {
                self.check_rows(layer, &[id], seed, Some(&parents))?;
            }
        }
        Ok(())
    }

    fn check_rows(&mut self, layer: u32, ids: &[u64], seed: u64, tree: Option<&[i32]>) -> Done {
        if ids.is_empty() {
            return Ok(());
        }
        let mut shown = Vec::new();
        for (at, &id) in ids.iter().enumerate() {
            let mut of = self.shown(id, layer, tree.map_or((seed as usize >> at) % 4, <[i32]>::len))?;
            of.parents = tree.map(<[i32]>::to_vec).or(of.parents);
            shown.push(of);
        }
        let mut offsets = vec![0i32];
        shown.iter().for_each(|of| offsets.push(offsets[offsets.len() - 1] + of.queries as i32));
        let (heads, dim) = (self.cache.content.heads * GROUP, self.cache.content.dims[0]);
        let queries = offsets[offsets.len() - 1] as usize;
        // However large the keys are, scores are as if they were between -1 and 1.
        let magnitude = self.cache.content.magnitude;
        let q: Vec<f32> = (0..queries * heads * dim).map(|at| number(seed + at as u64) / magnitude).collect();
        let bytes: Vec<u8> = q.iter().flat_map(|float| float.to_ne_bytes()).collect();
        let host = HostTensor::new("q", &bytes, DType::F32, &[queries, heads, dim])?;
        let (window, sinks) = self.shape.window.map_or((None, 0), |(window, sinks)| (Some(window), sinks));
        let slopes = seed.is_multiple_of(2).then(|| slopes(heads, 8));
        let alibi_slopes = slopes.as_deref();
        let options =
            AttendOptions { window, sinks, tree, alibi_slopes, query_offsets: Some(&offsets), ..Default::default() };
        let attended = match &self.step {
            Some(step) if !self.is_stale(step) && step.shares.iter().map(|share| &share.0).eq(ids) => {
                if step.written[layer as usize] {
                    attend(host, &self.cache.cache.step_pages(&step.open.borrow(), layer)?, &options)?
                } else {
                    let refused = code(self.cache.cache.step_pages(&step.open.borrow(), layer)).err();
                    prop_assert_eq!(refused, Some(Code::InvalidArgument));
                    attend(host, &self.cache.cache.pages(layer, ids)?, &options)?
                }
            }
            _ => attend(host, &self.cache.cache.pages(layer, ids)?, &options)?,
        };
        let out = attended.out.to_f32()?;
        let mut row = 0;
        for of in &shown {
            for query in 0..of.queries {
                for head in 0..heads {
                    let (expected, sum) = self.naive(of, query, head, &q[row * dim..(row + 1) * dim], alibi_slopes);
                    let width = expected.len();
                    let off = expected.iter().zip(&out[row * width..]).map(|(a, b)| (a - f64::from(*b)).abs());
                    let off = off.fold(0., |most: f64, one| if one.is_nan() || one > most { one } else { most });
                    prop_assert!(
                        off < 2e-5 * f64::from(magnitude),
                        "layer {} of {:?}: query {} is off by {}",
                        layer,
                        ids,
                        query,
                        off
                    );
                    let lse = f64::from(attended.lse[row]);
                    prop_assert!(lse == sum || (lse - sum).abs() < 2e-5, "{} instead of {}", lse, sum);
                    row += 1;
                }
            }
        }
        Ok(())
    }

    /// The rows of a sequence, and how many of its last tokens can be queries.
    fn shown(&mut self, id: u64, layer: u32, wanted: usize) -> Result<Shown, TestCaseError> {
        // Asked first: what of it was quantised and exposed is written again.
        let two_forms = self.cache.cache.pages(layer, &[id])?.two_forms(0);
        let values = self.layer_values(id, layer);
        let gathered = self.cache.cache.gather(id, layer)?;
        let seen = Seen { shape: &self.shape, values: &values, resting: self.sequences[&id].values.len() };
        let gap = self.cache.gap(gathered.k.shape()[1], &seen)?;
        let at: Vec<usize> = (0..values.len()).filter(|at| !gap.contains(at)).collect();
        let mut rows = [gathered.k.to_f32()?, gathered.v.to_f32()?];
        for part in (0..2).filter(|&part| self.cache.content.formats[part].is_none()) {
            let heads = (0..self.cache.content.heads).flat_map(|head| at.iter().map(move |&at| (head, at)));
            rows[part] =
                heads.flat_map(|(head, at)| self.cache.content.row(part, values[at].unwrap_or(0), head)).collect();
        }
        let before = self.before(&at, &rows, &two_forms)?;
        let positions: Vec<i64> = at.into_iter().map(|at| at as i64).collect();
        // A query that stands before the ones to come may see what has left their window.
        let window = self.shape.window.map_or(0, |window| window.0 as usize);
        let first = if gap.is_empty() { 0 } else { gap.end + window - 1 };
        let queries = wanted.min(values.len().saturating_sub(first));
        let parents = self.tree(id, values.len());
        Ok(Shown { rows, before, positions, queries, parents })
    }

    /// Rows of the tokens `at`, where pages that lie in two forms are quantised.
    fn before(&self, at: &[usize], rows: &[Vec<f32>; 2], two_forms: &[bool]) -> Result<[Vec<f32>; 2], TestCaseError> {
        let (mut before, size, content) = (rows.clone(), self.shape.block_size as usize, &self.cache.content);
        for first in (0..at.len()).filter(|&first| at[first].is_multiple_of(size)) {
            // A fork of a step's sequence may have fewer tokens in a page: no query comes after it.
            let is_full = at.len() - first >= size;
            if !is_full || !two_forms.get(first / size).is_some_and(|&has| has) {
                continue;
            }
            let range = |part: usize, head: usize| {
                let dim = content.dims[part];
                (head * at.len() + first) * dim..(head * at.len() + first + size) * dim
            };
            let floats = [0, 1].map(|part| {
                (0..content.heads).flat_map(|head| &rows[part][range(part, head)]).copied().collect::<Vec<_>>()
            });
            let quantised = content.sealed(&floats)?;
            for (part, head) in (0..2).flat_map(|part| (0..content.heads).map(move |head| (part, head))) {
                let length = size * content.dims[part];
                before[part][range(part, head)].copy_from_slice(&quantised[part][head * length..][..length]);
            }
        }
        Ok(before)
    }

    /// The nodes of a sequence's transactions, counted from what is committed, and those of the step as a chain behind them.
    fn tree(&self, id: u64, tokens: usize) -> Option<Vec<i32>> {
        let drafts = &self.sequences[&id].drafts;
        let committed = drafts.first()?.0;
        let mut tree: Vec<i32> = Vec::new();
        for (base, nodes) in drafts {
            let first = (base - committed) as i32;
            tree.truncate(first as usize);
            tree.extend(nodes.iter().map(|node| node + first));
        }
        tree.extend(tree.len() as i32 - 1..(tokens - committed) as i32 - 1);
        Some(tree)
    }

    fn naive(&self, of: &Shown, query: usize, head: usize, q: &[f32], slopes: Option<&[f32]>) -> (Vec<f64>, f64) {
        let (heads, tokens) = (self.cache.content.heads, of.positions.len());
        let end = of.positions.last().map_or(0, |last| last + 1);
        let tree = of.parents.as_deref();
        let nodes = tree.map_or(0, <[i32]>::len);
        let position = match (nodes + query).checked_sub(of.queries).zip(tree) {
            Some((node, parents)) => end - nodes as i64 + ancestors(parents, node).len() as i64 - 1,
            None => end - of.queries as i64 + query as i64,
        };
        let page_of = |position: i64| position / i64::from(self.shape.block_size);
        let row = |part: usize, head: usize, at: usize| -> Vec<f64> {
            let dim = self.cache.content.dims[part];
            let rows = if page_of(of.positions[at]) < page_of(position) { &of.before } else { &of.rows };
            rows[part][(head * tokens + at) * dim..][..dim].iter().map(|&float| float.into()).collect()
        };
        let naive = Naive {
            positions: &of.positions,
            kv_heads: heads,
            query_heads: heads * GROUP,
            key: &|head, at| row(0, head, at),
            value: &|head, at| row(1, head, at),
            scale: 1. / f64::from((self.cache.content.dims[0] as f32).sqrt()),
            causal: true,
            window: self.shape.window.map(|window| window.0.into()),
            sinks: self.shape.window.map_or(0, |window| window.1.into()),
            start: i64::MIN,
            softcap: None,
            sink_logits: None,
            slopes,
            mask: &|_, _, _| 0.,
            parents: tree,
            first_node: nodes as i64 - of.queries as i64,
        };
        let query_row: Vec<f64> = q.iter().map(|&float| float.into()).collect();
        let (out, sum, _) = naive.attend(&query_row, query, position, head);
        (out, sum)
    }
}

/// A number between -1 and 1.
fn number(seed: u64) -> f32 {
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 31)) & 0xffff) as f32 / 32768. - 1.
}
