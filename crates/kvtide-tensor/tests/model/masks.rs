//! Masks and positions of innermost transactions, node by node.

use kvtide_core::Code;
use kvtide_core::model::LayerKind;
use kvtide_tensor::runtime::Budget;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::model::{Sequence, source};
use crate::subject::code;
use crate::world::World;

impl World {
    pub(crate) fn check_masks(&mut self) -> Result<(), TestCaseError> {
        for id in self.sequences.keys().copied().collect::<Vec<_>>() {
            let Some((&innermost, outer)) = self.open.get(&id).and_then(|open| open.split_last()) else { continue };
            if let Some(&outer) = outer.last() {
                prop_assert_eq!(code(self.cache.draft_positions(id, outer)), Err(Code::TransactionOpen));
            }
            let of = self.sequences[&id].clone();
            let all = positions(&of);
            let own = of.drafts.last().expect("an open transaction").1.len();
            prop_assert_eq!(&self.cache.draft_positions(id, innermost)?, &all[all.len() - own..]);
            for layer in 0..self.cache.model().layers().len() as u32 {
                let mask = self.cache.draft_mask(id, innermost, layer, &Budget::process())?;
                let before = self.before(id, &of, layer)?;
                self.attend_by_mask(id, &of, layer, &mask)?;
                prop_assert_eq!(mask.shape(), &[own, before.len() + all.len()][..]);
                let sees: Vec<bool> = mask.to_f32()?.into_iter().map(|value| value == 0.).collect();
                prop_assert_eq!(sees, seen(&of, self.cache.model().kind(layer), &before, own), "layer {}", layer);
            }
        }
        Ok(())
    }

    /// The positions of what a layer keeps before the transactions.
    fn before(&mut self, id: u64, of: &Sequence, layer: u32) -> Result<Vec<u64>, TestCaseError> {
        let committed = of.committed();
        let own = source(self.cache.model(), layer);
        let kind = self.cache.model().layers()[own as usize].kind;
        let kept = self.cache.kv(id, layer)?.k.shape()[2];
        let gap = self.gap(of, kept, kind)?;
        Ok((0..committed).filter(|at| !gap.contains(at)).map(|at| at as u64).collect())
    }
}

/// For each node of all transactions the one that it follows.
fn parents(of: &Sequence) -> Vec<i32> {
    let mut all: Vec<i32> = Vec::new();
    for (_, nodes) in &of.drafts {
        let first = all.len() as i32;
        all.extend(nodes.iter().map(|parent| parent + first));
    }
    all
}

fn ancestors(parents: &[i32], node: i32) -> Vec<i32> {
    std::iter::successors((node >= 0).then_some(node), |&node| {
        let parent = parents[node as usize];
        (parent >= 0).then_some(parent)
    })
    .collect()
}

fn positions(of: &Sequence) -> Vec<u64> {
    let parents = parents(of);
    let depth = |node: usize| ancestors(&parents, node as i32).len() as u64 - 1;
    (0..parents.len()).map(|node| of.committed() as u64 + depth(node)).collect()
}

/// The mask of the last `own` nodes over these positions, and over all nodes.
fn seen(of: &Sequence, kind: LayerKind, before: &[u64], own: usize) -> Vec<bool> {
    let (parents, positions) = (parents(of), positions(of));
    let sees = |from: u64, other: u64| match kind {
        LayerKind::Sliding { window, sinks } => other < u64::from(sinks) || other + u64::from(window) > from,
        _ => true,
    };
    let row = |node: usize| {
        let ancestors = ancestors(&parents, node as i32);
        let nodes = (0..parents.len())
            .map(move |other| ancestors.contains(&(other as i32)).then_some(other))
            .map(|other| other.is_some_and(|other| sees(positions[node], positions[other])))
            .collect::<Vec<_>>();
        before.iter().map(|&other| sees(positions[node], other)).chain(nodes).collect::<Vec<_>>()
    };
    (parents.len() - own..parents.len()).flat_map(row).collect()
}
