//! Compares the order of eviction on random traces with a list that is sorted again: the rule of `retain` in its
//! simplest form, over sequences that are truncated, restored, forked, copied on write, and that have windows.
//!
//! No two blocks have the same tokens, so each has its own key, and events identify the evicted block.

mod model;
#[path = "../support/policies.rs"]
mod policies;
#[path = "../support/ranks.rs"]
mod ranks;
#[path = "../support/mod.rs"]
mod support;
mod world;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use world::{Call, Shape, World};

fn shape() -> impl Strategy<Value = Shape> {
    let window = prop_oneof![3 => Just(None), 1 => (1..5u32, 0..4u32).prop_map(Some)];
    let capacity = prop_oneof![2 => 2..16u32, 1 => 120..300u32];
    (capacity, 1..4u32, window, policies::policy()).prop_map(|(capacity, block_size, window, policy)| Shape {
        capacity,
        block_size,
        window,
        policy,
    })
}

fn call() -> impl Strategy<Value = Call> {
    let of = || 0..4usize;
    // Forks share chunks of 64 blocks.
    let tokens = prop_oneof![8 => 0..6u32, 1 => 60..70u32, 1 => Just(64u32)];
    let from_end = || prop_oneof![3 => 0..8u32, 1 => 0..200u32];
    let priority = prop_oneof![1 => 0..101u8, 2 => 48..53u8];
    prop_oneof![
        3 => Just(Call::Create),
        3 => of().prop_map(Call::Drop),
        2 => of().prop_map(Call::Fork),
        8 => (of(), tokens).prop_map(|(of, tokens)| Call::Append(of, tokens)),
        3 => (of(), from_end()).prop_map(|(of, fewer)| Call::Truncate(of, fewer)),
        2 => (of(), 1..4u32).prop_map(|(of, fewer)| Call::Rewrite(of, fewer)),
        1 => of().prop_map(Call::Snapshot),
        2 => (of(), of()).prop_map(|(of, snapshot)| Call::Restore(of, snapshot)),
        1 => of().prop_map(Call::Release),
        4 => (of(), from_end(), 0..6u32, priority, prop::option::of(0..20u64))
            .prop_map(|(of, back, len, priority, until)| Call::Retain(of, back, len, priority, until)),
        2 => (0..5u64).prop_map(Call::Advance),
        2 => (1..5u32).prop_map(Call::Take),
    ]
}

fn ranks_follow_the_model((shape, calls): (Shape, Vec<Call>)) -> Result<(), TestCaseError> {
    let mut world = World::new(shape);
    for call in &calls {
        world.call(call)?;
        world.check()?;
    }
    world.end()
}

#[test]
fn random_traces_against_a_list() {
    support::run("ranks", 10_000, (shape(), prop::collection::vec(call(), 0..40)), ranks_follow_the_model);
}
