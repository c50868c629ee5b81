//! The trees that sequences end with, as attention asks for them.
//!
//! ```text
//! [ committed | 0 1 2 | 3 4 ]     nodes of open transactions, then those of an open step
//! ```
//!
//! Invariant: a node of a step counts in the tree of its sequence, behind all that was drafted. O(nodes), and O(1) where none was
//! given a parent.

use super::sequences::PagedPlanner;
use crate::error::Result;
use crate::tree::Tree;

impl PagedPlanner {
    /// The tree that a sequence's last tokens are, those of an open step among them; nothing where each follows the one before.
    pub fn tree(&self, sequence: u64) -> Result<Option<Tree>> {
        let of = self.sequence(sequence)?;
        let parents = of.stepping.map(|_| &of.step_parents).filter(|parents| !parents.is_empty());
        if parents.is_none() && !of.drafts.is_branched() {
            return Ok(None);
        }
        let mut tree = Tree::joined([of.drafts.tree()])?;
        let tokens = of.end() - of.content.length;
        tree.reserve(tokens)?;
        match parents {
            Some(parents) => tree.extend_from(of.drafts.start() as usize, parents),
            None => tree.extend_chain(tokens),
        }
        Ok(Some(tree).filter(|tree| !tree.is_chain()))
    }
}
