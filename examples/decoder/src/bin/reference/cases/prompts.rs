//! Every prompt at once, in chunks and token by token: the logits of all its tokens, and its greedy continuation.

use super::kind::Kind;
use super::running::{Chunk, check_prompt, prefill};
use crate::agreement::Agreement;
use crate::case::{Case, Failure, Outcome, skipped};
use crate::folder::Reference;

/// Returns the cases of prompts.
pub fn cases() -> Vec<Case> {
    let ways = [("whole", None), ("chunks-of-7", Some(7)), ("token-by-token", Some(1))];
    let case = |kind: Kind, (way, chunk): (&str, Chunk)| {
        Case::new(format!("{}/{way}", kind.name()), move |reference| match kind {
            Kind::Windows if !reference.slides() => skipped("no layer slides"),
            _ => run(reference, kind, chunk),
        })
    };
    [Kind::Everything, Kind::Windows, Kind::Blocks]
        .into_iter()
        .flat_map(|kind| ways.map(|way| case(kind, way)))
        .collect()
}

fn run(reference: &Reference, kind: Kind, chunk: Chunk) -> Result<Outcome, Failure> {
    let mut agreement = Agreement::default();
    for (name, prompt) in &reference.prompts {
        kind.run(reference.model(), |cache| {
            let logits = prefill(&reference.decoder, cache, prompt, chunk)?;
            check_prompt(reference, cache, name, &logits, &mut agreement)
        })?;
    }
    Ok(agreement.outcome("any prompt"))
}
