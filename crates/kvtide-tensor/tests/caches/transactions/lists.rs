//! Lists of every token, committed and drafted, and the tokens that a cache shows.

use kvtide_core::TransactionId;

use crate::rotating::model::Model;
use crate::tokens::Id;

/// One open transaction.
pub struct Draft {
    pub id: TransactionId,
    /// Tokens, and their parents counted from the first of them.
    pub nodes: Vec<(Id, i64)>,
    pub branched: bool,
    /// The result of the last append before it.
    pub last: Option<Vec<Id>>,
}

/// Every token there is.
pub struct Lists {
    pub window: usize,
    pub sinks: usize,
    pub tokens: Vec<Id>,
    pub open: Vec<Draft>,
    /// The result of the last append.
    pub last: Option<Vec<Id>>,
    pub next: Id,
}

impl Lists {
    /// The window over these tokens.
    pub fn model(&self, tokens: Vec<Id>) -> Model {
        Model { window: self.window, sinks: self.sinks, tokens }
    }

    pub fn everything(&self) -> Vec<Id> {
        let drafted = self.open.iter().flat_map(|draft| draft.nodes.iter().map(|node| node.0));
        self.tokens.iter().copied().chain(drafted).collect()
    }

    /// The parents of all drafted tokens, counted from the outermost's first on.
    pub fn parents(&self) -> Vec<i64> {
        let mut all: Vec<i64> = Vec::new();
        for draft in &self.open {
            let first = all.len() as i64;
            all.extend(draft.nodes.iter().map(|node| node.1 + first));
        }
        all
    }

    pub fn is_branched(&self) -> bool {
        self.open.iter().any(|draft| draft.branched)
    }

    /// The positions that everything kept has while a draft is open.
    pub fn kept(&self) -> Vec<usize> {
        let base = self.model(self.tokens.clone()).retained();
        base.into_iter().chain(self.tokens.len()..self.everything().len()).collect()
    }

    pub fn new_ids(&mut self, tokens: usize) -> Vec<Id> {
        self.next += tokens as Id;
        (self.next - tokens as Id..self.next).collect()
    }

    /// A path of the innermost draft: at each step one of the children.
    pub fn path(&self, choices: &[u32]) -> Vec<u32> {
        let (mut path, mut at) = (Vec::new(), -1);
        let nodes = self.open.last().map_or(&[][..], |draft| &draft.nodes);
        for &choice in choices {
            let children: Vec<usize> = (0..nodes.len()).filter(|&node| nodes[node].1 == at).collect();
            let Some(place) = (choice as usize).checked_rem(children.len()) else { break };
            path.push(children[place] as u32);
            at = children[place] as i64;
        }
        path
    }

    /// The innermost draft has ended, and these nodes of it are the next one's, or the cache's.
    pub fn ended(&mut self, kept: Vec<(Id, i64)>, path: bool) {
        let Some(ended) = self.open.pop() else { return };
        let ids: Vec<Id> = kept.iter().map(|node| node.0).collect();
        let before = self.everything();
        match self.open.last_mut() {
            None => self.tokens.extend(&ids),
            Some(parent) => {
                let first = parent.nodes.len() as i64;
                parent.branched |= ended.branched && !path && !kept.is_empty();
                parent.nodes.extend(kept.iter().map(|&(token, parent)| (token, parent + first)));
            }
        }
        if kept.is_empty() {
            self.last = ended.last;
            return;
        }
        // As if what is kept had been appended at once.
        let shown = if self.is_branched() { self.kept() } else { self.model(before).append(&ids) };
        self.shown(&shown);
    }

    /// Notes what an append has shown.
    pub fn shown(&mut self, positions: &[usize]) {
        let everything = self.everything();
        self.last = Some(positions.iter().map(|&position| everything[position]).collect());
    }
}
