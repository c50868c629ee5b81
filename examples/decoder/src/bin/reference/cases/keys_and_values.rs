//! What the cache holds behind a prompt, layer by layer: keys as they were turned, and values.

use decoder::{Contiguous, Keep};

use super::running::prefill;
use crate::agreement::Agreement;
use crate::case::{Case, Failure, Outcome};
use crate::folder::Reference;

/// The cases of keys and values.
pub fn cases() -> Vec<Case> {
    let of =
        |(name, chunk)| Case::new(format!("contiguous/keys-and-values/{name}"), move |reference| run(reference, chunk));
    [("whole", None), ("chunks-of-7", Some(7))].map(of).into()
}

fn run(reference: &Reference, chunk: Option<usize>) -> Result<Outcome, Failure> {
    let mut agreement = Agreement::default();
    for (name, prompt) in &reference.prompts {
        let wanted = |layer: usize, part: &str| reference.tensor(&format!("kv.{name}.layer{layer}.{part}"));
        if wanted(0, "key").is_none() {
            continue;
        }
        let mut cache = Contiguous::new(reference.model(), &[0], Keep::Everything)?;
        prefill(&reference.decoder, &mut cache, prompt, chunk)?;
        for layer in 0..reference.model().layers().len() {
            let kv = cache.kv(layer)?.ok_or(format!("layer {layer} holds nothing"))?;
            for (part, found) in [("key", &kv.k), ("value", &kv.v)] {
                let wanted = wanted(layer, part).ok_or(format!("kv.{name}.layer{layer}.{part} is missing"))?;
                agreement.numbers(&format!("kv.{name}.layer{layer}.{part}"), &found.to_tensor()?, wanted)?;
            }
        }
    }
    Ok(agreement.outcome("kv of any prompt"))
}
