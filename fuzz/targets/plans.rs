//! Sequences of calls on the paged planner, beside the naive model of its random tests (crates/kvtide-core/tests/paged_world).
#![no_main]

#[path = "../../crates/kvtide-core/tests/paged_world/calls.rs"]
#[allow(dead_code, reason = "the strategies draw calls for proptest")]
mod calls;
#[path = "../../crates/kvtide-core/tests/paged_random/memory.rs"]
mod memory;
#[path = "../../crates/kvtide-core/tests/paged_world/model.rs"]
mod model;
#[path = "../../crates/kvtide-core/tests/paged_world/planner.rs"]
mod planner;
#[path = "../../crates/kvtide-core/tests/support/policies.rs"]
#[allow(dead_code, reason = "the strategies draw policies for proptest")]
mod policies;
#[path = "../../crates/kvtide-core/tests/paged_world/tables.rs"]
mod tables;
#[path = "../../crates/kvtide-core/tests/paged_world/world/mod.rs"]
mod world;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;

use calls::{Call, Shape};
use planner::PlayedCache;
use policies::Policy;
use world::World;

/// The most calls of one input.
const CALLS_MAX: usize = 60;

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    let Ok(shape) = shape(&mut input) else { return };
    let mut world = World::new(shape, PlayedCache::new(&shape));
    for _ in 0..CALLS_MAX {
        if input.is_empty() {
            break;
        }
        let Ok(call) = call(&mut input) else { break };
        world.call(&call).and_then(|()| world.check()).unwrap_or_else(|why| panic!("{shape:?}: {call:?}: {why}"));
    }
    world.end().unwrap_or_else(|why| panic!("{shape:?}: {why}"));
});

fn shape(input: &mut Unstructured<'_>) -> Result<Shape> {
    Ok(Shape {
        capacity: input.int_in_range(0..=24)?,
        block_size: input.int_in_range(1..=4)?,
        layers: input.int_in_range(1..=3)?,
        low_bit: input.arbitrary()?,
        window: if input.ratio(1, 4)? { Some((input.int_in_range(1..=8)?, input.int_in_range(0..=5)?)) } else { None },
        policy: match input.int_in_range(0..=2)? {
            0 => Policy::Default,
            1 => Policy::Scattered(input.int_in_range(0..=999)?),
            _ => Policy::Table(input.int_in_range(0..=999)?),
        },
    })
}

/// One of four sequences, snapshots or transactions.
fn of(input: &mut Unstructured<'_>) -> Result<usize> {
    input.int_in_range(0..=3)
}

fn tokens(input: &mut Unstructured<'_>) -> Result<Vec<u32>> {
    let (count, mut bits) = (input.int_in_range(0..=13)?, input.arbitrary::<u16>()?);
    let next = |_| {
        bits = bits.rotate_right(1);
        u32::from(bits & 1)
    };
    Ok((0..count).map(next).collect())
}

fn shares(input: &mut Unstructured<'_>) -> Result<Vec<(usize, Vec<u32>)>> {
    (0..input.int_in_range(0..=3)?).map(|_| Ok((of(input)?, tokens(input)?))).collect()
}

fn parents(input: &mut Unstructured<'_>) -> Result<Option<Vec<u32>>> {
    if input.arbitrary()? {
        return Ok(None);
    }
    (0..input.int_in_range(0..=13)?).map(|_| input.int_in_range(0..=3)).collect::<Result<_>>().map(Some)
}

fn call(input: &mut Unstructured<'_>) -> Result<Call> {
    Ok(match input.int_in_range(0..=22)? {
        0 => Call::Create(input.int_in_range(0..=1)?),
        1 => Call::Drop(of(input)?),
        2 => Call::Fork(of(input)?),
        3 => Call::Ensure(of(input)?, input.int_in_range(0..=19)?),
        4 => {
            Call::Write(of(input)?, input.int_in_range(0..=2)?, input.int_in_range(0..=11)?, input.int_in_range(0..=3)?)
        }
        5 => Call::Append(shares(input)?, input.arbitrary()?),
        6 => Call::Truncate(of(input)?, input.int_in_range(0..=15)?),
        7 => Call::Snapshot(of(input)?),
        8 => Call::Restore(of(input)?, of(input)?),
        9 => Call::Release(of(input)?),
        10 => Call::Begin(of(input)?),
        11 => Call::DraftAppend(of(input)?, tokens(input)?, parents(input)?),
        12 => Call::Commit(of(input)?, input.int_in_range(0..=8)?),
        13 => {
            let (of, bits) = (of(input)?, input.arbitrary::<u16>()?);
            Call::CommitPath(of, (0..14).map(|at| bits >> at & 1 == 1).collect())
        }
        14 => Call::Undo(of(input)?, input.int_in_range(0..=2)?),
        15 => Call::OpenStep(shares(input)?, input.arbitrary()?),
        16 => Call::WriteLayer(input.int_in_range(0..=2)?),
        17 => Call::EndStep(input.arbitrary()?),
        18 => Call::Find(tokens(input)?, input.int_in_range(0..=1)?, input.arbitrary()?, input.arbitrary()?),
        19 => {
            let until = if input.arbitrary()? { Some(input.int_in_range(0..=8)?) } else { None };
            let [of, from, count] =
                [input.int_in_range(0..=3)?, input.int_in_range(0..=8)?, input.int_in_range(0..=8)?];
            Call::Retain(of as usize, from, count, input.int_in_range(0..=100)?, until)
        }
        20 => Call::Advance(input.int_in_range(0..=8)?),
        21 => Call::Forget,
        _ => Call::Identify(of(input)?, input.int_in_range(0..=15)?),
    })
}
