//! Traces: prompts with their answers, as paths of blocks in a tree that has each block of tokens once.
//!
//! ```text
//! block 0 -- 1 -- 2 -- 3          two prompts that begin alike share the path to the place where they differ
//!                  `-- 4 -- 5
//! ```

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::dice::mix;

/// A hasher of numbers that already look random.
#[derive(Default)]
pub struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// The root of the tree: a prompt without a block.
pub const ROOT: u32 = 0;

/// The blocks of all prompts. Each has its parent, its depth, and the request that computed it first.
pub struct Tree {
    pub block_size: u32,
    known: HashMap<u64, u32, BuildHasherDefault<Same>>,
    parents: Vec<u32>,
    depths: Vec<u32>,
    first: Vec<u32>,
}

impl Tree {
    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.parents.len() - 1
    }

    /// Number of blocks from the root to a block, which is included.
    pub fn depth(&self, block: u32) -> u32 {
        self.depths[block as usize]
    }

    /// The block at a depth on the path to another.
    pub fn at_depth(&self, mut block: u32, depth: u32) -> u32 {
        while self.depth(block) > depth {
            block = self.parents[block as usize];
        }
        block
    }

    /// The deepest block on a path that meets a condition, or the root.
    pub fn deepest(&self, mut block: u32, mut is_met: impl FnMut(u32) -> bool) -> u32 {
        while block != ROOT && !is_met(block) {
            block = self.parents[block as usize];
        }
        block
    }

    /// True if a block was computed by a request before this one.
    pub fn is_older(&self, block: u32, request: u32) -> bool {
        self.first[block as usize] < request
    }

    fn child(&mut self, parent: u32, content: u64, request: u32) -> u32 {
        let next = self.parents.len() as u32;
        let block = *self.known.entry(content).or_insert(next);
        if block == next {
            self.parents.push(parent);
            self.depths.push(self.depth(parent) + 1);
            self.first.push(request);
        }
        block
    }
}

/// Tokens that begin a prompt: a path of blocks, and the tokens behind it.
#[derive(Clone, Copy)]
pub struct Text {
    block: u32,
    length: u32,
    /// Hash of the tokens behind the last whole block.
    rest: u64,
}

/// A prompt and its answer.
pub struct Request {
    /// The last whole block, and the number of tokens.
    pub prompt: (u32, u32),
    /// The same behind the answer.
    pub answered: (u32, u32),
    pub salt_from: Option<u32>,
    /// The positions that the caller names.
    pub named: Vec<u32>,
}

pub struct Trace {
    pub tree: Tree,
    pub requests: Vec<Request>,
    /// Number of messages that were written; each has other tokens.
    messages: u64,
}

impl Trace {
    pub fn new(block_size: u32) -> Self {
        let known = HashMap::default();
        let tree = Tree { block_size, known, parents: vec![ROOT], depths: vec![0], first: vec![0] };
        Trace { tree, requests: Vec::new(), messages: 1 << 32 }
    }

    pub fn empty(&self) -> Text {
        Text { block: ROOT, length: 0, rest: 0 }
    }

    /// Frees the memory that only writing needs.
    #[must_use]
    pub fn written(mut self) -> Self {
        self.tree.known = HashMap::default();
        self
    }

    /// A message that no other is like.
    pub fn new_message(&mut self) -> u64 {
        self.messages += 1;
        self.messages
    }

    /// Appends tokens of a message, of which there may be others in other texts.
    pub fn say(&mut self, text: &mut Text, message: u64, tokens: u32) {
        let (size, request) = (self.tree.block_size, self.requests.len() as u32);
        let mut said = 0;
        while said < tokens {
            let filled = text.length % size;
            let piece = (size - filled).min(tokens - said);
            let before = if filled == 0 { mix(text.block.into(), 7) } else { text.rest };
            text.rest = mix(before, mix(message, u64::from(said) << 32 | u64::from(piece)));
            text.length += piece;
            said += piece;
            if text.length.is_multiple_of(size) {
                text.block = self.tree.child(text.block, text.rest, request);
            }
        }
    }

    /// Asks for an answer of this many tokens, which is appended.
    pub fn ask(&mut self, text: &mut Text, answer: u32, salt_from: Option<u32>, named: Vec<u32>) {
        let prompt = (text.block, text.length);
        let message = self.new_message();
        self.say(text, message, answer);
        self.requests.push(Request { prompt, answered: (text.block, text.length), salt_from, named });
    }
}

impl Text {
    pub fn length(&self) -> u32 {
        self.length
    }
}
