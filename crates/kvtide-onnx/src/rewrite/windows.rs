//! The windows that a config declares, combined with those that were found in the graph.

use super::Options;
use crate::error::{Error, RefusalKind, Result};
use crate::find::{FoundAttention, FoundState, Lookup, number_in, unrecognised};

/// Combines the windows that a config declares with those that were found.
pub(super) fn declare_windows(
    lookup: &Lookup<'_>,
    all: &mut [FoundAttention],
    states: &[FoundState],
    options: &Options,
) -> Result<()> {
    let Some(windows) = &options.windows else { return Ok(()) };
    let windows = of_attentions(windows, all, states)?;
    for (found, declared) in all.iter_mut().zip(windows) {
        if found.layer.source.is_some() {
            continue;
        }
        match (found.layer.window, declared) {
            (None, declared) => found.layer.window = declared,
            (Some(own), Some(declared)) if own == declared => (),
            (Some(own), declared) => {
                let declared = declared.map_or("none".into(), |window| window.to_string());
                let reason = format!("its window is {own}, the config declares {declared}");
                return Err(unrecognised(lookup.node(found.index), reason).of(RefusalKind::Windows));
            }
        }
    }
    let own: Vec<(u32, Option<u32>)> = all.iter().map(|found| (found.layer.layer, found.layer.window)).collect();
    for found in all {
        if let Some(source) = found.layer.source {
            found.layer.window = own.iter().find(|(layer, _)| *layer == source).and_then(|(_, window)| *window);
        }
    }
    Ok(())
}

/// The windows of attentions. For a graph with states, a config may declare those of all layers, by their numbers.
fn of_attentions(windows: &[Option<u32>], all: &[FoundAttention], states: &[FoundState]) -> Result<Vec<Option<u32>>> {
    if windows.len() == all.len() {
        return Ok(windows.to_vec());
    }
    let number = |found: &FoundAttention| number_in(&found.layer.pasts[0]).unwrap_or(found.layer.layer) as usize;
    let of_number = |found: &FoundAttention| match found.layer.source {
        Some(_) => Some(None),
        None => windows.get(number(found)).copied(),
    };
    let found = all.iter().map(of_number).collect::<Option<Vec<_>>>().filter(|_| !states.is_empty());
    found.ok_or_else(|| {
        let reason = format!("the config declares {} layers, the graph has {}", windows.len(), all.len());
        Error::unrecognised(RefusalKind::Windows, "nodes", "graph", reason)
    })
}
