//! The naive cache: every sequence stores the value of each of its tokens in each layer separately.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// The value of a token in a layer; 0 is the value of unwritten memory.
pub type Value = u32;

/// Tokens and values of one sequence.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    pub salt: u8,
    /// For each position its value in each layer, where it was written.
    pub values: Vec<Vec<Option<Value>>>,
    /// The ids of its first tokens, as far as they are known.
    pub ids: Vec<u32>,
    /// The same, as far as they can be stated: those of tokens whose values are what a model computes.
    pub truth: Vec<u32>,
    /// The starts of its open transactions, and the node that each of their tokens follows, counted from there.
    pub drafts: Vec<(usize, Vec<i32>)>,
}

impl Sequence {
    pub fn new(salt: u8) -> Self {
        Sequence { salt, ..Sequence::default() }
    }

    /// Tokens that no transaction can take back.
    pub fn committed(&self) -> usize {
        self.drafts.first().map_or(self.values.len(), |draft| draft.0)
    }

    pub fn truncate(&mut self, length: usize) {
        self.values.truncate(length);
        self.ids.truncate(length);
        self.truth.truncate(length);
    }

    /// Adds tokens; those whose ids are known from the start on have the values that a model would give them.
    pub fn append(
        &mut self,
        tokens: &[u32],
        known: bool,
        layers: u32,
        other: impl Fn(u32, u32) -> Value,
    ) -> Vec<Vec<Value>> {
        let mut values = Vec::new();
        for (at, &token) in tokens.iter().enumerate() {
            let pure = self.truth.len() == self.values.len();
            if known && self.ids.len() == self.values.len() {
                self.ids.push(token);
            }
            if pure {
                self.truth.push(token);
            }
            let value = |layer| if pure { of_ids(self.salt, &self.truth, layer) } else { other(layer, at as u32) };
            let of_token: Vec<Value> = (0..layers).map(value).collect();
            self.values.push(of_token.iter().copied().map(Some).collect());
            values.push(of_token);
        }
        values
    }

    /// Adds tokens to the innermost transaction: a chain, or nodes that follow these ones of it.
    pub fn append_nodes(&mut self, tokens: &[u32], parents: Option<&[i32]>, layers: u32) -> Vec<Vec<Value>> {
        let mut values = Vec::new();
        let pure = self.ids.len() == self.values.len();
        for (at, &token) in tokens.iter().enumerate() {
            let (base, nodes) = self.drafts.last().unwrap().clone();
            let parent = parents.map_or(nodes.len() as i32 - 1, |parents| parents[at]);
            let path = self.path(base, &nodes, parent).chain([token]).collect::<Vec<_>>();
            let of_token: Vec<Value> =
                (0..layers).map(|layer| of_ids(if pure { self.salt } else { 99 }, &path, layer)).collect();
            if pure {
                self.ids.push(token);
            }
            // A tree's tokens do not follow each other.
            if pure && parents.is_none() && self.truth.len() == self.values.len() {
                self.truth.push(token);
            }
            self.values.push(of_token.iter().copied().map(Some).collect());
            self.drafts.last_mut().unwrap().1.push(parent);
            values.push(of_token);
        }
        values
    }

    /// The tokens that a node sees, those of the tree that it hangs in alone.
    fn path(&self, base: usize, nodes: &[i32], parent: i32) -> impl Iterator<Item = u32> + use<> {
        let id = |at: usize| self.ids.get(at).copied().unwrap_or(7);
        let mut path: Vec<u32> = Vec::new();
        let mut at = parent;
        while at >= 0 {
            path.push(id(base + at as usize));
            at = nodes[at as usize];
        }
        // The transactions below may be trees as well: what is before this one is seen whole only where they are chains.
        path.extend((0..base).rev().map(id));
        path.into_iter().rev()
    }

    /// The position of a token: behind the one that it follows.
    pub fn position(&self, at: usize) -> usize {
        let Some((base, nodes)) = self.drafts.iter().rev().find(|draft| draft.0 <= at) else { return at };
        let parent = nodes[at - base];
        let before = if parent < 0 { base.checked_sub(1) } else { Some(base + parent as usize) };
        match before.filter(|&before| before >= self.committed()) {
            Some(before) => self.position(before) + 1,
            None => self.committed(),
        }
    }

    /// Tokens of a transaction's chain, where one is open.
    pub fn add_chain(&mut self, tokens: usize) {
        if let Some((_, nodes)) = self.drafts.last_mut() {
            let first = nodes.len() as i32;
            nodes.extend((0..tokens as i32).map(|at| first + at - 1));
        }
    }

    /// The tokens of a transaction that has ended are those of the one below; without one, the ids of a tree's tokens are those
    /// of no prompt.
    pub fn end_draft(&mut self, kept: &[i32]) {
        match self.drafts.last_mut() {
            Some((_, outer)) => {
                let shift = outer.len() as i32;
                outer.extend(kept.iter().map(|parent| parent + shift));
            }
            None => {
                let base = self.values.len() - kept.len();
                let chain = kept.iter().zip(-1..).take_while(|(parent, before)| **parent == *before).count();
                self.ids.truncate(base + chain);
                self.truth.truncate(base + chain);
                // Nodes of a tree get no truth when they are appended; in a chain that is kept they follow each other.
                if self.truth.len() < self.ids.len() {
                    self.truth.clone_from(&self.ids);
                }
            }
        }
    }

    /// The same tokens, all of them committed; the ids of those that were only tried are of no prompt.
    pub fn copied(&self) -> Sequence {
        let mut copy = Sequence { drafts: Vec::new(), ..self.clone() };
        copy.ids.truncate(self.committed());
        copy.truth.truncate(self.committed());
        copy
    }

    /// Writes tokens of one layer.
    pub fn write(&mut self, layer: u32, position: usize, values: &[Value], layers: u32) {
        if values.is_empty() {
            return;
        }
        self.ids.truncate(position);
        self.truth.truncate(position);
        let end = self.values.len().max(position + values.len());
        self.values.resize(end, vec![None; layers as usize]);
        for (at, &value) in values.iter().enumerate() {
            self.values[position + at][layer as usize] = Some(value);
        }
    }
}

/// The value that a model computes for the last of these tokens.
pub fn of_ids(salt: u8, ids: &[u32], layer: u32) -> Value {
    let mut hasher = DefaultHasher::new();
    (salt, ids, layer).hash(&mut hasher);
    (hasher.finish() as Value >> 1) | 1 << 31
}
