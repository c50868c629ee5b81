//! A draft tree: tentative tokens, and for each the token that it follows.
//!
//! ```text
//! committed ... c ─┬─ 0 ── 1 ── 3       parents = [-1, 0, 0, 1]
//!                  │   └── 2            depth   = [ 0, 1, 1, 2]
//! ```
//!
//! Nodes number the tentative tokens from 0. A parent comes before its children; -1 is the last committed token. A
//! commit into the tree can leave nodes that follow an earlier committed token: -2 is the one before the last, and so
//! on. These nodes keep their position and their visible ancestors, but can no longer be accepted.

use crate::error::{Error, Result, counted};

/// The parents of the tentative tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    parents: Vec<i32>,
}

impl Tree {
    /// The parent of a token that follows the last committed one.
    pub const ROOT: i32 = -1;

    /// Returns a tree of these parents, or an error if they are invalid.
    pub fn new(parents: &[i32]) -> Result<Self> {
        let mut tree = Tree::default();
        tree.extend(parents)?;
        Ok(tree)
    }

    /// Returns the tree behind `committed` tokens; its nodes may follow any of them. Returns an error if the parents
    /// are invalid.
    pub fn behind(committed: u32, parents: &[i32]) -> Result<Self> {
        let first = -1 - i64::from(committed);
        for (node, &parent) in (0..).zip(parents) {
            if !(first..node).contains(&parent.into()) {
                let expected = format!("from {first} to {} at node {node}: a parent comes before its child", node - 1);
                return Err(Error::argument("parents", parent, expected));
            }
        }
        let mut tree = Tree::default();
        let count = parents.len() as u64;
        let refused = |_| Error::OutOfMemory { count, what: "tentative tokens" };
        tree.parents.try_reserve_exact(parents.len()).map_err(refused)?;
        tree.parents.extend_from_slice(parents);
        Ok(tree)
    }

