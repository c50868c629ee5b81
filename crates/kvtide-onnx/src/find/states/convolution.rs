//! Recognises a short convolution that is written with ordinary operators.
//!
//! ```text
//! past [batch, channels, columns] --+
//!                                   Concat --+-- Conv, group = channels -- Slice --> output
//! x [batch, channels, tokens] ------+        +-- Slice --> present
//! ```
//! An exporter may keep more columns than the kernel needs, and then cuts the output. The nodes that cut are checked by an
//! experiment: each column is marked with its place, and the marks must arrive where the operator puts them.

use std::collections::HashMap;

use super::contrib::{Kernel, bias_of};
use super::{FoundState, StateForm, StateInput, StatePort, check_readers, refused};
use crate::error::Result;
use crate::eval::Known;
use crate::find::lookup::{Lookup, SIZES};
use crate::proto::Node;

/// The most nodes that cut a tensor in a row.
const LINKS_MAX: usize = 8;

/// Operators that cut and pass on a tensor.
const CUTS: [&str; 5] = ["Slice", "Split", "Gather", "Identity", "Cast"];

/// The columns of a tensor `[batch, channels, columns]`, as places in the joined tensor, for each choice of sizes.
type Columns = [Vec<usize>; 2];

/// The tensors around a convolution.
struct Parts<'a> {
    /// Past and new columns together.
    joined: &'a str,
    /// The node that joins them, and the number of columns of the past.
    concat: &'a Node,
    columns: usize,
    channels: usize,
}

/// The convolution behind a `Concat` that reads a state.
pub(super) fn find(lookup: &Lookup<'_>, port: &StatePort<'_>, index: usize) -> Result<FoundState> {
    let concat = lookup.node(index);
    let &[channels, columns] = port.shape.as_slice() else {
        return Err(refused(concat, format!("the state {} does not have channels and columns", port.past)));
    };
    let (Some(x), Some(joined), None) = (concat.input(1), concat.output(0), concat.input(2)) else {
        return Err(refused(concat, "it does not join a state and the new columns alone"));
    };
    if !matches!(concat.int("axis"), Some(2 | -1)) {
        return Err(refused(concat, "it does not append columns to the state: expected axis 2"));
    }
    let parts = Parts { joined, concat, columns: columns as usize, channels: channels as usize };
    for sizes in SIZES {
        let dims = lookup.at(sizes)?.dims(x).map(<[_]>::to_vec);
        if !matches!(dims.as_deref(), Some(&[_, found, new]) if (found, new) == (parts.channels, sizes.new)) {
            let reason = format!("the dimensions of {x} are {dims:?}, expected [batch, {channels}, tokens]");
            return Err(refused(concat, reason));
        }
    }
    let present = parts.present(lookup, port)?;
    let (conv, seen) = parts.convolution(lookup, present)?;
    let kernel = parts.checked(lookup, conv)?;
    let output = parts.output(lookup, conv, kernel.width, &seen)?;
    let inputs = vec![
        StateInput::of(x),
        conv.input(1).and_then(StateInput::of),
        bias_of(lookup, conv, conv.input(2), kernel.channels)?,
    ];
    Ok(FoundState {
        state: port.state(StateForm::Convolution, conv),
        operator: "ShortConv",
        attributes: kernel.attributes(parts.columns, true, false),
        inputs,
        output: output.into(),
        heads: None,
        index: lookup.makers[output],
    })
}

