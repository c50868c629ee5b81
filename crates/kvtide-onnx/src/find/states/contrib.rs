//! Recognises `CausalConvWithState` and `LinearAttention`, of onnxruntime and of ONNX, whose inputs and attributes
//! determine everything.

use super::{FoundState, StateForm, StateInput, StatePort, check_constant, check_present, refused};
use crate::error::Result;
use crate::find::lookup::{Lookup, SIZES};
use crate::proto::{Attribute, Node};

/// The kernels that kvtide's operator takes.
const KERNELS: std::ops::RangeInclusive<usize> = 2..=8;

/// The sizes of a depthwise convolution.
pub(super) struct Kernel {
    pub channels: usize,
    pub width: usize,
}

impl Kernel {
    /// Reads the weights of a node: `[channels, 1, width]`.
    pub fn of(lookup: &Lookup<'_>, node: &Node, weight: &str) -> Result<Self> {
        let (channels, width) = match lookup.at(SIZES[0])?.dims(weight) {
            Some(&[channels, 1, width]) => (channels, width),
            dims => {
                let dims = dims.map_or("unknown".into(), |dims| format!("{dims:?}"));
                let reason =
                    format!("the dimensions of its weights {weight} are {dims}, expected [channels, 1, kernel]");
                return Err(refused(node, reason));
            }
        };
        if !KERNELS.contains(&width) {
            return Err(refused(node, format!("its kernel has {width} columns, expected 2 to 8")));
        }
        check_constant(lookup, node, "kernel", weight)?;
        Ok(Self { channels, width })
    }

    /// The attributes of `ShortConv` with a state of so many columns, which is in the order of the input.
    pub fn attributes(&self, columns: usize, is_channels_first: bool, silu: bool) -> Vec<Attribute> {
        vec![
            Attribute::int("channels", self.channels as i64),
            Attribute::int("kernel", self.width as i64),
            Attribute::int("columns", columns as i64),
            Attribute::int("channels_first", is_channels_first.into()),
            Attribute::int("state_channels_first", is_channels_first.into()),
            Attribute::int("silu", silu.into()),
        ]
    }
}

/// Checks that an optional bias has a number for each channel, and returns it as an input.
pub(super) fn bias_of(
    lookup: &Lookup<'_>,
    node: &Node,
    bias: Option<&str>,
    channels: usize,
) -> Result<Option<StateInput>> {
    let Some(bias) = bias else { return Ok(None) };
    if lookup.at(SIZES[0])?.dims(bias) != Some(&[channels]) {
        return Err(refused(node, format!("its bias {bias} does not have {channels} numbers")));
    }
    check_constant(lookup, node, "bias", bias)?;
    Ok(StateInput::of(bias))
}

/// Refuses attributes of a node that have another value than the only known one.
fn expect(node: &Node, attributes: &[(&str, i64)]) -> Result<()> {
    for &(name, only) in attributes {
        if let Some(found) = node.int(name).filter(|&found| found != only) {
            return Err(refused(node, format!("its {name} is {found}, expected {only}")));
        }
    }
    Ok(())
}

/// `CausalConvWithState(x, weight, bias, past)`.
pub(super) fn convolution(lookup: &Lookup<'_>, port: &StatePort<'_>, index: usize) -> Result<FoundState> {
    let node = lookup.node(index);
    expect(node, &[("ndim", 1), ("dilation", 1), ("state_window", 0)])?;
    let silu = match node.text("activation").unwrap_or("none") {
        "none" => false,
        "silu" | "swish" => true,
        other => return Err(refused(node, format!("its activation is {other}, expected none, silu or swish"))),
    };
    let (Some(x), Some(weight), Some(output)) = (node.input(0), node.input(1), node.output(0)) else {
        return Err(refused(node, "it has no input, no weights or no output"));
    };
    let kernel = Kernel::of(lookup, node, weight)?;
    let is_last = node.int("channels_last") == Some(1);
    let columns = kernel.width - 1;
    let channels = match lookup.at(SIZES[0])?.dims(x) {
        Some(&[_, _, channels]) if is_last => channels,
        Some(&[_, channels, _]) if !is_last => channels,
        dims => return Err(refused(node, format!("the dimensions of its input {x} are {dims:?}, expected three"))),
    };
    if channels != kernel.channels {
        return Err(refused(node, format!("its input has {channels} channels, its weights {}", kernel.channels)));
    }
    port.check_shape(node, &if is_last { [columns, channels] } else { [channels, columns] })?;
    check_present(lookup, port, node, node.output(1))?;
    let bias = bias_of(lookup, node, node.input(2), channels)?;
    Ok(FoundState {
        state: port.state(StateForm::CausalConvWithState, node),
        operator: "ShortConv",
        attributes: kernel.attributes(columns, !is_last, silu),
        inputs: vec![StateInput::of(x), StateInput::of(weight), bias],
        output: output.into(),
        heads: None,
        index,
    })
}

