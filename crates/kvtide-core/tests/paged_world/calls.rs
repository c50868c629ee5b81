//! The calls of a trace.

use proptest::prelude::*;

use super::policies::{Policy, policy};

/// The shape of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub capacity: u32,
    pub block_size: u32,
    pub layers: u32,
    pub low_bit: bool,
    /// Tokens and sinks.
    pub window: Option<(u32, u32)>,
    pub policy: Policy,
}

/// A call. A `usize` picks one of the sequences, snapshots or transactions there are; tokens are drawn from very few, so that
/// prompts have much in common.
#[derive(Clone, Debug)]
pub enum Call {
    Create(u8),
    Drop(usize),
    Fork(usize),
    Ensure(usize, u32),
    Write(usize, u32, u32, u32),
    Append(Vec<(usize, Vec<u32>)>, bool),
    Truncate(usize, u32),
    Snapshot(usize),
    Restore(usize, usize),
    Release(usize),
    Begin(usize),
    DraftAppend(usize, Vec<u32>, Option<Vec<u32>>),
    Commit(usize, u32),
    CommitPath(usize, Vec<bool>),
    Undo(usize, usize),
    OpenStep(Vec<(usize, Vec<u32>)>, bool),
    WriteLayer(u32),
    EndStep(bool),
    Find(Vec<u32>, u8, bool, bool),
    Retain(usize, u32, u32, u8, Option<u64>),
    Advance(u64),
    Forget,
    Identify(usize, u32),
}

pub fn shape() -> impl Strategy<Value = Shape> {
    let window = prop_oneof![3 => Just(None), 1 => (1..9u32, 0..6u32).prop_map(Some)];
    let sizes = (prop_oneof![3 => 0..12u32, 1 => 12..80u32], 1..5u32, 1..4u32, any::<bool>(), window, policy());
    sizes.prop_map(|(capacity, block_size, layers, low_bit, window, policy)| Shape {
        capacity,
        block_size,
        layers,
        low_bit,
        window,
        policy,
    })
}

pub fn call() -> impl Strategy<Value = Call> {
    let of = || 0..4usize;
    let tokens = || prop_oneof![3 => prop::collection::vec(0..2u32, 0..3), 1 => prop::collection::vec(0..2u32, 0..14)];
    let shares = || prop::collection::vec((of(), tokens()), 0..4);
    let parents = || prop::option::of(prop::collection::vec(0..4u32, 0..14));
    prop_oneof![
        4 => (0..2u8).prop_map(Call::Create),
        2 => of().prop_map(Call::Drop),
        3 => of().prop_map(Call::Fork),
        1 => (of(), 0..20u32).prop_map(|(of, tokens)| Call::Ensure(of, tokens)),
        2 => (of(), 0..3u32, 0..12u32, 0..4u32).prop_map(|(of, layer, at, tokens)| Call::Write(of, layer, at, tokens)),
        8 => (shares(), prop::bool::weighted(0.8)).prop_map(|(shares, known)| Call::Append(shares, known)),
        2 => (of(), 0..16u32).prop_map(|(of, length)| Call::Truncate(of, length)),
        2 => of().prop_map(Call::Snapshot),
        2 => (of(), of()).prop_map(|(of, snapshot)| Call::Restore(of, snapshot)),
        1 => of().prop_map(Call::Release),
        4 => of().prop_map(Call::Begin),
        5 => (of(), tokens(), parents()).prop_map(|(of, tokens, parents)| Call::DraftAppend(of, tokens, parents)),
        2 => (of(), 0..9u32).prop_map(|(of, tokens)| Call::Commit(of, tokens)),
        2 => (of(), prop::collection::vec(any::<bool>(), 14)).prop_map(|(of, path)| Call::CommitPath(of, path)),
        1 => (of(), 0..3usize).prop_map(|(of, depth)| Call::Undo(of, depth)),
        3 => (shares(), prop::bool::weighted(0.8)).prop_map(|(shares, known)| Call::OpenStep(shares, known)),
        6 => (0..3u32).prop_map(Call::WriteLayer),
        3 => any::<bool>().prop_map(Call::EndStep),
        5 => (tokens(), 0..2u8, any::<bool>(), any::<bool>())
            .prop_map(|(tokens, salt, partial, keep)| Call::Find(tokens, salt, partial, keep)),
        1 => (of(), 0..9u32, 0..9u32, 0..101u8, prop::option::of(0..9u64))
            .prop_map(|(of, from, len, priority, until)| Call::Retain(of, from, len, priority, until)),
        1 => (0..9u64).prop_map(Call::Advance),
        1 => Just(Call::Forget),
        3 => (of(), 0..16u32).prop_map(|(of, tokens)| Call::Identify(of, tokens)),
    ]
}
