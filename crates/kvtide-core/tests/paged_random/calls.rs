//! The calls of the random test.

use proptest::prelude::*;

use super::Call;
use super::model::Shape;

pub fn shape() -> impl Strategy<Value = Shape> {
    let sizes = (0..8u32, 1..5u32, 1..4u32, any::<bool>());
    sizes.prop_map(|(capacity, block_size, layers, low_bit)| Shape { capacity, block_size, layers, low_bit })
}

pub fn call() -> impl Strategy<Value = Call> {
    let place = || (0..6u64, 0..4u32, 0..12u32);
    let tokens = || prop_oneof![2 => Just(1u32), 1 => 0..9u32];
    prop_oneof![
        4 => Just(Call::Create),
        2 => (0..6u64).prop_map(Call::Drop),
        2 => (0..6u64, 0..20u32).prop_map(|(sequence, tokens)| Call::Ensure(sequence, tokens)),
        8 => (place(), tokens())
            .prop_map(|((sequence, layer, position), tokens)| Call::Write(sequence, layer, position, tokens)),
        4 => prop::collection::vec((0..6u64, tokens()), 0..4).prop_map(Call::Append),
        2 => (place(), tokens())
            .prop_map(|((sequence, layer, position), tokens)| Call::Plan(sequence, layer, position, tokens)),
        2 => Just(Call::CommitPlan),
        4 => place().prop_map(|(sequence, layer, position)| Call::Read(sequence, layer, position)),
        2 => (0..6u64, 0..4u32).prop_map(|(sequence, layer)| Call::ReadAll(sequence, layer)),
    ]
}
