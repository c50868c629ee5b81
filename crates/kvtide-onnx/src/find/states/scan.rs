//! Recognises a state space model that is written as a `Scan` over the tokens.
//!
//! ```text
//! step = limits(softplus(dt + bias)), decay = e^(step a), written = step x       before the scan, [batch, tokens, heads, ..]
//! S = decay S + written b;  y = S c                                              its body, for one token
//! ```
//! The body is not compared but run, with small sizes and distinct numbers: its results have to be those of the formulas.
//! The tensors before it are followed back to `step` and `x`, which kvtide's operator takes.

use std::collections::HashMap;

use super::{FoundState, StateForm, StateInput, StatePort, check_present, is_constant, refused};
use crate::error::Result;
use crate::eval::Known;
use crate::find::lookup::{Lookup, SIZES};
use crate::proto::{Attribute, Graph, Node};

/// Operators whose results do not depend on sizes: a body of these does the same for all sizes.
const BODY: [&str; 9] = ["Mul", "Add", "Exp", "Unsqueeze", "ReduceSum", "Identity", "Cast", "Constant", "Transpose"];

/// The axes of decays behind the tokens, besides that of heads: none, or those of a state.
const UNITS: [&[usize]; 2] = [&[], &[1, 1]];

/// Heads, their elements, and elements of the state in the experiment. No two are equal.
const TRIED: [usize; 3] = [2, 3, 5];

/// The tensors that a scan reads for each token: decays, values times their steps, keys and queries.
struct Scanned<'a> {
    decay: &'a str,
    written: &'a str,
    key: &'a str,
    query: &'a str,
}

/// The times of the tokens, before the bias, softplus and limits that the operator applies.
struct Times<'a> {
    dt: &'a str,
    bias: Option<&'a str>,
    softplus: bool,
    limits: Option<[f32; 2]>,
}

/// The state space model of a `Scan` that reads a state.
pub(super) fn find(lookup: &Lookup<'_>, port: &StatePort<'_>, index: usize) -> Result<FoundState> {
    let node = lookup.node(index);
    let wrong = |reason: String| refused(node, reason);
    let &[heads, head_dim, size] = port.shape.as_slice() else {
        return Err(wrong(format!("the state {} does not have heads, their elements and a state for each", port.past)));
    };
    let body = body(node)?;
    check_present(lookup, port, node, node.output(0))?;
    let sizes = [heads, head_dim, size].map(|size| size as usize);
    let count = sizes[0];
    let scanned = Scanned::of(lookup, node, body, sizes)?;
    let decay = unexpanded(lookup, scanned.decay);
    let (step, a) = decayed(lookup, node, decay, count)?;
    let x = factor(lookup, scanned.written, step).ok_or_else(|| {
        wrong(format!("{} is not the product of a tensor and {step}, which also makes its decays", scanned.written))
    })?;
    let times = Times::of(lookup, step, count)?;
    let evaluation = lookup.at(SIZES[0])?;
    for (name, like) in [(x, scanned.written), (times.dt, decay)] {
        if evaluation.dims(name) != evaluation.dims(like) {
            return Err(wrong(format!("{name} does not have the dimensions of {like}")));
        }
    }
    let [key, query] = [scanned.key, scanned.query].map(|name| grouped(lookup, name, count));
    let ((key, groups), (query, others)) = (key?, query?);
    let (key, query, groups) =
        if groups == others { (key, query, groups) } else { (scanned.key, scanned.query, count) };
    let mut attributes = vec![
        Attribute::int("heads", heads.into()),
        Attribute::int("head_dim", head_dim.into()),
        Attribute::int("groups", groups as i64),
        Attribute::int("state_size", size.into()),
        Attribute::int("softplus", times.softplus.into()),
    ];
    attributes.extend(times.limits.map(|limits| Attribute::floats("limits", &limits)));
    Ok(FoundState {
        state: port.state(StateForm::Scan, node),
        operator: "StateSpace",
        attributes,
        inputs: vec![
            StateInput::apart(x),
            StateInput::apart(key),
            StateInput::apart(query),
            StateInput::of(times.dt),
            StateInput::of(a),
            None,
            times.bias.and_then(StateInput::of),
        ],
        output: node.output(1).unwrap_or_default().into(),
        heads: Some([heads, head_dim]),
        index,
    })
}

/// The body of a scan with one state and four tensors, along the tokens.
fn body(node: &Node) -> Result<&Graph> {
    let wrong = |reason: &str| refused(node, reason);
    let body = node.graphs().next().ok_or_else(|| wrong("it has no body"))?;
    let counts = (node.inputs.len(), node.outputs.len(), node.int("num_scan_inputs"));
    if counts != (5, 2, Some(4)) || (body.inputs.len(), body.outputs.len()) != (5, 2) {
        return Err(wrong("expected a state, four tensors of all tokens, and one result"));
    }
    let is_all = |name: &str, only: i64| node.ints(name).is_some_and(|axes| axes.iter().all(|&axis| axis == only));
    if !is_all("scan_input_axes", 1) || !is_all("scan_output_axes", 1) {
        return Err(wrong("it does not run along axis 1 of all tensors"));
    }
    for name in ["scan_input_directions", "scan_output_directions"] {
        if node.ints(name).is_some_and(|directions| directions.iter().any(|&direction| direction != 0)) {
            return Err(wrong("it runs backwards"));
        }
    }
    if !body.captured.is_empty() {
        return Err(wrong("its body reads tensors from outside"));
    }
    match body.nodes.iter().find(|inner| !inner.domain.is_empty() || !BODY.contains(&inner.operator.as_str())) {
        Some(inner) => Err(refused(inner, format!("it is in the body of {}, where it is not known", node.called()))),
        None => Ok(body),
    }
}

