//! Typed arrays with their descriptions.
//!
//! A description is [`META`] numbers in an array that the TypeScript layer fills for each call:
//!
//! ```text
//! dtype  layout  has range  start  end  rank  dims ...
//! ```

use kvtide_tensor::{DType, HostTensor, RANK_MAX, SequenceLayout};

use crate::border::array::ArrayArg;
use crate::border::number::whole;
use crate::border::refusal::Outcome;

/// Numbers of one description.
pub(crate) const META: usize = 6 + RANK_MAX;

/// The description numbered `place` in `meta`.
pub(crate) fn description<'m>(argument: &'static str, meta: &'m [f64], place: usize) -> Outcome<&'m [f64]> {
    let found = meta.get(place * META..(place + 1) * META);
    found.ok_or_else(|| kvtide_core::Error::argument(argument, "no description", "a description of the tensor").into())
}

/// A typed array, as a description says.
pub(crate) fn host_tensor<'a>(argument: &'static str, value: ArrayArg, meta: &[f64]) -> Outcome<HostTensor<'a>> {
    let refused = |value: f64, expected: &str| kvtide_core::Error::argument(argument, value, expected);
    let dtype = DType::ALL.get(meta[0] as usize).copied().ok_or_else(|| refused(meta[0], "the number of a dtype"))?;
    let rank = meta[5] as usize;
    if rank > RANK_MAX {
        return Err(refused(meta[5], "a rank of at most 8").into());
    }
    let mut dims = [0; RANK_MAX];
    for (dim, &size) in dims.iter_mut().zip(&meta[6..6 + rank]) {
        *dim = whole(argument, size)? as usize;
    }
    let memory = value.memory(argument)?;
    let layout = if meta[1] == 0.0 { SequenceLayout::Bhsd } else { SequenceLayout::Bshd };
    let host = HostTensor::new(argument, memory.bytes(), dtype, &dims[..rank])?.with_layout(argument, layout)?;
    if meta[2] == 0.0 {
        return Ok(host);
    }
    Ok(host.with_range(whole("range", meta[3])? as usize, whole("range", meta[4])? as usize))
}
