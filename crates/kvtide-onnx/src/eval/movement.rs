//! Operators that move elements without computing: shapes, views, slices, gathers.

use super::Known;
use super::known::{axis, broadcast, coordinates, count, place};
use crate::proto::{ElementType, Node};

pub(super) fn apply(node: &Node, inputs: &[&Known]) -> Option<Vec<Known>> {
    let value = *inputs.first()?;
    let one = match node.operator.as_str() {
        "Shape" => shape(node, value)?,
        "Size" => Known::scalar(ElementType::I64, count(value.dims.as_ref()?)? as f64),
        "Reshape" => reshape(node, value, inputs.get(1)?)?,
        "Flatten" => flatten(node, value)?,
        "Unsqueeze" => unsqueeze(value, &axes(node, inputs)?)?,
        "Squeeze" => squeeze(node, value, inputs)?,
        "Transpose" => transpose(node, value)?,
        "Expand" => expand(value, inputs.get(1)?)?,
        "Tile" => tile(value, inputs.get(1)?)?,
        "Concat" => concat(node, inputs)?,
        "Slice" => slice(node, inputs)?,
        "Gather" => gather(node, inputs)?,
        "Trilu" => trilu(node, inputs)?,
        "Range" => range(inputs)?,
        "Split" => return split(node, inputs),
        _ => return None,
    };
    Some(vec![one])
}

/// Axes from the attribute, or, in later opsets, from the second input.
pub(super) fn axes(node: &Node, inputs: &[&Known]) -> Option<Vec<i64>> {
    match node.ints("axes") {
        Some(axes) => Some(axes.to_vec()),
        None => inputs.get(1)?.ints(),
    }
}

fn shape(node: &Node, value: &Known) -> Option<Known> {
    let dims = value.dims.as_ref()?;
    let rank = dims.len() as i64;
    let bound = |at: i64| if at < 0 { at + rank } else { at }.clamp(0, rank) as usize;
    let (start, end) = (bound(node.int("start").unwrap_or(0)), bound(node.int("end").unwrap_or(rank)));
    Some(Known::list(ElementType::I64, dims.get(start..end)?.iter().map(|&dim| dim as f64).collect()))
}

fn viewed(value: &Known, dims: Vec<usize>) -> Option<Known> {
    let own = value.dims.as_ref()?;
    // The rows and columns of a table stay its last axes.
    let band = value.band.filter(|_| dims.len() >= 2 && own.ends_with(&dims[dims.len() - 2..]));
    (count(&dims)? == count(own)?).then(|| Known { dims: Some(dims), band, ..value.clone() })
}

fn reshape(node: &Node, value: &Known, to: &Known) -> Option<Known> {
    let own = value.dims.as_ref()?;
    let zero = node.int("allowzero") == Some(1);
    let mut dims = Vec::new();
    let mut free = None;
    for (index, &dim) in to.ints()?.iter().enumerate() {
        dims.push(match dim {
            -1 => {
                free = Some(index);
                1
            }
            0 if !zero => *own.get(index)?,
            dim => usize::try_from(dim).ok()?,
        });
    }
    if let Some(index) = free {
        dims[index] = count(own)?.checked_div(count(&dims)?)?;
    }
    viewed(value, dims)
}

fn flatten(node: &Node, value: &Known) -> Option<Known> {
    let dims = value.dims.as_ref()?;
    let at = node.int("axis").unwrap_or(1);
    let at = if at < 0 { at + dims.len() as i64 } else { at };
    let (front, back) = dims.split_at_checked(usize::try_from(at).ok()?)?;
    viewed(value, vec![count(front)?, count(back)?])
}

fn unsqueeze(value: &Known, axes: &[i64]) -> Option<Known> {
    let own = value.dims.as_ref()?;
    let rank = own.len() + axes.len();
    let new: Vec<usize> = axes.iter().map(|&at| axis(at, rank)).collect::<Option<_>>()?;
    let mut rest = own.iter().copied();
    let dims =
        (0..rank).map(|index| if new.contains(&index) { Some(1) } else { rest.next() }).collect::<Option<_>>()?;
    viewed(value, dims)
}