    /// Joins the nodes of several trees, numbered consecutively.
    pub fn joined<'a>(trees: impl IntoIterator<Item = &'a Tree>) -> Result<Self> {
        let mut joined = Tree::default();
        for tree in trees {
            joined.reserve(tree.len() as u32)?;
            joined.extend_from(joined.len(), &tree.parents);
        }
        Ok(joined)
    }

    /// Number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parents.len()
    }

    /// True when there are no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parents.is_empty()
    }

    /// True if each node follows the one before, and the first node follows the last committed token.
    #[must_use]
    pub fn is_chain(&self) -> bool {
        self.parents.iter().zip(-1..).all(|(parent, before)| *parent == before)
    }

    /// Checks that `parents` can follow the present nodes. Parents count from node `first` on; -1 is the token right
    /// before it.
    pub(crate) fn check_from(&self, first: usize, parents: &[i32]) -> Result<()> {
        for (place, &parent) in parents.iter().enumerate() {
            let node = self.parents.len() - first + place;
            if parent < Tree::ROOT || parent >= node as i32 {
                let expected =
                    format!("from -1 to {} at node {node}: a parent comes before its child", node as i64 - 1);
                return Err(Error::argument("parents", parent, expected));
            }
        }
        Ok(())
    }

    /// Checks that `tokens` tokens can follow the present nodes: a chain, or nodes with these parents, counted from
    /// node `first` on.
    pub fn check_tokens(&self, first: usize, tokens: u32, parents: Option<&[i32]>) -> Result<()> {
        match parents {
            Some(parents) if parents.len() != tokens as usize => {
                let expected = format!("one for each of {}", counted(tokens.into(), "token"));
                Err(Error::argument("parents", counted(parents.len() as u64, "parent"), expected))
            }
            Some(parents) => self.check_from(first, parents),
            None => Ok(()),
        }
    }

    /// Reserves memory for `nodes` more nodes, so that adding them cannot fail.
    pub fn reserve(&mut self, nodes: u32) -> Result<()> {
        let count = self.parents.len() as u64 + u64::from(nodes);
        self.parents.try_reserve(nodes as usize).map_err(|_| Error::OutOfMemory { count, what: "tentative tokens" })
    }

    /// Adds nodes with these parents.
    pub fn extend(&mut self, parents: &[i32]) -> Result<()> {
        self.check_from(0, parents)?;
        self.parents.extend_from_slice(parents);
        Ok(())
    }

    /// Adds nodes with these checked parents, counted from node `first` on.
    pub(crate) fn extend_from(&mut self, first: usize, parents: &[i32]) {
        self.parents.extend(parents.iter().map(|&parent| parent + first as i32));
    }

    /// Adds `tokens` nodes, each the child of the one before.
    pub(crate) fn extend_chain(&mut self, tokens: u32) {
        let first = self.parents.len() as i32;
        self.parents.extend((first - 1)..(first - 1 + tokens as i32));
    }

    /// Removes the first `nodes` nodes, which are committed now.
    pub fn commit(&mut self, nodes: usize) {
        self.parents.drain(..nodes);
        for parent in &mut self.parents {
            *parent -= nodes as i32;
        }
    }

    /// Removes all nodes.
    pub fn clear(&mut self) {
        self.parents.clear();
    }

    /// Removes all but the first `nodes` nodes.
    pub fn truncate(&mut self, nodes: usize) {
        self.parents.truncate(nodes);
    }

    /// The parents of the nodes, in order.
    #[must_use]
    pub fn parents(&self) -> &[i32] {
        &self.parents
    }

    /// Checks that `path` leads from the last committed token to one child after another.
    pub fn check_path(&self, path: &[u32]) -> Result<()> {
        self.check_path_from(0, path)
    }

    /// Like [`check_path`](Self::check_path), with nodes counted from node `first` on, and a path that starts at the
    /// token right before it.
    pub(crate) fn check_path_from(&self, first: usize, path: &[u32]) -> Result<()> {
        let mut before = first as i64 - 1;
        for (place, &node) in path.iter().enumerate() {
            let refused = |reason| Err(Error::InvalidPath { place: place as u64, node: node.into(), reason });
            let at = first + node as usize;
            match self.parents.get(at) {
                None => return refused("there is no such tentative token"),
                Some(&parent) if i64::from(parent) != before => {
                    return refused("it is not a child of the node before it");
                }
                Some(_) => before = at as i64,
            }
        }
        Ok(())
    }

    /// The distance of a node's position from the first position behind the committed tokens: negative for nodes that
    /// follow an earlier committed token. O(its ancestors).
    #[must_use]
    pub fn depth(&self, node: usize) -> i64 {
        let (mut at, mut depth) = (self.parents[node], 0);
        while let Ok(parent) = usize::try_from(at) {
            (at, depth) = (self.parents[parent], depth + 1);
        }
        depth + 1 + i64::from(at)
    }

    /// The [`Tree::depth`] of each node.
    #[must_use]
    pub fn depths(&self) -> Vec<i64> {
        let mut depths: Vec<i64> = Vec::with_capacity(self.parents.len());
        for &parent in &self.parents {
            depths.push(usize::try_from(parent).map_or(1 + i64::from(parent), |parent| depths[parent] + 1));
        }
        depths
    }

    /// True if `other` is `node` itself or one of its ancestors.
    #[must_use]
    pub fn sees(&self, node: usize, other: usize) -> bool {
        let mut at = node;
        while at > other {
            match usize::try_from(self.parents[at]) {
                Ok(parent) => at = parent,
                Err(_) => return false,
            }
        }
        at == other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;

    #[test]
    fn a_parent_comes_before_its_child() {
        assert_eq!(Tree::new(&[0]).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(Tree::new(&[-1, 1]).unwrap_err().code(), Code::InvalidArgument);
        assert_eq!(Tree::new(&[-2]).unwrap_err().code(), Code::InvalidArgument);
        assert!(Tree::new(&[-1, -1, 0, 2]).is_ok());
    }

    #[test]
    fn a_path_goes_from_the_root_child_by_child() {
        let tree = Tree::new(&[-1, 0, 0, 1]).unwrap();
        for path in [&[][..], &[0], &[0, 1], &[0, 1, 3], &[0, 2]] {
            assert!(tree.check_path(path).is_ok(), "{path:?}");
        }
        for path in [&[1][..], &[0, 3], &[0, 1, 2], &[0, 0], &[1, 0], &[4]] {
            assert_eq!(tree.check_path(path).unwrap_err().code(), Code::InvalidPath, "{path:?}");
        }
    }

    #[test]
    fn depths_and_sight_follow_the_parents() {
        let tree = Tree::new(&[-1, 0, 0, 1]).unwrap();
        assert_eq!(tree.depths(), [0, 1, 1, 2]);
        assert!(tree.depths().iter().enumerate().all(|(node, &depth)| tree.depth(node) == depth));
        let seen = |node| (0..4).filter(|&other| tree.sees(node, other)).collect::<Vec<_>>();
        assert_eq!((seen(0), seen(1), seen(2), seen(3)), (vec![0], vec![0, 1], vec![0, 2], vec![0, 1, 3]));
    }

    #[test]
    fn nodes_left_after_a_commit_count_from_the_new_end() {
        let mut tree = Tree::new(&[-1, 0, 0, 1]).unwrap();
        tree.commit(2);
        assert_eq!((tree.parents(), tree.depths()), (&[-2, Tree::ROOT][..], vec![-1, 0]));
        assert!(tree.check_path(&[1]).is_ok());
        assert_eq!(tree.check_path(&[0]).unwrap_err().code(), Code::InvalidPath);
        tree.commit(1);
        assert_eq!((tree.parents(), tree.depth(0)), (&[-2][..], -1));
    }

    #[test]
    fn a_tree_behind_committed_tokens_may_follow_any_of_them() {
        let tree = Tree::behind(2, &[-1, -3, 1, -2]).unwrap();
        assert_eq!(tree.depths(), [0, -2, -1, -1]);
        assert!((0..4).all(|node| tree.depth(node) == tree.depths()[node]));
        for parents in [&[-4][..], &[0], &[-1, 1], &[i32::MIN]] {
            assert_eq!(Tree::behind(2, parents).unwrap_err().code(), Code::InvalidArgument, "{parents:?}");
        }
    }
}