/// `LinearAttention(query, key, value, past, decay, beta)`.
pub(super) fn attention(lookup: &Lookup<'_>, port: &StatePort<'_>, index: usize) -> Result<FoundState> {
    let node = lookup.node(index);
    expect(node, &[("state_window", 0)])?;
    let [takes_decay, takes_beta] = match node.text("update_rule").unwrap_or("gated_delta") {
        "linear" => [false, false],
        "gated" => [true, false],
        "delta" => [false, true],
        "gated_delta" => [true, true],
        other => {
            let reason = format!("its update_rule is {other}, expected linear, gated, delta or gated_delta");
            return Err(refused(node, reason));
        }
    };
    let (Some(query), Some(key), Some(value), Some(output)) =
        (node.input(0), node.input(1), node.input(2), node.output(0))
    else {
        return Err(refused(node, "it has no queries, keys, values or output"));
    };
    let heads = Heads::of(lookup, node, [query, key, value])?;
    let Heads { queries, keys, values, k_dim, v_dim } = heads;
    port.check_shape(node, &[values, k_dim, v_dim])?;
    check_present(lookup, port, node, node.output(1))?;
    // Inputs that the rule does not take are ignored.
    let decay = gate(lookup, node, takes_decay, ("decay", 4), &[values, values.saturating_mul(k_dim)])?;
    let beta = gate(lookup, node, takes_beta, ("beta", 5), &[values, 1])?;
    let scale = node.float("scale").filter(|&scale| scale != 0.);
    let scale = scale.unwrap_or_else(|| (1. / (k_dim as f64).sqrt()) as f32);
    let int = |name, size| Attribute::int(name, size as i64);
    Ok(FoundState {
        state: port.state(StateForm::LinearAttention, node),
        operator: "LinearAttention",
        attributes: vec![
            int("q_heads", queries),
            int("k_heads", keys),
            int("v_heads", values),
            int("k_dim", k_dim),
            int("v_dim", v_dim),
            Attribute::float("scale", scale),
        ],
        inputs: vec![StateInput::of(query), StateInput::of(key), StateInput::of(value), decay, beta],
        output: output.into(),
        heads: None,
        index,
    })
}

/// The heads of a linear attention, and their elements.
struct Heads {
    queries: usize,
    keys: usize,
    values: usize,
    k_dim: usize,
    v_dim: usize,
}

impl Heads {
    fn of(lookup: &Lookup<'_>, node: &Node, operands: [&str; 3]) -> Result<Self> {
        let wrong = |reason: String| refused(node, reason);
        let evaluation = lookup.at(SIZES[0])?;
        let [query, key, value] = operands.map(|name| match evaluation.dims(name) {
            Some(&[_, _, width]) => Ok(width),
            dims => Err(wrong(format!("the dimensions of {name} are {dims:?}, expected [batch, tokens, width]"))),
        });
        let (query, key, value) = (query?, key?, value?);
        let count = |name: &str| {
            let count = node.int(name).and_then(|heads| usize::try_from(heads).ok());
            count.filter(|heads| (1..=1 << 16).contains(heads)).ok_or_else(|| wrong(format!("it has no {name}")))
        };
        let (queries, values) = (count("q_num_heads")?, count("kv_num_heads")?);
        let is_whole = |width: usize, by: usize| by > 0 && width > 0 && width.is_multiple_of(by);
        let k_dim = query / queries;
        if !is_whole(query, queries) || !is_whole(value, values) || !is_whole(key, k_dim) {
            let widths = format!("{query}, {key} and {value} elements");
            return Err(wrong(format!("{queries} and {values} heads do not divide its operands of {widths}")));
        }
        let keys = key / k_dim;
        let share = |one: usize, other: usize| one.max(other).is_multiple_of(one.min(other));
        if !values.is_multiple_of(keys) || !share(queries, values) || !share(queries, keys) {
            return Err(wrong(format!("it has {queries} heads of queries, {keys} of keys and {values} of values")));
        }
        Ok(Self { queries, keys, values, k_dim, v_dim: value / values })
    }
}

/// The decay or the rate of a linear attention, if its rule takes one.
fn gate(
    lookup: &Lookup<'_>,
    node: &Node,
    is_taken: bool,
    (what, place): (&str, usize),
    widths: &[usize],
) -> Result<Option<StateInput>> {
    if !is_taken {
        return Ok(None);
    }
    let name = node.input(place).ok_or_else(|| refused(node, format!("its rule needs an input {what}")))?;
    match lookup.at(SIZES[0])?.dims(name) {
        Some([_, _, width]) if widths.contains(width) => Ok(StateInput::of(name)),
        dims => {
            let reason = format!("the dimensions of {what} {name} are {dims:?}, expected a width of {widths:?}");
            Err(refused(node, reason))
        }
    }
}