fn squeeze(node: &Node, value: &Known, inputs: &[&Known]) -> Option<Known> {
    let own = value.dims.as_ref()?;
    let gone: Vec<usize> = match axes(node, inputs) {
        Some(axes) => axes.iter().map(|&at| axis(at, own.len())).collect::<Option<_>>()?,
        None => (0..own.len()).filter(|&index| own[index] == 1).collect(),
    };
    viewed(value, (0..own.len()).filter(|index| !gone.contains(index)).map(|index| own[index]).collect())
}

fn transpose(node: &Node, value: &Known) -> Option<Known> {
    let own = value.dims.as_ref()?;
    let order: Vec<usize> = match node.ints("perm") {
        Some(order) => order.iter().map(|&at| axis(at, own.len())).collect::<Option<_>>()?,
        None => (0..own.len()).rev().collect(),
    };
    if order.len() != own.len() {
        return None;
    }
    let dims: Vec<usize> = order.iter().map(|&from| own[from]).collect();
    let (shape, mut at, mut source) = (dims.clone(), vec![0; own.len()], vec![0; own.len()]);
    Some(value.moved(dims, |index| {
        coordinates(index, &shape, &mut at);
        for (&to, &from) in at.iter().zip(&order) {
            source[from] = to;
        }
        place(&source, own)
    }))
}

fn expand(value: &Known, to: &Known) -> Option<Known> {
    let own = value.dims.as_ref()?;
    let wanted: Vec<usize> = to.ints()?.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<_>>()?;
    let dims = broadcast(own, &wanted)?;
    let (shape, mut at) = (dims.clone(), vec![0; dims.len()]);
    Some(value.moved(dims, |index| {
        coordinates(index, &shape, &mut at);
        place(&at, own)
    }))
}

fn tile(value: &Known, repeats: &Known) -> Option<Known> {
    let own = value.dims.as_ref()?;
    let repeats = repeats.ints().filter(|repeats| repeats.len() == own.len())?;
    let dims: Vec<usize> =
        own.iter().zip(repeats).map(|(&dim, times)| dim.checked_mul(times.try_into().ok()?)).collect::<Option<_>>()?;
    let (shape, mut at) = (dims.clone(), vec![0; dims.len()]);
    Some(value.moved(dims, |index| {
        coordinates(index, &shape, &mut at);
        at.iter_mut().zip(own).for_each(|(at, &dim)| *at %= dim.max(1));
        place(&at, own)
    }))
}

fn concat(node: &Node, inputs: &[&Known]) -> Option<Known> {
    let first = inputs.first()?;
    let own = first.dims.as_ref()?;
    let at = axis(node.int("axis")?, own.len())?;
    let mut dims = own.clone();
    dims[at] = inputs.iter().try_fold(0usize, |sum, value| {
        let other = value.dims.as_ref().filter(|other| other.len() == own.len())?;
        sum.checked_add(other[at])
    })?;
    let all: Option<Vec<_>> = inputs.iter().map(|value| Some((value.data.as_ref()?, value.dims.as_ref()?))).collect();
    let Some(all) = all else { return Some(Known::sized(first.element, dims)) };
    let (shape, mut from) = (dims.clone(), vec![0; dims.len()]);
    Some(Known::filled(first.element, dims, |index| {
        coordinates(index, &shape, &mut from);
        let mut which = all.iter();
        loop {
            let Some((data, own)) = which.next() else { return f64::NAN };
            if from[at] < own[at] {
                return data.get(place(&from, own)).copied().unwrap_or(f64::NAN);
            }
            from[at] -= own[at];
        }
    }))
}

fn slice(node: &Node, inputs: &[&Known]) -> Option<Known> {
    let value = inputs.first()?;
    let own = value.dims.as_ref()?;
    let list = |name: &str, index: usize| match node.ints(name) {
        Some(list) => Some(list.to_vec()),
        None => inputs.get(index)?.ints(),
    };
    let (starts, ends) = (list("starts", 1)?, list("ends", 2)?);
    let axes = list("axes", 3).unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = list("steps", 4).unwrap_or_else(|| vec![1; starts.len()]);
    let (mut dims, mut first, mut stride) = (own.clone(), vec![0usize; own.len()], vec![1usize; own.len()]);
    for (index, &start) in starts.iter().enumerate() {
        let at = axis(*axes.get(index)?, own.len())?;
        let size = own[at] as i64;
        let bound = |at: i64| if at < 0 { at.saturating_add(size) } else { at }.clamp(0, size);
        let step = usize::try_from(*steps.get(index)?).ok().filter(|&step| step > 0)?;
        first[at] = bound(start) as usize;
        stride[at] = step;
        dims[at] = (bound(*ends.get(index)?) as usize).saturating_sub(first[at]).div_ceil(step);
    }
    if dims == *own {
        return Some((*value).clone());
    }
    let (shape, mut at) = (dims.clone(), vec![0; own.len()]);
    let mut source = |index: usize| {
        coordinates(index, &shape, &mut at);
        at.iter_mut().enumerate().for_each(|(index, at)| *at = first[index] + *at * stride[index]);
        place(&at, own)
    };
    let Some((band, &columns)) = value.band.zip(own.last()) else { return Some(value.moved(dims, source)) };
    // All axes of a table before its rows have one element.
    Some(Known::filled(value.element, dims, |index| {
        let place = source(index);
        band.at(place / columns, place % columns)
    }))
}

