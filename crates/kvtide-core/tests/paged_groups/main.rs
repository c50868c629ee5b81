//! Groups of layers in lockstep, one with full layers and others with windows: the prefix found for a prompt is the
//! longest from which every group can continue, and shows the values that a model would have computed.
//!
//! The expected prefix is known without the index, in both directions: everything computed before the first eviction
//! must be found, everything held must be found in any case, and tokens that were never computed must not be found.

mod groups;
#[path = "../paged_random/memory.rs"]
mod memory;
#[path = "../support/mod.rs"]
mod support;
mod world;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use world::{Call, Shape, World};

fn shape() -> impl Strategy<Value = Shape> {
    let window = || prop::option::of((1..9u32, 0..6u32));
    let groups = prop_oneof![
        3 => (1..9u32, 0..6u32).prop_map(|window| vec![None, Some(window)]),
        1 => prop::collection::vec(window(), 1..4),
    ];
    (prop_oneof![1 => 2..12u32, 1 => 12..60u32, 1 => 60..200u32], 1..5u32, groups)
        .prop_map(|(capacity, block_size, groups)| Shape { capacity, block_size, groups })
}

fn call() -> impl Strategy<Value = Call> {
    let of = || 0..4usize;
    let tokens = || prop_oneof![1 => prop::collection::vec(0..2u32, 0..4), 1 => prop::collection::vec(0..2u32, 0..24)];
    prop_oneof![
        2 => (0..2u8).prop_map(Call::Create),
        3 => of().prop_map(Call::Drop),
        1 => of().prop_map(Call::Fork),
        6 => (of(), tokens(), prop::bool::weighted(0.95))
            .prop_map(|(of, tokens, known)| Call::Append(of, tokens, known)),
        2 => (of(), 0..6u32, tokens()).prop_map(|(of, fewer, tokens)| Call::Rewrite(of, fewer, tokens)),
        1 => (of(), 0..24u32).prop_map(|(of, length)| Call::Truncate(of, length)),
        1 => of().prop_map(Call::Snapshot),
        1 => (of(), of()).prop_map(|(of, snapshot)| Call::Restore(of, snapshot)),
        1 => of().prop_map(Call::Release),
        1 => of().prop_map(Call::Begin),
        1 => (of(), prop::option::of(0..9usize)).prop_map(|(of, kept)| Call::End(of, kept)),
        6 => (tokens(), 0..2u8, any::<bool>(), any::<bool>())
            .prop_map(|(tokens, salt, partial, keep)| Call::Find(tokens, salt, partial, keep)),
        1 => (0..3usize).prop_map(Call::Forget),
    ]
}

fn groups_follow_the_model((shape, calls): (Shape, Vec<Call>)) -> Result<(), TestCaseError> {
    let mut world = World::new(&shape);
    for call in &calls {
        world.call(call)?;
        world.check()?;
    }
    world.end()
}

#[test]
fn random_traces_in_lockstep() {
    support::run("groups", 6_000, (shape(), prop::collection::vec(call(), 0..40)), groups_follow_the_model);
}