impl<'a> Parts<'a> {
    /// The first node between the joined tensor and the present. Fails unless that has the last columns.
    fn present(&self, lookup: &Lookup<'a>, port: &StatePort<'_>) -> Result<Option<&'a Node>> {
        let to = port.present.as_str();
        check_readers(lookup, to, None)?;
        let mut nodes = Vec::new();
        let mut name = to;
        while name != self.joined {
            let maker = lookup.maker(name).filter(|node| cuts(node) && nodes.len() < LINKS_MAX);
            let Some((maker, before)) = maker.and_then(|node| Some((node, node.input(0)?))) else {
                return Err(refused(self.concat, format!("{to} is not cut out of {}", self.joined)));
            };
            nodes.push(maker);
            if before != self.joined {
                check_readers(lookup, before, maker.output(0))?;
            }
            name = before;
        }
        nodes.reverse();
        let whole = SIZES.map(|sizes| (0..self.columns + sizes.new).collect());
        let last = SIZES.map(|sizes| (sizes.new..sizes.new + self.columns).collect());
        if cut(lookup, [self.joined, to], &nodes, &whole)? != Some(last) {
            let reason = format!("{to} does not have the last {} columns of {}", self.columns, self.joined);
            return Err(refused(self.concat, reason));
        }
        Ok(nodes.first().copied())
    }

    /// The convolution behind the joined tensor, and the columns that it sees.
    fn convolution(&self, lookup: &Lookup<'a>, present: Option<&'a Node>) -> Result<(&'a Node, Columns)> {
        let mut name = self.joined;
        let mut columns = SIZES.map(|sizes| (0..self.columns + sizes.new).collect());
        for _ in 0..LINKS_MAX {
            let node = only_reader(lookup, name, present)
                .ok_or_else(|| refused(self.concat, format!("{name} is not read by a convolution alone")))?;
            if node.is("", "Conv") && node.input(0) == Some(name) && node.input(1) != Some(name) {
                return Ok((node, columns));
            }
            (name, columns) = forwards(lookup, node, name, &columns)?;
        }
        Err(refused(self.concat, "no convolution follows"))
    }

    /// Checks that a node convolves each channel with its own kernel, step by step.
    fn checked(&self, lookup: &Lookup<'_>, conv: &Node) -> Result<Kernel> {
        let Some(weight) = conv.input(1) else { return Err(refused(conv, "it has no weights")) };
        let kernel = Kernel::of(lookup, conv, weight)?;
        let group = conv.int("group").unwrap_or(1);
        if group != self.channels as i64 || kernel.channels != self.channels {
            let reason = format!(
                "its group is {group} and its weights have {} channels, expected {} for both",
                kernel.channels, self.channels
            );
            return Err(refused(conv, reason));
        }
        for name in ["strides", "dilations"] {
            if let Some(found) = conv.ints(name).filter(|found| *found != [1]) {
                return Err(refused(conv, format!("its {name} are {found:?}, expected [1]")));
            }
        }
        if let Some(pad) = conv.text("auto_pad").filter(|&pad| pad != "NOTSET") {
            return Err(refused(conv, format!("its auto_pad is {pad}, expected NOTSET")));
        }
        if self.columns + 1 < kernel.width {
            let reason = format!("the state has {} columns, too few for a kernel of {}", self.columns, kernel.width);
            return Err(refused(conv, reason));
        }
        Ok(kernel)
    }

    /// The tensor with the results of the new tokens: that of the convolution, or one that is cut out of it.
    fn output(&self, lookup: &Lookup<'a>, conv: &'a Node, kernel: usize, seen: &Columns) -> Result<&'a str> {
        let wrong =
            || refused(conv, "its results are not those of the new tokens: each from its own column and those before");
        let mut name = conv.output(0).ok_or_else(wrong)?;
        let pad = usize::try_from(conv.ints("pads").and_then(|pads| pads.first().copied()).unwrap_or(0));
        let pad = pad.map_err(|_| wrong())?;
        let mut columns = [Vec::new(), Vec::new()];
        for (place, own) in seen.iter().enumerate() {
            let count = match lookup.at(SIZES[place])?.dims(name) {
                Some(&[_, _, count]) => count,
                _ => return Err(wrong()),
            };
            // Results of padding have no column.
            let last = |at: usize| at.checked_sub(pad).and_then(|first| own.get(first + kernel - 1).copied());
            columns[place] = (0..count).map(|at| last(at).unwrap_or(usize::MAX)).collect();
        }
        let wanted: Columns = SIZES.map(|sizes| (self.columns..self.columns + sizes.new).collect());
        for _ in 0..LINKS_MAX {
            if columns == wanted {
                return Ok(name);
            }
            let node = only_reader(lookup, name, None).ok_or_else(wrong)?;
            (name, columns) = forwards(lookup, node, name, &columns).map_err(|_| wrong())?;
        }
        Err(wrong())
    }
}

/// The only node besides `other` that reads the numbers of a tensor.
fn only_reader<'a>(lookup: &Lookup<'a>, name: &str, other: Option<&Node>) -> Option<&'a Node> {
    let all = lookup.readers.get(name)?.iter().map(|&index| lookup.node(index));
    let mut readers = all.filter(|node| !node.is("", "Shape") && other.is_none_or(|other| !std::ptr::eq(*node, other)));
    readers.next().filter(|_| readers.next().is_none())
}

/// The output of a node that cuts a tensor, and its columns.
fn forwards<'a>(lookup: &Lookup<'a>, node: &'a Node, from: &str, columns: &Columns) -> Result<(&'a str, Columns)> {
    let wrong = || refused(node, format!("it does not cut whole columns out of {from}"));
    let is_cut = cuts(node) && node.input(0) == Some(from) && node.outputs.len() == 1;
    let to = node.output(0).filter(|_| is_cut).ok_or_else(wrong)?;
    let columns = cut(lookup, [from, to], &[node], columns)?.ok_or_else(wrong)?;
    Ok((to, columns))
}

/// The columns of a tensor that `nodes` cut out of another one, which has `columns`; [`None`] unless these are columns
/// one behind the other, of all sequences and channels.
fn cut(lookup: &Lookup<'_>, [from, to]: [&str; 2], nodes: &[&Node], columns: &Columns) -> Result<Option<Columns>> {
    let mut found = [Vec::new(), Vec::new()];
    for (place, own) in columns.iter().enumerate() {
        let evaluation = lookup.at(SIZES[place])?;
        let Some(&[batch, channels, width]) = evaluation.dims(from) else { return Ok(None) };
        let marked = Known::filled(evaluation.get(from).element, vec![batch, channels, width], |at| at as f64);
        let given = HashMap::from([(from.to_owned(), marked)]);
        let made = evaluation.rerun(nodes, &lookup.constants, given)?.remove(to).unwrap_or_default();
        let (Some(&[rows, again, count]), Some(data)) = (made.dims.as_deref(), &made.data) else { return Ok(None) };
        let first = data.first().copied().unwrap_or(f64::NAN);
        let mark = |at: usize| (at / count * width + at % count) as f64 + first;
        let is_cut =
            (rows, again) == (batch, channels) && data.iter().enumerate().all(|(at, &found)| found == mark(at));
        let own = own.get(first as usize..).and_then(|rest| rest.get(..count));
        match own.filter(|_| is_cut && width == columns[place].len()) {
            Some(own) => found[place] = own.to_vec(),
            None => return Ok(None),
        }
    }
    Ok(Some(found))
}

fn cuts(node: &Node) -> bool {
    node.domain.is_empty() && CUTS.contains(&node.operator.as_str())
}
