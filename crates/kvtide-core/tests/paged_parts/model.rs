//! The naive index: a map from everything that identifies a prefix to the block with its end.

use std::collections::{HashMap, HashSet};

use kvtide_core::paged::{BlockKey, Extra, Extras};

use super::calls::Prompt;

/// All that the keys and values of a block depend on: salt, tokens up to the block's end, and extras that begin before it.
pub type Prefix = (u8, Vec<u32>, Vec<Extra>);

pub fn root(salt: u8) -> BlockKey {
    BlockKey::root(&[9; 32], b"test", &[salt])
}

pub fn extras(prompt: &Prompt) -> Extras {
    Extras::new(list(prompt)).unwrap()
}

fn list(prompt: &Prompt) -> Vec<Extra> {
    let extra = |&(start, len, name): &(u32, u32, u8)| Extra { start, end: start + len, key: vec![name] };
    prompt.extras.iter().map(extra).collect()
}

/// The identity of the first `end` tokens of a prompt.
pub fn prefix(prompt: &Prompt, end: usize) -> Prefix {
    let mut extras = list(prompt);
    extras.retain(|extra| (extra.start as usize) < end);
    extras.sort();
    extras.dedup();
    (prompt.salt, prompt.tokens[..end].to_vec(), extras)
}

/// The prefixes that can be found.
#[derive(Default)]
pub struct Model {
    pub found: HashMap<Prefix, u32>,
    /// Blocks that were filled while another was found, in order.
    pub waiting: Vec<(Prefix, u32)>,
    /// The prefixes that were evicted at some time.
    pub evicted: HashSet<Prefix>,
}

impl Model {
    /// The blocks of the longest prefix that is there, of all tokens but the last.
    pub fn longest(&self, prompt: &Prompt, block_size: u32) -> Vec<u32> {
        let whole = prompt.tokens.len().saturating_sub(1) / block_size as usize;
        let block = |at: usize| self.found.get(&prefix(prompt, (at + 1) * block_size as usize)).copied();
        (0..whole).map_while(block).collect()
    }

    /// The content of a block, if prompts can find it.
    pub fn content(&self, block: u32) -> Option<&Prefix> {
        self.found.iter().find(|found| *found.1 == block).map(|found| found.0)
    }

    /// A block is gone; the youngest that waited takes its place. True when nothing is found there any more.
    pub fn remove(&mut self, block: u32) -> bool {
        self.waiting.retain(|waiting| waiting.1 != block);
        let Some(prefix) = self.content(block).cloned() else { return false };
        self.found.remove(&prefix);
        let youngest = self.waiting.iter().rposition(|waiting| waiting.0 == prefix);
        let twin = youngest.map(|place| self.waiting.remove(place));
        let gone = twin.is_none();
        self.found.extend(twin);
        gone
    }

    /// The same for a block that is evicted.
    pub fn evict(&mut self, block: u32) {
        let prefix = self.content(block).cloned();
        if self.remove(block) {
            self.evicted.extend(prefix);
        }
    }

    /// Most tokens that a block behind the first `start` tokens of the prompt has in common with it, where the extras over the
    /// whole block are the same.
    pub fn longest_rest(&self, prompt: &Prompt, start: usize, block_size: u32) -> u32 {
        let end = start + block_size as usize;
        let rest = &prompt.tokens[start..prompt.tokens.len().saturating_sub(1).clamp(start, end)];
        let (_, _, wanted) = prefix(&Prompt { tokens: vec![0; end], ..prompt.clone() }, end);
        let same = |found: &Prefix| {
            let tokens = &found.1;
            let fits = found.0 == prompt.salt && tokens.len() == end && tokens[..start] == prompt.tokens[..start];
            let common = || tokens[start..].iter().zip(rest).take_while(|(a, b)| a == b).count() as u32;
            if fits && found.2 == wanted { common() } else { 0 }
        };
        self.found.keys().map(same).max().unwrap_or(0)
    }
}
