//! The prompts that a scheduler remembers: `lib/onnx/seen-prompts.ts` has them as hashes in two tables, which change
//! places once the young one is half full.

use super::trace::Trace;

/// Number of blocks in a young table when the tables change places.
pub const GENERATION: u32 = 1 << 16;

/// Returns for each prompt the number of its blocks that a prompt before it had as well, as far as the scheduler
/// remembers.
pub fn seen_blocks(trace: &Trace, generation_blocks: u32) -> Vec<u32> {
    let tree = &trace.tree;
    // The generation that has a block; a block is remembered in its own and in the next one.
    let mut generations = vec![0; tree.blocks() + 1];
    let (mut generation, mut noted, mut path) = (2, 0, Vec::new());
    let mut seen_of = |block: u32| {
        let mut seen = tree.depth(block);
        let _ = tree.deepest(block, |at| {
            if generations[at as usize] + 1 < generation {
                seen = tree.depth(at) - 1;
            }
            path.push(at);
            false
        });
        for at in path.drain(..).rev() {
            if generations[at as usize] != generation {
                generations[at as usize] = generation;
                noted += 1;
            }
            if noted == generation_blocks {
                (noted, generation) = (0, generation + 1);
            }
        }
        seen
    };
    trace.requests.iter().map(|request| seen_of(request.prompt.0)).collect()
}