fn gather(node: &Node, inputs: &[&Known]) -> Option<Known> {
    let (value, indices) = (inputs.first()?, inputs.get(1)?);
    let (own, chosen) = (value.dims.as_ref()?, indices.dims.as_ref()?);
    let at = axis(node.int("axis").unwrap_or(0), own.len())?;
    let dims = [&own[..at], chosen, &own[at + 1..]].concat();
    let (Some(numbers), Some(_)) = (&indices.data, &value.data) else { return Some(Known::sized(value.element, dims)) };
    let (shape, mut from) = (dims.clone(), vec![0; dims.len()]);
    Some(value.moved(dims, |index| {
        coordinates(index, &shape, &mut from);
        let number = numbers.get(place(&from[at..at + chosen.len()], chosen)).copied().unwrap_or(f64::NAN);
        let row = if number < 0. { number + own[at] as f64 } else { number } as usize;
        if row >= own[at] {
            return usize::MAX;
        }
        place(&[&from[..at], &[row], &from[at + chosen.len()..]].concat(), own)
    }))
}

fn trilu(node: &Node, inputs: &[&Known]) -> Option<Known> {
    let value = inputs.first()?;
    let own = value.dims.as_ref()?;
    let shift = inputs
        .get(1)
        .filter(|value| value.dims.is_some())
        .map_or(Some(0.), |value| value.data.as_ref()?.first().copied())?;
    let Some(data) = &value.data else { return Some((*value).clone()) };
    let (&width, &height) = (own.last()?, own.get(own.len().checked_sub(2)?)?);
    let upper = node.int("upper").unwrap_or(1) == 1;
    Some(Known::filled(value.element, own.clone(), |index| {
        let (row, column) = (index / width.max(1) % height.max(1), index % width.max(1));
        let distance = column as f64 - row as f64 - shift;
        if if upper { distance >= 0. } else { distance <= 0. } { data[index] } else { 0. }
    }))
}

fn range(inputs: &[&Known]) -> Option<Known> {
    let [start, end, step] = inputs else { return None };
    let number = |value: &Known| value.data.as_ref()?.first().copied();
    let (from, to, by) = (number(start)?, number(end)?, number(step)?);
    let length = ((to - from) / by).ceil().max(0.);
    let limit = super::known::NUMBERS_MAX as f64;
    (length <= limit).then(|| Known::filled(start.element, vec![length as usize], |index| from + by * index as f64))
}

fn split(node: &Node, inputs: &[&Known]) -> Option<Vec<Known>> {
    let value = inputs.first()?;
    let own = value.dims.as_ref()?;
    let at = axis(node.int("axis").unwrap_or(0), own.len())?;
    let count = node.outputs.len().max(1);
    let sizes: Vec<usize> = match node.ints("split").map(<[_]>::to_vec).or_else(|| inputs.get(1)?.ints()) {
        Some(sizes) => sizes.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<_>>()?,
        None => {
            let each = own[at].div_ceil(count);
            (0..count).map(|index| each.min(own[at].saturating_sub(index * each))).collect()
        }
    };
    let mut start = 0;
    let mut parts = Vec::new();
    for size in sizes {
        let mut dims = own.clone();
        dims[at] = size;
        let (shape, mut from) = (dims.clone(), vec![0; own.len()]);
        parts.push(value.moved(dims, |index| {
            coordinates(index, &shape, &mut from);
            from[at] = from[at].saturating_add(start);
            place(&from, own)
        }));
        start = start.saturating_add(size);
    }
    Some(parts)
}
