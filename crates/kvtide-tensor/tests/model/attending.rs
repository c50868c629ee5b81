//! Attention from the layers of a step, compared with its definition.

use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription};
use kvtide_tensor::attention::{AttendOptions, attend};
use kvtide_tensor::buffers::SequenceLayout;
use kvtide_tensor::{DType, HostTensor, Kv, PagedStep, View};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::model::{Id, Sequence, mix, row, source};
use crate::oracle::{Naive, ancestors, slopes};
use crate::subject::{Blocks, append, cache, floats};
use crate::world::World;

impl World {
    /// Attention of a step from all layers that read this one.
    pub(crate) fn attend_from(
        &mut self,
        id: u64,
        own: u32,
        step: &PagedStep,
        ids: &[Id],
        parents: Option<&[i32]>,
    ) -> Result<(), TestCaseError> {
        let all: Vec<Id> = self.sequences[&id].tokens.iter().chain(ids).copied().collect();
        let tree = self.sequences[&id].tree(ids.len(), parents);
        for layer in 0..self.cache.model().layers().len() as u32 {
            if source(self.cache.model(), layer) != own {
                continue;
            }
            let of = self.cache.model().layers()[own as usize];
            let (heads, dim) = (2 * of.num_kv_heads as usize, of.head_dim as usize);
            let q: Vec<f32> = (0..ids.len() * heads * dim)
                .map(|at| (mix(self.next << 20 | u64::from(layer) << 12 | at as u64) & 0xffff) as f32 / 32768. - 1.)
                .collect();
            let bytes = floats(&q);
            let host = HostTensor::new("q", &bytes, DType::F32, &[ids.len(), heads, dim])?;
            let slopes = slopes(heads, 4);
            let options = AttendOptions { alibi_slopes: Some(&slopes), ..Default::default() };
            let attended = self.cache.attend_layer(step, layer, host, &options)?;
            prop_assert_eq!(attended.out.shape(), &[ids.len(), heads, dim][..]);
            check_layer(&of, own, &all, (&q, Some(&slopes)), tree.as_deref(), &attended.out.to_f32()?)?;
        }
        Ok(())
    }
}

/// Attention over what a layer shows: as its pages, and as its tensors, whichever way it is kept.
impl World {
    /// The last token asks, by the layer's window.
    pub(crate) fn attend_to_kv(&mut self, id: u64, of: &Sequence, layer: u32) -> Result<(), TestCaseError> {
        if !of.drafts.is_empty() || of.tokens.is_empty() {
            return Ok(());
        }
        let description = self.cache.model().layers()[source(self.cache.model(), layer) as usize];
        let kv = self.cache.kv(id, layer)?;
        let gap = self.gap(of, kv.k.shape()[2], description.kind)?;
        if let LayerKind::Sliding { window, .. } = description.kind
            && !gap.is_empty()
            && gap.end + window as usize > of.tokens.len()
        {
            // Blocks keep what tokens to come see: what the last one sees has left them after a truncation.
            let done = self.attend_to((id, layer), (1, None), &of.tokens, &AttendOptions::default());
            prop_assert!(done.is_err_and(|refused| refused.to_string().contains("have left the cache")));
            return Ok(());
        }
        self.attend_to((id, layer), (1, None), &of.tokens, &AttendOptions::default())
    }

    /// The nodes of the innermost transaction ask, by their mask, which has a column for each token that is shown.
    pub(crate) fn attend_by_mask(
        &mut self,
        id: u64,
        of: &Sequence,
        layer: u32,
        mask: &View,
    ) -> Result<(), TestCaseError> {
        let (rows, columns) = (mask.shape()[0], mask.shape()[1]);
        let kv = self.cache.kv(id, layer)?;
        prop_assert_eq!(kv.k.shape()[2], columns, "layer {} shows other tokens than its mask", layer);
        let (bytes, tree) = (mask.to_bytes()?, of.tree(0, None));
        let mask = HostTensor::new("mask", &bytes, DType::F32, &[rows, columns])?;
        let is_chain = tree.iter().flatten().enumerate().all(|(node, &parent)| parent == node as i32 - 1);
        let options = AttendOptions { causal: false, mask: Some(mask), ..Default::default() };
        // For a chain, the cache's window applies, and queries beyond it may not be made.
        self.attend_to((id, layer), (rows, tree.as_deref()), &of.tokens, &options)?;
        let options = AttendOptions { tree: tree.as_deref(), mask: None, ..options };
        let ends = [0, tree.as_ref().map_or(0, Vec::len) as i32];
        let options = AttendOptions { tree_offsets: tree.is_some().then_some(&ends), ..options };
        if is_chain {
            return self.attend_to((id, layer), (rows, tree.as_deref()), &of.tokens, &AttendOptions::default());
        }
        self.attend_to((id, layer), (rows, tree.as_deref()), &of.tokens, &options)
    }

