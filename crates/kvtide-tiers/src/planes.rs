//! Groups the bytes of numbers by their position: all first bytes, then all second ones, and so on. Bytes left over at
//! the end stay there.
//!
//! O(bytes). There is one loop for each size of number, which the compiler vectorises.

/// Returns the planes of a value; `Some(None)` if the value is a single plane, `None` if memory is lacking.
#[expect(clippy::option_option, reason = "no memory, nothing to do, and planes")]
pub(crate) fn split(value: &[u8], element_bytes: usize) -> Option<Option<Vec<u8>>> {
    if element_bytes == 1 {
        return Some(None);
    }
    let mut sorted = zeroed(value.len())?;
    match element_bytes {
        2 => split_by::<2>(value, &mut sorted),
        _ => split_by::<4>(value, &mut sorted),
    }
    Some(Some(sorted))
}

/// Returns the value of planes.
pub(crate) fn join(sorted: Vec<u8>, element_bytes: usize) -> Option<Vec<u8>> {
    if element_bytes == 1 {
        return Some(sorted);
    }
    let mut value = zeroed(sorted.len())?;
    match element_bytes {
        2 => join_by::<2>(&sorted, &mut value),
        _ => join_by::<4>(&sorted, &mut value),
    }
    Some(value)
}

fn zeroed(count: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(count).ok()?;
    bytes.resize(count, 0);
    Some(bytes)
}

fn split_by<const BYTES: usize>(value: &[u8], sorted: &mut [u8]) {
    let (elements, rest) = value.as_chunks::<BYTES>();
    let (planes, tail) = sorted.split_at_mut(elements.len() * BYTES);
    tail.copy_from_slice(rest);
    if elements.is_empty() {
        return;
    }
    for (place, plane) in planes.chunks_exact_mut(elements.len()).enumerate() {
        plane.iter_mut().zip(elements).for_each(|(byte, element)| *byte = element[place]);
    }
}

fn join_by<const BYTES: usize>(sorted: &[u8], value: &mut [u8]) {
    let count = sorted.len() / BYTES;
    let (elements, rest) = value.as_chunks_mut::<BYTES>();
    rest.copy_from_slice(&sorted[count * BYTES..]);
    let planes: [&[u8]; BYTES] = std::array::from_fn(|place| &sorted[place * count..][..count]);
    for (index, element) in elements.iter_mut().enumerate() {
        *element = std::array::from_fn(|place| planes[place][index]);
    }
}
