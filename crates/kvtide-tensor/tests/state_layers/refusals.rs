//! Calls whose sizes do not fit. A refused call writes nothing.

use kvtide_core::Code;
use kvtide_tensor::Result;
use kvtide_tensor::states::{
    ChannelSsm, LinearAttention, Order, Rows, ShortConv, Ssm, StepState, StepTimes, channel_ssm, linear_attention,
    short_conv, ssm,
};

const FLOATS: [f32; 64] = [0.5; 64];

/// Runs a call with one state of `state` floats and an output of `out`, and expects an error that contains `text`.
fn refused(
    code: Code,
    text: &str,
    [state, out]: [usize; 2],
    call: impl Fn(&mut [StepState<'_>], &mut [f32]) -> Result<()>,
) {
    let (mut target, mut out) = (vec![7.0; state], vec![7.0; out]);
    let error = call(&mut [StepState::new(None, &mut target)], &mut out).unwrap_err();
    assert_eq!(error.code(), code, "{error}");
    assert!(error.to_string().contains(text), "{error}");
    assert!(target.iter().chain(&out).all(|float| *float == 7.0), "nothing is written");
}

/// Two heads of 2 by 3, for two tokens.
fn attention() -> LinearAttention<'static> {
    LinearAttention {
        query: Rows::new(&FLOATS[..8], 4),
        key: Rows::new(&FLOATS[..8], 4),
        value: Rows::new(&FLOATS[..12], 6),
        decay: Some(Rows::new(&FLOATS[..4], 2)),
        beta: Some(Rows::new(&FLOATS[..4], 2)),
        q_heads: 2,
        k_heads: 2,
        v_heads: 2,
        scale: None,
        l2_norm: None,
    }
}

#[test]
fn attention_of_other_sizes() {
    use Code::{InvalidArgument, ShapeMismatch};
    let whole = attention();
    let calls = [
        (InvalidArgument, "k_heads", LinearAttention { k_heads: 0, ..whole }),
        (InvalidArgument, "v_heads", LinearAttention { v_heads: 3, ..whole }),
        (InvalidArgument, "q_heads", LinearAttention { q_heads: 0, ..whole }),
        (InvalidArgument, "q_heads", LinearAttention { q_heads: 3, ..whole }),
        (InvalidArgument, "key", LinearAttention { key: Rows::new(&FLOATS[..10], 5), ..whole }),
        (InvalidArgument, "value", LinearAttention { value: Rows::new(&FLOATS[..10], 5), ..whole }),
        (ShapeMismatch, "query", LinearAttention { query: Rows::new(&FLOATS[..12], 6), ..whole }),
        (ShapeMismatch, "value", LinearAttention { value: Rows::new(&FLOATS[..11], 6), ..whole }),
        (ShapeMismatch, "key", LinearAttention { key: Rows::strided(&FLOATS, 4, 3), ..whole }),
        (ShapeMismatch, "key", LinearAttention { key: Rows::strided(&FLOATS, 4, usize::MAX), ..whole }),
        (ShapeMismatch, "decay", LinearAttention { decay: Some(Rows::new(&FLOATS[..6], 3)), ..whole }),
        (ShapeMismatch, "beta", LinearAttention { beta: Some(Rows::new(&FLOATS[..8], 4)), ..whole }),
    ];
    for (code, text, call) in calls {
        refused(code, text, [12, 12], |states, out| linear_attention(&call, &[0, 2], states, out));
    }
    for offsets in [&[0usize, 1, 2][..], &[0], &[], &[1, 2], &[0, 2, 1], &[2, 0]] {
        refused(ShapeMismatch, "", [12, 12], |states, out| linear_attention(&whole, offsets, states, out));
    }
    refused(ShapeMismatch, "target", [11, 12], |states, out| linear_attention(&whole, &[0, 2], states, out));
    refused(ShapeMismatch, "out", [12, 13], |states, out| linear_attention(&whole, &[0, 2], states, out));
    let (source, mut target) = ([0.0; 11], [7.0; 12]);
    let states = &mut [StepState::new(Some(&source), &mut target)];
    let error = linear_attention(&whole, &[0, 2], states, &mut [7.0; 12]).unwrap_err();
    assert_eq!(error.to_string(), "source has shape [11], expected 12 floats for [12]");
}

#[test]
fn models_of_other_sizes() {
    use Code::{InvalidArgument, ShapeMismatch};
    let times = StepTimes { dt: Rows::new(&FLOATS[..4], 2), bias: None, softplus: true, limits: None };
    let whole = Ssm {
        x: Rows::new(&FLOATS[..12], 6),
        b: Rows::new(&FLOATS[..8], 4),
        c: Rows::new(&FLOATS[..8], 4),
        times,
        a: &FLOATS[..2],
        d: None,
        heads: 2,
        groups: 1,
    };
    let limits = Some([1.0, f32::NAN]);
    let calls = [
        (InvalidArgument, "groups", Ssm { groups: 0, ..whole }),
        (InvalidArgument, "heads", Ssm { heads: 5, groups: 2, ..whole }),
        (InvalidArgument, "x", Ssm { heads: 4, ..whole }),
        (ShapeMismatch, "c has", Ssm { c: Rows::new(&FLOATS[..10], 5), ..whole }),
        (ShapeMismatch, "a has", Ssm { a: &FLOATS[..3], ..whole }),
        (ShapeMismatch, "d has", Ssm { d: Some(&FLOATS[..3]), ..whole }),
        (ShapeMismatch, "dt", Ssm { times: StepTimes { dt: Rows::new(&FLOATS[..6], 3), ..times }, ..whole }),
        (ShapeMismatch, "dt_bias", Ssm { times: StepTimes { bias: Some(&FLOATS[..3]), ..times }, ..whole }),
        (InvalidArgument, "limits", Ssm { times: StepTimes { limits, ..times }, ..whole }),
    ];
    for (code, text, call) in calls {
        refused(code, text, [24, 12], |states, out| ssm(&call, &[0, 2], states, out));
    }
    refused(ShapeMismatch, "target", [23, 12], |states, out| ssm(&whole, &[0, 2], states, out));
    let of_channels =
        ChannelSsm { x: Rows::new(&FLOATS[..4], 2), b: whole.b, c: whole.c, times, a: &FLOATS[..8], d: None };
    let other = ChannelSsm { a: &FLOATS[..7], ..of_channels };
    refused(ShapeMismatch, "a has", [8, 4], |states, out| channel_ssm(&other, &[0, 2], states, out));
    refused(ShapeMismatch, "out", [8, 5], |states, out| channel_ssm(&of_channels, &[0, 2], states, out));
}

#[test]
fn convolutions_of_other_sizes() {
    use Code::{InvalidArgument, ShapeMismatch};
    let whole = ShortConv {
        weight: &FLOATS[..6],
        bias: None,
        channels: 2,
        kernel: 3,
        columns: 2,
        rows: Order::Tokens,
        states: Order::Channels,
        silu: false,
    };
    let calls = [
        (InvalidArgument, "channels", ShortConv { channels: 0, ..whole }),
        (InvalidArgument, "kernel", ShortConv { kernel: 1, ..whole }),
        (InvalidArgument, "kernel", ShortConv { kernel: 9, ..whole }),
        (InvalidArgument, "columns", ShortConv { columns: 1, ..whole }),
        (ShapeMismatch, "weight", ShortConv { weight: &FLOATS[..5], ..whole }),
        (ShapeMismatch, "bias", ShortConv { bias: Some(&FLOATS[..3]), ..whole }),
        (ShapeMismatch, "target", ShortConv { columns: 3, ..whole }),
    ];
    for (code, text, call) in calls {
        refused(code, text, [4, 4], |states, out| short_conv(&call, &FLOATS[..4], &[0, 2], states, out));
    }
    refused(ShapeMismatch, "x has", [4, 4], |states, out| short_conv(&whole, &FLOATS[..5], &[0, 2], states, out));
    refused(ShapeMismatch, "out", [4, 3], |states, out| short_conv(&whole, &FLOATS[..4], &[0, 2], states, out));
}
