//! The calls that the random test makes.

use kvtide_core::paged::PageFormat;
use kvtide_tensor::DType;
use kvtide_tensor::runtime::Kernels;
use proptest::prelude::*;

use super::model::Setup;
use super::values::Form;

/// A call: sequences, layers, positions and numbers of tokens, in range or not.
#[derive(Clone, Debug)]
pub enum Call {
    Create,
    Drop(u64),
    Write(u64, u32, u32, [Form; 2]),
    WriteTokens(u64, u32, u32, u32, [Form; 2], bool),
    Append(Vec<(u64, u32)>, [Form; 2]),
}

pub fn setup() -> impl Strategy<Value = Setup> {
    use PageFormat::{F8E4M3, Q4, Q8};
    let dtype = prop::sample::select(&[DType::F32, DType::F16, DType::BF16][..]);
    let format = || prop::sample::select(&[None, Some(F8E4M3), Some(Q8), Some(Q4)][..]);
    let dim = || prop_oneof![4 => 1..6u32, 1 => 30..70u32];
    let value_dim = prop_oneof![1 => Just(0), 4 => dim()];
    let sizes = (1..7u32, 1..6u32, 1..4u32, 1..3u32);
    let kernels = prop::sample::select(Kernels::supported().collect::<Vec<_>>());
    (sizes, [dim().boxed(), value_dim.boxed()], any::<bool>(), dtype, [format(), format()], any::<[bool; 2]>(), kernels)
        .prop_map(|((capacity, block_size, layers, heads), dims, alike, dtype, formats, rotate, kernels)| Setup {
            capacity,
            block_size,
            layers,
            heads,
            dims: if alike { [dims[0]; 2] } else { dims },
            dtype,
            formats,
            rotated: [0, 1].map(|part| rotate[part] && formats[part].is_some()),
            kernels,
        })
}

pub fn call() -> impl Strategy<Value = Call> {
    let form = || prop::sample::select(&Form::ALL[..]);
    let place = || (0..4u64, 0..4u32, 0..12u32);
    prop_oneof![
        2 => Just(Call::Create),
        1 => (0..4u64).prop_map(Call::Drop),
        4 => (place(), [form(), form()])
            .prop_map(|((sequence, layer, position), forms)| Call::Write(sequence, layer, position, forms)),
        4 => (place(), 0..14u32, [form(), form()], any::<bool>()).prop_map(
            |((sequence, layer, position), tokens, forms, batch)| {
                Call::WriteTokens(sequence, layer, position, tokens, forms, batch)
            },
        ),
        4 => (prop::collection::vec((0..4u64, 0..8u32), 0..4), [form(), form()])
            .prop_map(|(shares, forms)| Call::Append(shares, forms)),
    ]
}
