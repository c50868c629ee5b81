//! The naive cache: every token of every sequence has one number, from which its rows in each layer follow.

use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription};

/// A token's number.
pub type Id = u64;

/// Tokens of one sequence, and where its open transactions begin.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    pub tokens: Vec<Id>,
    /// The first token of each, and the node that each of its tokens follows, counted from there.
    pub drafts: Vec<(usize, Vec<i32>)>,
}

impl Sequence {
    /// The tree behind what is committed, with tokens to come: counted from there, their parents as an append would have them.
    pub fn tree(&self, more: usize, parents: Option<&[i32]>) -> Option<Vec<i32>> {
        let mut tree: Vec<i32> = Vec::new();
        for (base, nodes) in &self.drafts {
            let first = (base - self.committed()) as i32;
            tree.truncate(first as usize);
            tree.extend(nodes.iter().map(|node| node + first));
        }
        let first = self.drafts.last().map(|draft| (draft.0 - self.committed()) as i32)?;
        for at in 0..more {
            tree.push(parents.map_or(tree.len() as i32 - 1, |parents| parents[at] + first));
        }
        Some(tree)
    }

    pub fn committed(&self) -> usize {
        self.drafts.first().map_or(self.tokens.len(), |draft| draft.0)
    }

    /// The same tokens, all of them committed.
    pub fn copied(&self) -> Sequence {
        Sequence { tokens: self.tokens.clone(), drafts: Vec::new() }
    }

    /// Adds tokens, with the nodes that they follow or as a chain.
    pub fn append(&mut self, tokens: &[Id], parents: Option<&[i32]>) {
        self.tokens.extend(tokens);
        if let Some((_, nodes)) = self.drafts.last_mut() {
            for at in 0..tokens.len() {
                let before = nodes.len() as i32 - 1;
                nodes.push(parents.map_or(before, |parents| parents[at]));
            }
        }
    }

    /// Ends the innermost transaction with these tokens of it, which follow these.
    pub fn end(&mut self, tokens: &[Id], parents: &[i32]) {
        let (base, _) = self.drafts.pop().expect("an open transaction");
        self.tokens.truncate(base);
        self.tokens.extend(tokens);
        if let Some((_, outer)) = self.drafts.last_mut() {
            let shift = outer.len() as i32;
            outer.extend(parents.iter().map(|parent| parent + shift));
        }
    }
}

/// The layer whose keys and values a layer reads.
pub fn source(model: &ModelDescription, layer: u32) -> u32 {
    match model.layers()[layer as usize].kind {
        LayerKind::SharedWith(other) => source(model, other),
        _ => layer,
    }
}

/// The numbers of a token's row in a head of K (part 0) or V.
pub fn row(layer: &LayerDescription, number: u32, part: usize, id: Id, head: usize) -> Vec<f32> {
    let place = |at: usize| mix((id << 24) ^ (u64::from(number) << 16) ^ ((head * 64 + at) << 1 | part) as u64);
    let dim = if part == 0 { layer.head_dim } else { layer.value_head_dim };
    (0..dim as usize).map(|at| (place(at) & 0xffff) as f32 / 32768. - 1.).collect()
}

/// Rows of tokens, `[heads, tokens, dim]`.
pub fn rows(layer: &LayerDescription, number: u32, part: usize, ids: &[Id]) -> Vec<f32> {
    let heads = 0..layer.num_kv_heads as usize;
    heads.flat_map(|head| ids.iter().flat_map(move |&id| row(layer, number, part, id, head))).collect()
}

/// Numbers that look random.
pub fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
