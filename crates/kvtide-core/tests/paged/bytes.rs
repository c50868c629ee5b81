//! Total memory of the bookkeeping for each block.

use kvtide_core::paged::{Append, PagedPlanner, Writer};

const CAPACITY: u32 = 100_000;
const BLOCK_SIZE: u32 = 16;
const LAYERS: u32 = 32;

/// Fills the pool with sequences of `tokens` tokens, which become prompts that are found, and again so many times.
fn fill(planner: &mut PagedPlanner, tokens: u32, times: u32) {
    let mut ids: Vec<u32> = (0..tokens).collect();
    for round in 0..times * CAPACITY / (tokens / BLOCK_SIZE) {
        let sequence = planner.create_sequence().unwrap();
        ids[0] = round;
        let offsets = [0, tokens];
        let append = Append { sequences: &[sequence], offsets: Some(&offsets), parents: None, writer: Writer::Direct };
        let plan = planner.plan_append(&append).unwrap();
        planner.commit(&plan, Some(&ids)).unwrap();
        if times > 1 {
            planner.drop_sequence(sequence).unwrap();
        }
    }
}

#[test]
fn bookkeeping_takes_less_than_100_bytes_a_block() {
    for (tokens, times) in [(8192, 1), (1024, 1), (1024, 3)] {
        let mut planner = PagedPlanner::new(CAPACITY, BLOCK_SIZE, LAYERS).unwrap();
        fill(&mut planner, tokens, times);
        let each = planner.bytes() as f64 / f64::from(CAPACITY);
        println!("{each:.1} bytes a block in sequences of {tokens} tokens, filled {times} times");
        assert!(each < 100.0, "{each} bytes a block");
        assert!(each > 70.0, "{each} bytes a block: is everything counted?");
    }
}
