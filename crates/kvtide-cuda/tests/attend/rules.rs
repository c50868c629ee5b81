//! The visibility of keys in a call, and the positions of keys and queries: by the definition, one pair at a time.

use kvtide_cuda::AttendSequence;

use crate::call::Call;
use crate::numbers::Numbers;

/// A mask of all pairs, or of what it is broadcast from.
pub struct Mask {
    pub values: Vec<f32>,
    /// Elements from one to the next: sequence, query head, query, key.
    pub strides: [usize; 4],
}

/// The nodes of a draft: how deep each is, and which others each one sees.
struct Tree {
    depths: Vec<u32>,
    seen: Vec<Vec<bool>>,
}

impl Tree {
    /// A tree of nodes with these parents; -1 is the last key before them.
    fn new(parents: &[i32]) -> Self {
        let (mut depths, mut seen) = (Vec::new(), Vec::<Vec<bool>>::new());
        for (node, &parent) in parents.iter().enumerate() {
            let above = usize::try_from(parent).ok();
            depths.push(above.map_or(0, |above| depths[above] + 1));
            let mut row = above.map_or(vec![false; parents.len()], |above| seen[above].clone());
            row[node] = true;
            seen.push(row);
        }
        Tree { depths, seen }
    }

    fn len(&self) -> usize {
        self.depths.len()
    }
}

/// The rules of a call.
pub struct Rules<'c> {
    call: &'c Call,
    /// The tree of each sequence, if it has one.
    trees: Vec<Option<Tree>>,
    /// A position for each query, in no order.
    pub positions: Vec<i64>,
    pub mask: Option<Mask>,
    /// The slope of each head.
    slopes: Option<Vec<f32>>,
}

impl Call {
    fn number(&self, place: usize, of: usize) -> usize {
        let seed = self.seed ^ ((place as u64) << 32) ^ ((of as u64) << 8);
        ((Numbers::new(seed).take(3)[2] + 1.0) * 1e6) as usize
    }

    pub fn rules(&self) -> Rules<'_> {
        let all: usize = self.sequences.iter().map(|of| of.0).sum();
        let most = self.sequences.iter().map(|of| of.1).max().unwrap_or(0) + self.gap[1] + 5;
        Rules {
            call: self,
            trees: (0..self.sequences.len()).map(|sequence| self.tree(sequence)).collect(),
            positions: (0..all).map(|query| (self.number(7, query) % most) as i64).collect(),
            mask: self.mask.map(|broadcast| self.masked(broadcast)),
            slopes: self.has_slopes.then(|| self.slopes()),
        }
    }

    /// The draft of a sequence: its last keys.
    fn tree(&self, sequence: usize) -> Option<Tree> {
        let keys = self.sequences[sequence].1;
        let nodes = if self.has_trees { self.number(1, sequence) % 90.min(keys + 1) } else { 0 };
        // Mostly chains, so that paths are longer than windows.
        let parent = |node: usize| match self.number(20 + sequence, node) {
            any if any % 5 == 0 => (any / 5 % (node + 1)) as i32 - 1,
            _ => node as i32 - 1,
        };
        (nodes > 0).then(|| Tree::new(&(0..nodes).map(parent).collect::<Vec<_>>()))
    }

    /// The first position of a sequence that is no padding.
    pub fn start(&self, sequence: usize) -> i64 {
        if self.has_starts { (self.number(9, sequence) % 20) as i64 } else { i64::MIN }
    }

    fn masked(&self, broadcast: u32) -> Mask {
        let each = self.sequences.first().map_or(0, |of| of.0);
        let keys = self.sequences.iter().map(|of| of.1).max().unwrap_or(0);
        let sizes = [self.sequences.len(), self.query_heads(), each, keys];
        let (mut strides, mut count) = ([0; 4], 1);
        for axis in (0..4).rev().filter(|axis| broadcast >> axis & 1 == 0) {
            (strides[axis], count) = (count, count * sizes[axis]);
        }
        let value = |of: f32| if of < -0.6 { f32::NEG_INFINITY } else { 2.0 * of };
        let values = Numbers::new(self.seed ^ 55).take(count.max(1)).into_iter().map(value).collect();
        Mask { values, strides }
    }

    /// The position of a key that is not a node.
    fn key_position(&self, key: usize) -> i64 {
        let [from, by] = self.gap;
        (if key >= from { key + by } else { key }) as i64
    }

    /// The position after all keys.
    fn end(&self, sequence: usize) -> i64 {
        match self.sequences[sequence].1 {
            0 => self.key_position(0),
            keys => self.key_position(keys - 1) + 1,
        }
    }
}

