//! Random calls on both rotating caches against a window that keeps everything.

use kvtide_tensor::runtime::Kernels;
use kvtide_tensor::{DType, Rotating};
use proptest::prelude::*;

use crate::any_kernels::{any_kernels, under};
use crate::outcome::Done;
use crate::rotating::call::{End, Op, Setup};
use crate::rotating::pair::Pair;
use crate::sequences::sequence;
use crate::sources::Form;
use crate::support;
use crate::tokens::Rows;
use crate::windows::Window;

fn cache_follows_the_model<const PARTS: usize>((kernels, setup, ops): (Kernels, Setup, Vec<Op>)) -> Done
where
    Rotating<PARTS>: Window<PARTS>,
{
    under(kernels, || {
        let mut pair = Pair::<PARTS>::new(setup)?;
        for op in &ops {
            let wrote = pair.call(op)?;
            pair.check(wrote)?;
        }
        pair.check_at_the_end()
    })
}

fn setup(shapes: &'static [(&'static [usize], usize)], parts: u64) -> impl Strategy<Value = Setup> {
    let dtypes = prop::sample::select(&[DType::F32, DType::F16, DType::BF16][..]);
    let rows = (prop::sample::select(shapes), dtypes).prop_map(|((dims, axis), dtype)| Rows::new(dims, axis, dtype));
    let slack = prop_oneof![1 => Just(None), 6 => (0..9u32).prop_map(Some)];
    let capacity = prop_oneof![1 => Just(None), 3 => (0..6u32).prop_map(Some)];
    let limit = prop_oneof![3 => Just(None), 1 => (10..60u64).prop_map(Some)];
    (rows, 1..9u32, 0..4u32, slack, capacity, limit).prop_map(move |(rows, window, sinks, slack, capacity, limit)| {
        let limit = limit.map(|tokens| tokens * parts * rows.token_bytes());
        Setup { rows, window, sinks, slack, capacity, limit }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let form = || prop::sample::select(&Form::ALL[..]);
    let forms = || [form(), form()];
    let end = || prop_oneof![Just(End::Drop), Just(End::Close)];
    let which = || any::<u32>();
    prop_oneof![
        8 => forms().prop_map(|forms| Op::Append(1, forms)),
        4 => (0..9u32, forms()).prop_map(|(tokens, forms)| Op::Append(tokens, forms)),
        1 => (0..24u32, forms()).prop_map(|(tokens, forms)| Op::Append(tokens, forms)),
        1 => (which(), which()).prop_map(|(start, len)| Op::AppendOwn(start, len)),
        2 => (0..12u64).prop_map(Op::SetLen),
        1 => Just(Op::Reset),
        3 => (which(), which()).prop_map(|(start, len)| Op::Look(start, len)),
        1 => which().prop_map(Op::Forget),
        3 => Just(Op::Snapshot),
        1 => which().prop_map(Op::DropSnapshot),
        2 => which().prop_map(Op::Restore),
        1 => (which(), 0..4u32, 0..9u32, end()).prop_map(|(which, n, slack, end)| Op::RestoreElsewhere(which, n, slack, end)),
        1 => (which(), 0..12u32, form(), end()).prop_map(|(which, n, form, end)| Op::Revive(which, n, form, end)),
        1 => (which(), 0..6u64, 0..3u64, 0..4u64).prop_map(|(which, keep, row, batch)| Op::Accepted(which, keep, row, batch)),
    ]
}

#[test]
fn random_calls_on_one_tensor() {
    let shapes: &[(&[usize], usize)] = &[
        (&[1], 0),
        (&[1, 2], 0),
        (&[2, 1], 1),
        (&[2, 1, 3], 1),
        (&[2, 1, 1, 2], 2),
        (&[1, 2, 1, 2], 2),
        (&[2, 2, 1], 2),
    ];
    let calls = (any_kernels(), setup(shapes, 1), sequence(op()));
    support::run("RotatingCache", 20_000, calls, cache_follows_the_model::<1>);
}

#[test]
fn random_calls_on_k_and_v() {
    let shapes: &[(&[usize], usize)] =
        &[(&[1, 1, 1, 1], 2), (&[2, 1, 1, 2], 2), (&[1, 2, 1, 3], 2), (&[2, 2, 1, 1], 2)];
    let calls = (any_kernels(), setup(shapes, 2), sequence(op()));
    support::run("RotatingKvCache", 20_000, calls, cache_follows_the_model::<2>);
}
