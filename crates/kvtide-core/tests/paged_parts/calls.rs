//! The calls of the engine's random test. Numbers stand for sequences, known or unknown.

use proptest::prelude::*;

use super::engine::Shape;

/// The ingredients of a prompt.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub salt: u8,
    pub tokens: Vec<u32>,
    /// Start, length and name.
    pub extras: Vec<(u32, u32, u8)>,
}

#[derive(Clone, Debug)]
pub enum Call {
    /// Finds what is there of a prompt, holds it, and fills the rest.
    Start(Prompt),
    Append(usize, u32),
    /// Another sequence with the full blocks of one.
    Fork(usize),
    /// Drops a sequence; its blocks become cached or free.
    Drop(usize, bool),
    /// A priority for all blocks of a sequence.
    Priority(usize, u8, Option<u64>),
    Advance(u64),
    /// Gives up the content of a cached block.
    Forget(usize),
    Explain(Prompt),
    Clear,
}

fn prompt() -> impl Strategy<Value = Prompt> {
    let tokens = prop::collection::vec(0..2u32, 0..9);
    let extras = prop_oneof![
        3 => Just(Vec::new()),
        1 => prop::collection::vec((0..6u32, 1..4u32, 0..2u8), 1..3),
    ];
    (0..2u8, tokens, extras).prop_map(|(salt, tokens, extras)| Prompt { salt, tokens, extras })
}

pub fn shape() -> impl Strategy<Value = Shape> {
    (0..10u32, 1..4u32, prop_oneof![2 => Just(256u32), 1 => 0..4u32])
        .prop_map(|(capacity, block_size, key_bits)| Shape { capacity, block_size, key_bits })
}

pub fn call() -> impl Strategy<Value = Call> {
    let sequence = || 0..4usize;
    prop_oneof![
        8 => prompt().prop_map(Call::Start),
        6 => (sequence(), 0..2u32).prop_map(|(sequence, token)| Call::Append(sequence, token)),
        2 => sequence().prop_map(Call::Fork),
        6 => (sequence(), prop::bool::weighted(0.9)).prop_map(|(sequence, keep)| Call::Drop(sequence, keep)),
        2 => (sequence(), 45..55u8, prop::option::of(0..20u64))
            .prop_map(|(sequence, priority, until)| Call::Priority(sequence, priority, until)),
        2 => (0..5u64).prop_map(Call::Advance),
        1 => (0..9usize).prop_map(Call::Forget),
        3 => prompt().prop_map(Call::Explain),
        1 => prop::bool::weighted(0.1).prop_map(|clear| if clear { Call::Clear } else { Call::Advance(0) }),
    ]
}