    /// Holds what the last `queries` tokens see in what a layer shows against attention over all tokens.
    fn attend_to(
        &mut self,
        (id, layer): (u64, u32),
        (queries, tree): (usize, Option<&[i32]>),
        all: &[Id],
        options: &AttendOptions<'_>,
    ) -> Result<(), TestCaseError> {
        let own = source(self.cache.model(), layer);
        let of = self.cache.model().layers()[own as usize];
        let (heads, dim) = (2 * of.num_kv_heads as usize, of.head_dim as usize);
        let q: Vec<f32> = (0..queries * heads * dim)
            .map(|at| (mix(u64::from(layer) << 12 | at as u64) & 0xffff) as f32 / 32768. - 1.)
            .collect();
        let kv = self.cache.kv(id, layer)?;
        let bytes = floats(&q);
        // Tokens of all heads, one behind the other, are what a layout of this name is.
        let host = HostTensor::new("q", &bytes, DType::F32, &[1, queries, heads, dim])?;
        let host = host.with_layout("q", SequenceLayout::Bshd)?;
        let out = attend(host, &kv, options)?.out.to_f32()?;
        let at = |query: usize, head: usize| (head * queries + query) * dim;
        let rows = (0..queries).flat_map(|query| (0..heads).map(move |head| (query, head)));
        let out: Vec<f32> = rows.flat_map(|(query, head)| out[at(query, head)..][..dim].to_vec()).collect();
        check_layer(&of, own, all, (&q, options.alibi_slopes), tree, &out)
    }
}

/// Holds what a layer answered against attention over all tokens, the last ones of which are the queries'.
fn check_layer(
    of: &LayerDescription,
    own: u32,
    all: &[Id],
    (q, slopes): (&[f32], Option<&[f32]>),
    parents: Option<&[i32]>,
    out: &[f32],
) -> Result<(), TestCaseError> {
    let (heads, dim) = (2 * of.num_kv_heads as usize, of.head_dim as usize);
    let queries = q.len() / (heads * dim);
    let positions: Vec<i64> = (0..all.len() as i64).collect();
    let floats = |part: usize, head: usize, at: usize| -> Vec<f64> {
        row(of, own, part, all[at], head).into_iter().map(f64::from).collect()
    };
    let (window, sinks) = match of.kind {
        LayerKind::Sliding { window, sinks } => (Some(window.into()), sinks.into()),
        _ => (None, 0),
    };
    let naive = Naive {
        positions: &positions,
        kv_heads: of.num_kv_heads as usize,
        query_heads: heads,
        key: &|head, at| floats(0, head, at),
        value: &|head, at| floats(1, head, at),
        scale: 1. / f64::from((dim as f32).sqrt()),
        causal: true,
        window,
        sinks,
        start: i64::MIN,
        softcap: None,
        sink_logits: None,
        slopes,
        mask: &|_, _, _| 0.,
        parents,
        first_node: parents.map_or(0, |parents| parents.len() as i64 - queries as i64),
    };
    for (query, head) in (0..queries).flat_map(|query| (0..heads).map(move |head| (query, head))) {
        let position = parents.map_or(all.len() - queries + query, |parents| {
            all.len() - parents.len() + ancestors(parents, parents.len() - queries + query).len() - 1
        });
        let at = (query * heads + head) * dim;
        let asked: Vec<f64> = q[at..at + dim].iter().map(|&float| float.into()).collect();
        let (expected, ..) = naive.attend(&asked, query, position as i64, head);
        let off = expected.iter().zip(&out[at..]).map(|(a, b)| (a - f64::from(*b)).abs());
        let off = off.fold(0., |most: f64, one| if one.is_nan() || one > most { one } else { most });
        prop_assert!(off < 1e-5, "query {} of layer {} is off by {}", query, own, off);
    }
    Ok(())
}

#[test]
fn a_query_behind_a_gap_that_nothing_follows_is_refused() {
    let layer = LayerDescription::full(1, 2).with_kind(LayerKind::Sliding { window: 1, sinks: 1 });
    let model = ModelDescription::new(vec![layer]).unwrap();
    let mut cache = cache(model, Blocks(3, 3));
    let id = cache.create_sequence().unwrap();
    for ids in [&[1][..], &[2, 3, 4, 5, 6, 7], &[8], &[9, 10]] {
        append(&mut cache, id, ids).unwrap();
    }
    // The block with the last token that is left has left the window.
    cache.truncate(id, 9).unwrap();
    let kv = cache.kv(id, 0).unwrap();
    assert_eq!((kv.k.shape()[2], kv.k.key_positions()), (3, &[0][..]));
    let bytes = floats(&[1.; 2]);
    let q = || HostTensor::new("q", &bytes, DType::F32, &[1, 1, 1, 2]).unwrap();
    let refused = attend(q(), &kv, &AttendOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("the query at 8 of sequence 0: tokens before 9 have left the cache"), "{refused}");
    // A part of the sinks ends where it ends: its last token asks.
    let part = Kv { k: kv.k.narrow(2, 0, 2).unwrap(), v: kv.v.narrow(2, 0, 2).unwrap() };
    attend(q(), &part, &AttendOptions::default()).unwrap();
}