/// Numbers of an experiment: small and all different.
fn numbers(seed: usize, count: usize) -> Vec<f64> {
    (0..count).map(|at| ((at * 37 + seed * 101 + 13) % 251) as f64 / 64. - 1.5).collect()
}

impl<'a> Scanned<'a> {
    /// The roles of the tensors that a scan reads, by an experiment with its body.
    fn of(lookup: &Lookup<'a>, node: &'a Node, body: &Graph, sizes: [usize; 3]) -> Result<Self> {
        let [heads, dim, size] = sizes;
        let evaluation = lookup.at(SIZES[0])?;
        let (batch, new) = (SIZES[0].batch, SIZES[0].new);
        let is = |name: &str, rest: &[usize]| {
            evaluation.dims(name).is_some_and(|dims| dims == [&[batch, new][..], rest].concat())
        };
        let names: Vec<&str> = node.inputs[1..].iter().map(String::as_str).collect();
        for (order, units) in orders().flat_map(|order| UNITS.map(|units| (order, units))) {
            let roles = order.map(|place| names[place]);
            let wanted = [[&[heads], units].concat(), vec![heads, dim], vec![heads, size], vec![heads, size]];
            if !roles.iter().zip(&wanted).all(|(name, rest)| is(name, rest)) {
                continue;
            }
            if follows(lookup, body, order, units)? {
                let [decay, written, key, query] = roles;
                return Ok(Self { decay, written, key, query });
            }
        }
        let reason = "its body does not give S = decay S + written b and y = S c, for [batch, tokens, heads, ..]";
        Err(refused(node, reason))
    }
}

/// All orders of four places.
fn orders() -> impl Iterator<Item = [usize; 4]> {
    let all = (0..256).map(|code: usize| [code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6]);
    all.filter(|order| (0..4).all(|place| order.contains(&place)))
}

/// True if a body computes the formulas, with decays, values, keys and queries at these places.
fn follows(lookup: &Lookup<'_>, body: &Graph, order: [usize; 4], units: &[usize]) -> Result<bool> {
    let [heads, dim, size] = TRIED;
    let shapes = [[&[1, heads], units].concat(), vec![1, heads, dim], vec![1, heads, size], vec![1, heads, size]];
    let state = numbers(0, heads * dim * size);
    let tried: Vec<Vec<f64>> =
        shapes.iter().enumerate().map(|(role, shape)| numbers(role + 1, shape.iter().product())).collect();
    let evaluation = lookup.at(SIZES[0])?;
    let mut given = HashMap::new();
    let known = |shape: Vec<usize>, data: &[f64]| Known::full(None, shape, data.to_vec());
    given.insert(body.inputs[0].name.clone(), known(vec![1, heads, dim, size], &state));
    for (role, &place) in order.iter().enumerate() {
        given.insert(body.inputs[place + 1].name.clone(), known(shapes[role].clone(), &tried[role]));
    }
    for tensor in &body.initializers {
        given.insert(tensor.name.clone(), lookup.constants.tensor(tensor)?);
    }
    let nodes: Vec<&Node> = body.nodes.iter().collect();
    let made = evaluation.rerun(&nodes, &lookup.constants, given)?;
    let [decay, written, key, query] = [0, 1, 2, 3].map(|role: usize| &tried[role]);
    let next: Vec<f64> = (0..state.len())
        .map(|at| {
            let (head, row, column) = (at / (dim * size), at / size, at % size);
            decay[head] * state[at] + written[row] * key[head * size + column]
        })
        .collect();
    let product = |row: usize, column: usize| next[row * size + column] * query[row / dim * size + column];
    let read = |row: usize| (0..size).map(|column| product(row, column)).sum::<f64>();
    let result: Vec<f64> = (0..heads * dim).map(read).collect();
    let is = |output: usize, shape: &[usize], wanted: &[f64]| {
        let found = made.get(&body.outputs[output].name);
        found.is_some_and(|found| {
            let is_close = |(one, other): (&f64, &f64)| (one - other).abs() < 1e-9;
            found.dims.as_deref() == Some(shape)
                && found.data.as_ref().is_some_and(|data| data.iter().zip(wanted).all(is_close))
        })
    };
    Ok(is(0, &[1, heads, dim, size], &next) && is(1, &[1, heads, dim], &result))
}

