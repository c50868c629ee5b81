//! A cache of checkpoints on the pool of blocks, without tensors: a sequence holds the slot of its present state, each
//! step takes a new one, and the old one stays cached if it is a checkpoint.

use kvtide_core::paged::LeastUseful;
use kvtide_core::paged::parts::{Blocks, RankChain, Release};

use super::placement::{Placing, checkpoints_of};
use super::trace::{ROOT, Request, Trace};

/// A rule for the places of checkpoints, and for their eviction.
#[derive(Clone, Copy, PartialEq)]
pub enum Rule {
    /// Our rules. The least useful is evicted first.
    Ours,
    /// Our places, evicted least recently used first.
    OursByTime,
    /// At each multiple of a number of tokens.
    Every(u32),
    /// At the last whole block of a prompt.
    PromptEnd,
    /// At the last whole block of a prompt, and of prompt and answer.
    Ends,
}

const NONE: u32 = u32::MAX;

struct Checkpoints {
    blocks: Blocks,
    /// The slot of each block of the tree that has a checkpoint.
    slots: Vec<u32>,
    /// The block of the tree whose end a slot is the state of.
    ends: Vec<u32>,
    /// The slot of the sequence's present state.
    present: Option<u32>,
}

impl Checkpoints {
    fn new(slots: u32, blocks: usize, rule: Rule) -> Self {
        let pool = Blocks::new(slots).expect("a pool");
        let is_ours = rule == Rule::Ours;
        let pool = if is_ours { pool.with_policy(Box::new(LeastUseful::default())) } else { pool };
        Checkpoints { blocks: pool, slots: vec![NONE; blocks + 1], ends: vec![ROOT; slots as usize], present: None }
    }

    fn has(&self, block: u32) -> bool {
        self.slots[block as usize] != NONE
    }

    /// Starts a sequence from a checkpoint, or from nothing.
    fn start(&mut self, block: u32) {
        self.present = (block != ROOT).then(|| self.slots[block as usize]);
        if let Some(slot) = self.present {
            self.blocks.retain(slot);
        }
    }

    /// Ends a step behind this block, with a checkpoint that saves this many tokens.
    fn step(&mut self, block: u32, tokens: u32) {
        let slot = self.take();
        if !self.has(block) {
            self.slots[block as usize] = slot;
            self.ends[slot as usize] = block;
            self.blocks.note_use(slot, tokens, 1);
        }
        self.end(Some(slot));
    }

    /// Ends a sequence behind a token that is not the last of a block: its last slot is no checkpoint.
    fn drop_sequence(&mut self) {
        let slot = self.take();
        self.end(Some(slot));
        self.end(None);
    }

    fn take(&mut self) -> u32 {
        self.blocks.reserve(1).expect("memory");
        let taken = self.blocks.take().expect("a slot besides the present one");
        if taken.evicted {
            self.slots[self.ends[taken.block as usize] as usize] = NONE;
        }
        self.ends[taken.block as usize] = ROOT;
        taken.block
    }

    /// Releases the present slot for another one.
    fn end(&mut self, next: Option<u32>) {
        if let Some(slot) = std::mem::replace(&mut self.present, next) {
            let how = Release { cached: self.ends[slot as usize] != ROOT, depth: 0 };
            self.blocks.release(slot, how, &mut RankChain::default());
        }
    }
}

/// Numbers of a run.
#[derive(Clone, Copy, Default)]
pub struct Score {
    /// Tokens that were found.
    pub found: u64,
    /// Tokens that a cache with all states of all blocks would have found.
    pub possible: u64,
    /// Steps that ended early for a checkpoint.
    pub cuts: u64,
    pub evictions: u64,
}

impl Score {
    pub fn share(&self) -> f64 {
        self.found as f64 / self.possible as f64
    }
}

/// Runs a trace with room for `slots` states. Keys and values are never evicted. `seen` is what the scheduler remembers
/// of each prompt: see [`seen_blocks`](super::seen::seen_blocks).
pub fn run(trace: &Trace, seen: &[u32], rule: Rule, slots: u32) -> Score {
    let tree = &trace.tree;
    let mut cache = Checkpoints::new(slots, tree.blocks(), rule);
    let mut score = Score::default();
    for ((number, request), &shared) in (0..).zip(&trace.requests).zip(seen) {
        let (block, length) = request.prompt;
        // The last token is always computed.
        let last = tree.at_depth(block, (length - 1) / tree.block_size);
        let cached = tree.deepest(last, |block| tree.is_older(block, number));
        let found = tree.deepest(cached, |block| cache.has(block));
        score.possible += u64::from(tree.depth(cached) * tree.block_size);
        score.found += u64::from(tree.depth(found) * tree.block_size);
        cache.start(found);
        score.cuts += compute(trace, request, &mut cache, (rule, slots), [tree.depth(found), shared]);
        cache.drop_sequence();
    }
    score.evictions = cache.blocks.evictions();
    cache.blocks.check_invariants().expect("an order of eviction");
    score
}

/// Computes a prompt behind `found` blocks, and its answer. The first `seen` blocks are those of a prompt before it.
/// Returns the number of steps that ended early.
fn compute(
    trace: &Trace,
    request: &Request,
    cache: &mut Checkpoints,
    (rule, slots): (Rule, u32),
    [found, seen]: [u32; 2],
) -> u64 {
    let tree = &trace.tree;
    let size = tree.block_size;
    let ((prompt_block, length), (end_block, _)) = (request.prompt, request.answered);
    let [found, seen] = [found, seen].map(|depth| depth * size);
    let placing = Placing {
        block_size: size,
        length,
        found,
        reached: found,
        seen,
        salt_from: request.salt_from,
        named: &request.named,
        slots,
    };
    let last = (length - 1) / size * size;
    let positions = match rule {
        Rule::Ours | Rule::OursByTime => checkpoints_of(&placing),
        Rule::Every(n) => multiples(n, found, length),
        Rule::PromptEnd | Rule::Ends => {
            if last > found {
                vec![last]
            } else {
                Vec::new()
            }
        }
    };
    let mut before = found;
    // From the tree's leaf up, once.
    let mut blocks = Vec::new();
    let mut block = prompt_block;
    for &position in positions.iter().rev() {
        block = tree.at_depth(block, position / size);
        blocks.push(block);
    }
    for (&position, &block) in positions.iter().zip(blocks.iter().rev()) {
        cache.step(block, position - before);
        before = position;
    }
    let answered = tree.depth(end_block) * size;
    match rule {
        Rule::Every(n) => {
            for position in multiples(n, length, answered) {
                cache.step(tree.at_depth(end_block, position / size), n);
            }
        }
        Rule::PromptEnd => {}
        Rule::Ours | Rule::OursByTime | Rule::Ends if answered > before => cache.step(end_block, answered - before),
        _ => {}
    }
    positions.len() as u64
}

/// The multiples of `n` behind one position, up to another.
fn multiples(n: u32, behind: u32, to: u32) -> Vec<u32> {
    (behind / n + 1..=to / n).map(|i| i * n).collect()
}
