//! The attention mask of a draft tree: what each of its tokens sees.
//!
//! ```text
//!          before   0 1 2      tree: 0 ─┬─ 1
//! node 1   0 0 0    0 0 x               └─ 2          0 sees, x is -inf
//! node 2   0 0 0    0 x 0
//! ```
//!
//! A token sees itself, its ancestors, and what comes before the tree; with a window only what lies at most so many positions
//! back, and sinks. A node's position follows from its depth, not from its slot. O(rows * columns).

use std::ops::Range;
use std::sync::Arc;

use kvtide_core::Tree;
use kvtide_core::paged::Window;

use crate::base::dtype::DType;
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::base::zeroed::zeroed_vec;
use crate::tensor::host::HostTensor;
use crate::tensor::view::View;

/// How far a token sees.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// Positions back, its own counted.
    pub window: u32,
    /// Positions at the start that are always seen.
    pub sinks: u32,
}

impl From<Window> for Sight {
    fn from(window: Window) -> Self {
        Sight { window: window.tokens(), sinks: window.sinks() }
    }
}

impl Sight {
    fn sees(&self, from: u64, other: u64) -> bool {
        other < u64::from(self.sinks) || other + u64::from(self.window) > from
    }
}

/// A tree behind tokens that are no part of it.
#[derive(Debug)]
pub struct TreeMask {
    /// The positions of the tokens before it; the last one is right before the tree.
    pub before: [Range<u64>; 2],
    pub window: Option<Sight>,
    pub tree: Tree,
    /// Nodes at its front that are no part of a draft, so that rows are counted behind them.
    pub tentative: usize,
}

impl TreeMask {
    /// The position of each drafted node from `first` on.
    pub fn positions(&self, first: usize) -> Vec<u64> {
        let root = self.root();
        self.tree.depths().into_iter().skip(self.tentative + first).map(|depth| root + u64::from(depth)).collect()
    }

    /// One row for each drafted node from `first` on, over the tokens before the tree and all nodes.
    pub fn values(&self, first: usize) -> Result<Vec<f32>> {
        let [rows, columns] = self.shape(first);
        let wanted = rows.checked_mul(columns);
        let mut values: Vec<f32> = wanted
            .and_then(zeroed_vec)
            .ok_or_else(|| Budget::process().refusal(wanted.map_or(u64::MAX, |elements| elements as u64 * 4)))?;
        if columns == 0 {
            return Ok(values);
        }
        let (root, depths, parents) = (self.root(), self.tree.depths(), self.tree.parents());
        let position = |node: usize| root + u64::from(depths[node]);
        let before = self.before[0].clone().chain(self.before[1].clone());
        let nodes = columns - self.tree.len();
        for (node, row) in (self.tentative + first..).zip(values.chunks_exact_mut(columns)) {
            let from = position(node);
            let sees = |other: u64| self.window.is_none_or(|sight| sight.sees(from, other));
            for (value, _) in row.iter_mut().zip(before.clone()).filter(|(_, other)| !sees(*other)) {
                *value = f32::NEG_INFINITY;
            }
            row[nodes..].fill(f32::NEG_INFINITY);
            let mut at = Some(node);
            while let Some(node) = at {
                if sees(position(node)) {
                    row[nodes + node] = 0.0;
                }
                at = usize::try_from(parents[node]).ok();
            }
        }
        Ok(values)
    }

    /// The same as a tensor `[rows, columns]`, in memory of `budget`.
    pub fn view(&self, first: usize, budget: &Arc<Budget>) -> Result<View> {
        let shape = self.shape(first);
        // It grows with the square of the draft: refused before any of it is taken.
        let bytes = (shape[0] as u64).saturating_mul(shape[1] as u64).saturating_mul(4);
        let lease = budget.take(bytes)?;
        let values = self.values(first)?;
        drop(lease);
        View::from_host(&HostTensor::new("parents", bytemuck::cast_slice(&values), DType::F32, &shape)?, budget)
    }

    fn shape(&self, first: usize) -> [usize; 2] {
        let before = self.before.iter().map(|run| (run.end - run.start) as usize).sum::<usize>();
        [self.tree.len() - self.tentative - first, before + self.tree.len()]
    }

    fn root(&self) -> u64 {
        self.before.iter().map(|run| run.end).max().unwrap_or(0)
    }
}
