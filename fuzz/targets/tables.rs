//! Attention over paged caches with any block tables: forks, shared blocks, windows and sinks, low-bit pages, ragged
//! batches, masks and drafts. Each call is compared with attention by its definition over the rows that are gathered.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;

#[path = "tables/asked.rs"]
mod asked;
#[path = "../../crates/kvtide-tensor/tests/attention/numbers.rs"]
#[allow(dead_code, reason = "the tests of attention use the rest")]
mod numbers;
#[path = "../../crates/kvtide-tensor/tests/attention/oracle.rs"]
mod oracle;
#[path = "tables/world.rs"]
mod world;

use world::{Shape, World};

/// The most calls of one input.
const CALLS_MAX: usize = 40;

fuzz_target!(|data: &[u8]| {
    let _ = run(&mut Unstructured::new(data));
});

fn run(input: &mut Unstructured<'_>) -> Result<()> {
    let mut world = World::new(Shape::draw(input)?);
    for _ in 0..CALLS_MAX {
        if input.is_empty() {
            break;
        }
        world.call(input)?;
        if !world.sequences.is_empty() && input.ratio(1, 2)? {
            asked::attend_to(&mut world, input)?;
        }
    }
    Ok(())
}
