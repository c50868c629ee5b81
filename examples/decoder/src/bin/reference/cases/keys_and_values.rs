//! The content of the cache after a prompt, layer by layer: rotated keys, and values.

use super::kind::Kind;
use super::running::prefill;
use crate::agreement::Agreement;
use crate::case::{Case, Failure, Outcome, skipped};
use crate::folder::Reference;

/// Returns the cases of keys and values.
pub fn cases() -> Vec<Case> {
    let of = |kind: Kind, (way, chunk): (&str, Option<usize>)| {
        Case::new(format!("{}/keys-and-values/{way}", kind.name()), move |reference| run(reference, kind, chunk))
    };
    let ways = [("whole", None), ("chunks-of-7", Some(7))];
    let kinds = [Kind::Everything, Kind::Blocks];
    kinds.into_iter().flat_map(|kind| ways.map(|way| of(kind, way))).collect()
}

fn run(reference: &Reference, kind: Kind, chunk: Option<usize>) -> Result<Outcome, Failure> {
    let mut agreement = Agreement::default();
    for (name, prompt) in &reference.prompts {
        let wanted = |layer: usize, part: &str| reference.tensor(&format!("kv.{name}.layer{layer}.{part}"));
        if wanted(0, "key").is_none() {
            continue;
        }
        if kind == Kind::Blocks && reference.slides() {
            return skipped("blocks that left a window are freed");
        }
        let held = kind.run(reference.model(), |cache| prefill(&reference.decoder, cache, prompt, chunk).map(drop))?;
        for (layer, kv) in held.into_iter().enumerate() {
            let kv = kv.ok_or(format!("layer {layer} is empty"))?;
            for (part, found) in [("key", &kv.k), ("value", &kv.v)] {
                let wanted = wanted(layer, part).ok_or(format!("kv.{name}.layer{layer}.{part} is missing"))?;
                agreement.numbers(&format!("kv.{name}.layer{layer}.{part}"), &found.to_tensor()?, wanted)?;
            }
        }
    }
    Ok(agreement.outcome("kv of any prompt"))
}