impl Rules<'_> {
    /// The node that a query is; nothing before a tree.
    fn node(&self, sequence: usize, query: usize) -> Option<usize> {
        let nodes = self.trees[sequence].as_ref()?.len();
        (nodes + query).checked_sub(self.call.sequences[sequence].0)
    }

    /// The position of a node: the end of the keys before the tree plus its depth.
    fn node_position(&self, sequence: usize, tree: &Tree, node: usize) -> i64 {
        self.call.end(sequence) - tree.len() as i64 + i64::from(tree.depths[node])
    }

    /// The position of a query.
    fn position(&self, sequence: usize, query: usize) -> i64 {
        let of = &self.call.sequences;
        if self.call.has_positions {
            let first: usize = of[..sequence].iter().map(|of| of.0).sum();
            return self.positions[first + query];
        }
        match (&self.trees[sequence], self.node(sequence, query)) {
            (Some(tree), Some(node)) => self.node_position(sequence, tree, node),
            _ => self.call.end(sequence) - of[sequence].0 as i64 + query as i64,
        }
    }

    /// The number added to the score of a query and a key; `None` if the key is hidden.
    pub fn added(&self, [sequence, head, query, key]: [usize; 4]) -> Option<f64> {
        let Call { is_causal, window, sinks, .. } = *self.call;
        let at = self.position(sequence, query);
        let tree = self.trees[sequence].as_ref();
        let before = self.call.sequences[sequence].1 - tree.map_or(0, Tree::len);
        let (stands, is_shown) = match tree.filter(|_| key >= before) {
            Some(tree) => {
                let sees = self.node(sequence, query).is_some_and(|node| tree.seen[node][key - before]);
                (self.node_position(sequence, tree, key - before), sees)
            }
            None => (self.call.key_position(key), !is_causal || self.call.key_position(key) <= at),
        };
        let in_window = window.is_none_or(|window| at - stands < window || stands < sinks);
        let start = self.call.start(sequence);
        (is_shown && in_window && stands >= start && at >= start).then(|| {
            let bias = self.slopes.as_ref().map_or(0.0, |slopes| f64::from(slopes[head]) * (stands - at) as f64);
            bias + self.mask.as_ref().map_or(0.0, |mask| {
                let places = [sequence, head, query, key].into_iter().zip(mask.strides).map(|(at, by)| at * by);
                f64::from(mask.values[places.sum::<usize>()])
            })
        })
    }

    /// The depths and the bits of all trees; each sequence is told where its own begin.
    pub fn trees(&self, sequences: &mut [AttendSequence]) -> (Vec<u32>, Vec<u64>) {
        let (mut depths, mut seen) = (Vec::new(), Vec::new());
        for (of, tree) in sequences.iter_mut().zip(&self.trees) {
            let Some(tree) = tree else { continue };
            (of.nodes, of.tree) = (tree.len(), [depths.len(), seen.len()]);
            of.first_node = tree.len() as i64 - of.queries as i64;
            depths.extend(&tree.depths);
            for row in &tree.seen {
                let word = |bits: &[bool]| bits.iter().enumerate().map(|(at, &bit)| u64::from(bit) << at).sum::<u64>();
                seen.extend(row.chunks(64).map(word));
            }
        }
        (depths, seen)
    }
}