/// The operands of a node in both orders.
fn operands<'a>(lookup: &Lookup<'a>, name: &str, operator: &str) -> Option<[[&'a str; 2]; 2]> {
    let node = lookup.maker(name).filter(|node| node.is("", operator))?;
    let (one, other) = (node.input(0)?, node.input(1)?);
    Some([[one, other], [other, one]])
}

/// Decays before they get the axes of a state.
fn unexpanded<'a>(lookup: &Lookup<'a>, name: &'a str) -> &'a str {
    let before = added_axes(lookup, name).filter(|(_, axes)| matches!(axes[..], [-2, -1] | [-1, -2] | [3, 4] | [4, 3]));
    before.map_or(name, |(before, _)| before)
}

/// The tensor to which an `Unsqueeze` adds axes, and the axes.
fn added_axes<'a>(lookup: &Lookup<'a>, name: &str) -> Option<(&'a str, Vec<i64>)> {
    let node = lookup.maker(name).filter(|node| node.is("", "Unsqueeze"))?;
    let axes = match node.ints("axes") {
        Some(axes) => axes.to_vec(),
        None => lookup.at(SIZES[0]).ok()?.get(node.input(1)?).ints()?,
    };
    Some((node.input(0)?, axes))
}

/// The times and the factors whose products are the logarithms of the decays.
fn decayed<'a>(lookup: &Lookup<'a>, node: &Node, decay: &'a str, heads: usize) -> Result<(&'a str, &'a str)> {
    let logarithm = lookup.maker(decay).filter(|node| node.is("", "Exp")).and_then(|node| node.input(0));
    for [step, a] in logarithm.and_then(|name| operands(lookup, name, "Mul")).into_iter().flatten() {
        if has_numbers(lookup, a, heads)? && is_constant(lookup, a) {
            return Ok((step, a));
        }
    }
    let reason = format!("its decays {decay} are not e^(step a) with a weight a of {heads} numbers");
    Err(refused(node, reason))
}

/// True if a tensor has one number for each head, on its last axis.
fn has_numbers(lookup: &Lookup<'_>, name: &str, heads: usize) -> Result<bool> {
    let evaluation = lookup.at(SIZES[0])?;
    let dims = evaluation.dims(name);
    Ok(dims.is_some_and(|dims| dims.last() == Some(&heads) && dims.iter().product::<usize>() == heads))
}

/// The other factor of a product with `step`, which has another axis.
fn factor<'a>(lookup: &Lookup<'a>, product: &str, step: &str) -> Option<&'a str> {
    let is_step = |name: &str| {
        added_axes(lookup, name).is_some_and(|(before, axes)| before == step && (axes == [-1] || axes == [3]))
    };
    operands(lookup, product, "Mul")?.into_iter().find(|[_, other]| is_step(other)).map(|[x, _]| x)
}

impl<'a> Times<'a> {
    /// Follows times back to the tensor from which the operator computes them.
    fn of(lookup: &Lookup<'a>, step: &'a str, heads: usize) -> Result<Self> {
        let made = |name: &str, operator: &str| lookup.maker(name).filter(|node| node.is("", operator));
        let mut limits = None;
        let mut name = step;
        if let Some(clip) = made(step, "Clip") {
            let bound = |place: usize| clip.input(place).map_or(Ok(None), |name| lookup.scalar(name));
            let bounds = (clip.input(0), bound(1)?, bound(2)?);
            if let (Some(before), Some(low), Some(high)) = bounds
                && low < high
            {
                limits = Some([low as f32, high as f32]);
                name = before;
            }
        }
        // A lower limit alone is also written as a maximum.
        for [before, least] in operands(lookup, step, "Max").into_iter().flatten() {
            if let Some(low) = lookup.scalar(least)? {
                limits = Some([low as f32, f32::MAX]);
                name = before;
            }
        }
        let Some(before) = made(name, "Softplus").and_then(|node| node.input(0)) else {
            return Ok(Self { dt: name, bias: None, softplus: false, limits });
        };
        for [dt, bias] in operands(lookup, before, "Add").into_iter().flatten() {
            if has_numbers(lookup, bias, heads)? && is_constant(lookup, bias) {
                return Ok(Self { dt, bias: Some(bias), softplus: true, limits });
            }
        }
        Ok(Self { dt: before, bias: None, softplus: true, limits })
    }
}

/// Keys or queries before they are repeated for the heads of each group, and the number of groups.
fn grouped<'a>(lookup: &Lookup<'a>, name: &'a str, heads: usize) -> Result<(&'a str, usize)> {
    let whole = Ok((name, heads));
    let Some(gather) = lookup.maker(name).filter(|node| node.is("", "Gather") && node.int("axis") == Some(2)) else {
        return whole;
    };
    let (Some(before), Some(chosen)) = (gather.input(0), gather.input(1)) else { return whole };
    let evaluation = lookup.at(SIZES[0])?;
    let Some(&[_, _, groups, _]) = evaluation.dims(before) else { return whole };
    let repeated = evaluation.get(chosen).data.as_ref().is_some_and(|data| {
        data.len() == heads && data.iter().enumerate().all(|(head, &group)| group == (head * groups / heads) as f64)
    });
    if !repeated || groups == 0 || !heads.is_multiple_of(groups) { whole } else { Ok((before, groups)) }
}
