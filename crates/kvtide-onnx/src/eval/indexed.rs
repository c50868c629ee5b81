//! Operators that read or write elements at places that another tensor lists.

use super::Known;
use super::known::{axis, coordinates, count, place};
use crate::proto::{ElementType, Node};

pub(super) fn apply(node: &Node, inputs: &[&Known]) -> Option<Vec<Known>> {
    let value = *inputs.first()?;
    let one = match node.operator.as_str() {
        "ScatterND" => scattered(node, value, inputs.get(1)?, inputs.get(2)?)?,
        "GatherND" => gathered(node, value, inputs.get(1)?)?,
        "NonZero" => non_zero(value)?,
        "ScatterElements" | "TensorScatter" => Known::sized(value.element, value.dims.clone()?),
        "GatherElements" => picked(node, value, inputs.get(1)?)?,
        "ReverseSequence" => reversed(node, value, inputs.get(1)?)?,
        _ => return None,
    };
    Some(vec![one])
}

/// The first elements of the slices that a list of indices selects, and the number of elements of each slice.
fn slices(own: &[usize], dims: &[usize], indices: &[f64]) -> Option<(Vec<usize>, usize)> {
    let depth = *dims.last()?;
    let (front, back) = own.split_at_checked(depth)?;
    let size = count(back)?;
    let place = |index: &[f64]| {
        index.iter().zip(front).try_fold(0usize, |place, (&at, &dim)| {
            let at = if at < 0. { at + dim as f64 } else { at };
            (0. ..dim as f64).contains(&at).then(|| place * dim + at as usize)
        })
    };
    let starts: Option<Vec<usize>> =
        if depth == 0 { None } else { indices.chunks(depth).map(|index| Some(place(index)? * size)).collect() };
    Some((starts?, size))
}

fn scattered(node: &Node, value: &Known, indices: &Known, updates: &Known) -> Option<Known> {
    let own = value.dims.as_ref()?;
    let sized = || Known::sized(value.element, own.clone());
    let is_plain = node.attribute("reduction").is_none();
    let (Some(data), Some(at), Some(new), true) = (&value.data, &indices.data, &updates.data, is_plain) else {
        return Some(sized());
    };
    let Some((starts, size)) = slices(own, indices.dims.as_ref()?, at) else { return Some(sized()) };
    let mut numbers = data.to_vec();
    for (start, update) in starts.into_iter().zip(new.chunks(size.max(1))) {
        numbers.get_mut(start..start + size)?.copy_from_slice(update.get(..size)?);
    }
    Some(Known::full(value.element, own.clone(), numbers))
}

fn gathered(node: &Node, value: &Known, indices: &Known) -> Option<Known> {
    let (own, list) = (value.dims.as_ref()?, indices.dims.as_ref()?);
    let shared = usize::try_from(node.int("batch_dims").unwrap_or(0)).ok()?;
    let (depth, front) = list.split_last()?;
    let (batch, rest) = own.split_at_checked(shared)?;
    if front.get(..shared)? != batch {
        return None;
    }
    let dims = [front, rest.get(*depth..)?].concat();
    let (Some(data), Some(at)) = (&value.data, &indices.data) else { return Some(Known::sized(value.element, dims)) };
    let (starts, size) = slices(rest, list, at)?;
    // Places in one of the shared batches, and the number of slices that are taken from each.
    let (each, taken) = (count(rest)?, count(&front[shared..])?);
    Some(Known::filled(value.element, dims, |place| {
        let slice = place / size.max(1);
        let start = starts.get(slice).copied().unwrap_or(usize::MAX);
        let batch = slice / taken.max(1) * each;
        data.get(start.saturating_add(batch + place % size.max(1))).copied().unwrap_or(f64::NAN)
    }))
}

/// For each index, the element at this place of one axis; the other coordinates are those of the index.
fn picked(node: &Node, value: &Known, indices: &Known) -> Option<Known> {
    let (own, dims) = (value.dims.as_ref()?, indices.dims.clone()?);
    let at = axis(node.int("axis").unwrap_or(0), own.len())?;
    let (Some(_), Some(chosen)) = (&value.data, &indices.data) else { return Some(Known::sized(value.element, dims)) };
    if dims.len() != own.len() {
        return None;
    }
    let (shape, mut from) = (dims.clone(), vec![0; own.len()]);
    Some(value.moved(dims, |index| {
        coordinates(index, &shape, &mut from);
        let number = chosen.get(index).copied().unwrap_or(f64::NAN);
        let chosen = if number < 0. { number + own[at] as f64 } else { number };
        if !(0. ..own[at] as f64).contains(&chosen) {
            return usize::MAX;
        }
        from[at] = chosen as usize;
        place(&from, own)
    }))
}

/// The first elements of each sequence in reverse order, and the others in theirs.
fn reversed(node: &Node, value: &Known, lengths: &Known) -> Option<Known> {
    let own = value.dims.as_ref()?;
    let time = axis(node.int("time_axis").unwrap_or(0), own.len())?;
    let batch = axis(node.int("batch_axis").unwrap_or(1), own.len())?;
    let (Some(_), Some(lengths)) = (&value.data, &lengths.data) else {
        return Some(Known::sized(value.element, own.clone()));
    };
    let mut from = vec![0; own.len()];
    Some(value.moved(own.clone(), |index| {
        coordinates(index, own, &mut from);
        let length = lengths.get(from[batch]).copied().unwrap_or(f64::NAN);
        if !(0. ..=own[time] as f64).contains(&length) {
            return usize::MAX;
        }
        if from[time] < length as usize {
            from[time] = length as usize - 1 - from[time];
        }
        place(&from, own)
    }))
}

/// The coordinates of all elements that are not 0, a row for each axis.
fn non_zero(value: &Known) -> Option<Known> {
    let (own, data) = (value.dims.as_ref()?, value.data.as_ref()?);
    let places: Vec<usize> = (0..data.len()).filter(|&place| data[place] != 0.).collect();
    let mut at = vec![0; own.len()];
    Some(Known::filled(Some(ElementType::I64), vec![own.len(), places.len()], |index| {
        coordinates(places[index % places.len()], own, &mut at);
        at[index / places.len()] as f64
    }))
}
