//! Random calls on `KvCache` against a list that keeps everything.

use kvtide_tensor::DType;
use kvtide_tensor::runtime::Kernels;
use proptest::prelude::*;

use crate::any_kernels::{any_kernels, under};
use crate::growing::pair::{Op, Pair, Setup};
use crate::outcome::Done;
use crate::sequences::sequence;
use crate::sources::Form;
use crate::support;
use crate::tokens::Rows;

fn cache_follows_the_list((kernels, setup, ops): (Kernels, Setup, Vec<Op>)) -> Done {
    under(kernels, || {
        let Some(mut pair) = Pair::new(setup)? else { return Ok(()) };
        for op in &ops {
            let wrote = pair.call(op)?;
            pair.check(wrote)?;
        }
        pair.check_at_the_end()
    })
}

fn setup() -> impl Strategy<Value = Setup> {
    let dtypes = prop::sample::select(&[DType::F32, DType::F16, DType::BF16][..]);
    let rows = (1..3usize, 1..3usize, 1..4usize, dtypes)
        .prop_map(|(batch, heads, dim, dtype)| Rows::new(&[batch, heads, 1, dim], 2, dtype));
    let limit = prop_oneof![3 => Just(None), 1 => (10..60u64).prop_map(Some)];
    let stable = prop_oneof![3 => Just(false), 1 => Just(true)];
    (rows, 0..6u32, 1..24u32, stable, limit).prop_map(|(rows, initial, max, stable, limit)| {
        let limit = limit.map(|tokens| tokens * 2 * rows.token_bytes());
        Setup { rows, initial, max, stable, limit }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let form = || prop::sample::select(&Form::ALL[..]);
    let forms = || [form(), form()];
    let which = || any::<u32>();
    prop_oneof![
        4 => forms().prop_map(|forms| Op::Update(1, forms)),
        4 => (0..8u32, forms()).prop_map(|(tokens, forms)| Op::Update(tokens, forms)),
        1 => (which(), which()).prop_map(|(start, len)| Op::UpdateOwn(start, len)),
        4 => (0..14u64).prop_map(Op::Truncate),
        1 => Just(Op::Reset),
        2 => (0..4u32).prop_map(Op::Kernel),
        3 => (which(), which()).prop_map(|(start, len)| Op::Look(start, len)),
        1 => which().prop_map(Op::Forget),
        3 => Just(Op::Snapshot),
        1 => which().prop_map(Op::DropSnapshot),
        2 => which().prop_map(Op::Restore),
        1 => (which(), 0..6u32, 0..6u32, any::<bool>())
            .prop_map(|(which, slots, tokens, close)| Op::RestoreElsewhere { which, slots, tokens, close }),
    ]
}

#[test]
fn random_calls_against_a_list() {
    let calls = (any_kernels(), setup(), sequence(op()));
    support::run("KvCache", 20_000, calls, cache_follows_the_list);
}
