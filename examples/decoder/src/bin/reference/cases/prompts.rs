//! Every prompt in one piece, in chunks and token by token: the logits of all its tokens, and what follows greedily.

use decoder::{Contiguous, Keep};

use super::running::{Chunk, check_prompt, prefill};
use crate::agreement::Agreement;
use crate::case::{Case, Failure, Outcome, skipped};
use crate::folder::Reference;

/// The cases of prompts.
pub fn cases() -> Vec<Case> {
    let ways = [("whole", None), ("chunks-of-7", Some(7)), ("token-by-token", Some(1))];
    let everything = ways.map(|(name, chunk)| {
        Case::new(format!("contiguous/{name}"), move |reference| run(reference, Keep::Everything, chunk))
    });
    let windows = ways.map(|(name, chunk)| {
        Case::new(format!("contiguous/windows/{name}"), move |reference| match reference.slides() {
            true => run(reference, Keep::Windows, chunk),
            false => skipped("no layer slides"),
        })
    });
    everything.into_iter().chain(windows).collect()
}

fn run(reference: &Reference, keep: Keep, chunk: Chunk) -> Result<Outcome, Failure> {
    let mut agreement = Agreement::default();
    for (name, prompt) in &reference.prompts {
        let mut cache = Contiguous::new(reference.model(), &[0], keep)?;
        let logits = prefill(&reference.decoder, &mut cache, prompt, chunk)?;
        check_prompt(reference, &mut cache, name, &logits, &mut agreement)?;
    }
    Ok(agreement.outcome("any prompt"))
}
