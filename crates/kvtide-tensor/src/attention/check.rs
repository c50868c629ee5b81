//! Checks of the rules and numbers of a call against its sizes.

use super::asked::{Asked, Mask, Sequence, Sizes};
use super::options::AttendOptions;
use super::visible::Family;
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Nodes of a draft tree, at most.
const TREE_MAX: usize = 4096;

/// What a call asks for, when its rules go with its sizes.
pub(super) fn check<'a>(options: &AttendOptions<'a>, sizes: Sizes, sequences: Vec<Sequence>) -> Result<Asked<'a>> {
    check_numbers(options, sizes)?;
    let strides = mask_strides(options, sizes, &sequences)?;
    Ok(Asked {
        sizes,
        causal: options.causal,
        window: options.window.map(i64::from),
        sinks: options.sinks.into(),
        tree: tree(options, &sequences)?,
        mask: options.mask.as_ref().map(|mask| Mask { bytes: mask.bytes(), strides }),
        positions: positions(options, &sequences)?,
        sink_logits: options.sink_logits,
        scale: options.scale.unwrap_or_else(|| 1.0 / (sizes.dim as f32).sqrt()),
        softcap: options.softcap,
        stop: options.stop,
        sequences,
    })
}

fn check_numbers(options: &AttendOptions<'_>, sizes: Sizes) -> Result<()> {
    let AttendOptions { scale, window, sinks, sink_logits, softcap, starts, threads, .. } = options;
    if scale.is_some_and(|scale| !scale.is_finite()) {
        return Err(Error::argument("scale", f64::from(scale.unwrap_or(0.0)), "a finite number"));
    }
    if *window == Some(0) {
        return Err(Error::argument("window", 0u32, "at least 1"));
    }
    if softcap.is_some_and(|cap| !cap.is_finite() || cap <= 0.0) {
        return Err(Error::argument("softcap", f64::from(softcap.unwrap_or(0.0)), "a finite number over 0"));
    }
    if *sinks > 0 && starts.is_some() {
        return Err(Error::argument("sinks", *sinks, "0 with starts: padding would stand where sinks do"));
    }
    if *threads == Some(0) {
        return Err(Error::argument("threads", 0u32, "at least 1"));
    }
    let heads = sizes.query_heads;
    match sink_logits {
        Some(logits) if logits.len() != heads => {
            let expected = format!("{heads}, one for each query head");
            Err(Error::ShapeMismatch { argument: "sinkLogits", value: vec![logits.len()], expected })
        }
        _ => Ok(()),
    }
}

fn positions(options: &AttendOptions<'_>, sequences: &[Sequence]) -> Result<Option<Vec<i64>>> {
    let Some(positions) = options.positions else { return Ok(None) };
    check_per_query(sequences, "positions", positions.len())?;
    if let Some(&wrong) = positions.iter().find(|&&position| position < 0) {
        return Err(Error::argument("positions", wrong, "positions from 0 on"));
    }
    Ok(Some(positions.iter().copied().map(i64::from).collect()))
}

/// Refuses a list that is neither one for each query nor one for each query of every sequence alike.
fn check_per_query(sequences: &[Sequence], argument: &'static str, len: usize) -> Result<()> {
    let each = sequences.first().map_or(0, |of| of.queries);
    let shared = sequences.iter().all(|of| of.queries == each);
    let all: usize = sequences.iter().map(|of| of.queries).sum();
    if len == all || (shared && len == each) {
        return Ok(());
    }
    let expected = format!("{all}, one for each query");
    Err(Error::ShapeMismatch { argument, value: vec![len], expected })
}

fn tree(options: &AttendOptions<'_>, sequences: &[Sequence]) -> Result<Option<Family>> {
    let Some(parents) = options.tree else { return Ok(None) };
    let fits = |of: &Sequence| of.queries == parents.len() && of.queries <= of.keys.len();
    if parents.len() > TREE_MAX || !sequences.iter().all(fits) {
        let expected = format!("a parent for each query, at most {TREE_MAX}, their keys the last ones");
        return Err(Error::ShapeMismatch { argument: "tree", value: vec![parents.len()], expected });
    }
    let depths = kvtide_core::Tree::new(parents)?.depths();
    Ok(Some(Family::new(parents, depths)))
}

/// The mask's strides in bytes, 0 where it is broadcast.
fn mask_strides(options: &AttendOptions<'_>, sizes: Sizes, sequences: &[Sequence]) -> Result<[usize; 4]> {
    let Some(mask) = &options.mask else { return Ok([0; 4]) };
    if mask.dtype() != DType::F32 {
        let (value, expected) = (mask.dtype().to_string(), "f32".to_owned());
        return Err(Error::DtypeMismatch { argument: "mask", value, expected });
    }
    let first = sequences.first().map_or((0, 0), |of| (of.queries, of.keys.len()));
    let alike = sequences.iter().all(|of| (of.queries, of.keys.len()) == first);
    let full = [sequences.len(), sizes.query_heads, first.0, first.1];
    let (dims, strides) = (mask.dims(), mask.byte_strides());
    let missing = 4usize.checked_sub(dims.len());
    let broadcasts = missing
        .is_some_and(|missing| dims.iter().zip(&full[missing..]).all(|(&size, &whole)| size == whole || size == 1));
    let (Some(missing), true, true, None) = (missing, broadcasts, alike, mask.range()) else {
        let expected = match alike {
            true => format!("a shape that broadcasts to {full:?}"),
            false => "no mask for sequences of unequal length".to_owned(),
        };
        return Err(Error::ShapeMismatch { argument: "mask", value: dims.to_vec(), expected });
    };
    let mut out = [0; 4];
    for axis in 0..dims.len() {
        out[missing + axis] = if dims[axis] == 1 { 0 } else { strides[axis] };
    }
    Ok(out)
}
