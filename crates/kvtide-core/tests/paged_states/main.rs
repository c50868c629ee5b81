//! A group of full layers and a group of states in lockstep, beside lists of tokens: the state in a sequence's slot is the
//! hash of all its tokens, so a slot that was cut, mixed up or written after it was shared is seen.

#[path = "../support/mod.rs"]
mod support;
mod world;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use world::{Call, Shape, World};

fn call() -> impl Strategy<Value = Call> {
    let of = || 0..5usize;
    let ids = || prop_oneof![2 => prop::collection::vec(0..2u32, 1..2), 1 => prop::collection::vec(0..2u32, 0..20)];
    prop_oneof![
        2 => (0..2u8).prop_map(Call::Create),
        2 => of().prop_map(Call::Drop),
        3 => of().prop_map(Call::Fork),
        12 => (prop::collection::vec((of(), ids()), 1..3), prop::bool::weighted(0.93), 0..8u8)
            .prop_map(|(shares, known, end)| Call::Step(shares, known, end)),
        6 => (of(), 0..24u32).prop_map(|(of, length)| Call::Truncate(of, length)),
        1 => of().prop_map(Call::Snapshot),
        1 => (of(), of()).prop_map(|(of, snapshot)| Call::Restore(of, snapshot)),
        1 => of().prop_map(Call::Release),
        3 => of().prop_map(Call::Begin),
        6 => (of(), prop::collection::vec(0..2u32, 2..9), 0..6u64, prop::bool::weighted(0.93))
            .prop_map(|(of, ids, kept, known)| Call::Draft(of, ids, kept, known)),
        4 => (of(), prop::option::of(0..4u64)).prop_map(|(of, kept)| Call::End(of, kept)),
        1 => (of(), any::<bool>()).prop_map(|(of, inner)| Call::Rollback(of, inner)),
        6 => (of(), prop::collection::vec(0..2u32, 0..6), 0..2u8).prop_map(|(of, more, salt)| Call::Find(of, more, salt)),
        1 => of().prop_map(Call::Identify),
        1 => Just(Call::Forget),
        1 => of().prop_map(Call::Save),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    let slots = prop_oneof![2 => 2..8u32, 1 => 8..60u32];
    let blocks = prop_oneof![1 => 4..20u32, 1 => 20..200u32];
    (slots, blocks, 1..5u32, prop::bool::weighted(0.8)).prop_map(|(slots, blocks, block_size, drafts_each)| Shape {
        slots,
        blocks,
        block_size,
        drafts_each,
    })
}

fn states_follow_the_tokens((shape, calls): (Shape, Vec<Call>)) -> Result<(), TestCaseError> {
    let mut world = World::new(shape);
    for call in &calls {
        world.call(call)?;
        world.check()?;
    }
    PARTS.fetch_add(world.parts, Relaxed);
    world.end()
}

/// The drafts of all traces of which a part was committed.
static PARTS: AtomicU32 = AtomicU32::new(0);

#[test]
fn random_traces() {
    support::run("states", 6_000, (shape(), prop::collection::vec(call(), 0..60)), states_follow_the_tokens);
    let parts = PARTS.load(Relaxed);
    assert!(parts > 1000 || std::env::var_os("KVTIDE_CASES").is_some(), "{parts} parts of drafts were committed");
}

mod rules;
