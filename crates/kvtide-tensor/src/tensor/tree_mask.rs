//! The attention mask of a draft tree: the tokens that each node attends to.
//!
//! ```text
//!          before   0 1 2      tree: 0 ─┬─ 1
//! node 1   0 0 0    0 0 x               └─ 2          0 sees, x is -inf
//! node 2   0 0 0    0 x 0
//! ```
//!
//! A node attends to itself, its ancestors, and the tokens before the tree up to the token that its branch follows. With a
//! window, it attends only to the last `window` positions and the sinks. A node's position follows from its depth, not from
//! its slot. O(rows * columns).

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

/// The positions that a token attends to.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// The number of positions back, including its own.
    pub window: u32,
    /// The number of positions at the start that are always visible.
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

/// A draft tree after tokens that do not belong to it.
#[derive(Debug)]
pub struct TreeMask {
    /// The positions of the tokens before the tree; the last one is directly before the tree.
    pub before: [Range<u64>; 2],
    pub window: Option<Sight>,
    pub tree: Tree,
    /// The number of nodes at its front that belong to no draft; rows are counted after them.
    pub tentative: usize,
}

impl TreeMask {
    /// The positions of the drafted nodes from `first` on.
    pub fn positions(&self, first: usize) -> Vec<u64> {
        let root = self.root();
        self.tree
            .depths()
            .into_iter()
            .skip(self.tentative + first)
            .map(|depth| root.saturating_add_signed(depth))
            .collect()
    }

    /// The rows of the drafted nodes from `first` on; columns are the tokens before the tree, then all nodes.
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
        let position = |node: usize| root.saturating_add_signed(depths[node]);
        let before = self.before[0].clone().chain(self.before[1].clone());
        let nodes = columns - self.tree.len();
        for (node, row) in (self.tentative + first..).zip(values.chunks_exact_mut(columns)) {
            let from = position(node);
            let sees = |other: u64| self.window.is_none_or(|sight| sight.sees(from, other));
            row[nodes..].fill(f32::NEG_INFINITY);
            // Follows the ancestors to the topmost one; the tokens before that one's position are visible.
            let (mut at, mut branch) = (Some(node), root);
            while let Some(node) = at {
                if sees(position(node)) {
                    row[nodes + node] = 0.0;
                }
                (at, branch) = (usize::try_from(parents[node]).ok(), position(node));
            }
            let hidden = |other: &u64| *other >= branch || !sees(*other);
            for (value, _) in row.iter_mut().zip(before.clone()).filter(|(_, other)| hidden(other)) {
                *value = f32::NEG_INFINITY;
            }
        }
        Ok(values)
    }

    /// The mask as a tensor `[rows, columns]`, in memory of `budget`.
    pub fn view(&self, first: usize, budget: &Arc<Budget>) -> Result<View> {
        let shape = self.shape(first);
        // The size grows with the square of the draft, so the budget is checked before anything is allocated.
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
