//! A model of full layers under a window: applied by attention alone, and in a cache that drops the other tokens.

use std::collections::BTreeSet;

use super::kind::Kind;
use super::running::{Chunk, Expected, check, prefill};
use crate::agreement::Agreement;
use crate::case::{Case, Failure, Outcome, skipped};
use crate::folder::Reference;

/// Rules that are listed as skipped if a folder does not have them.
const RULES: [&str; 2] = ["window16", "sinks4_window12"];

/// Returns the cases of rules: those in `RULES`, and any other in the folder.
pub fn cases(reference: &Reference) -> Vec<Case> {
    let there = reference.json["masked"].as_object().into_iter().flat_map(|rules| rules.keys().map(String::as_str));
    let rules: BTreeSet<_> = RULES.into_iter().chain(there).collect();
    let ways = [
        ("in-attention", Kind::Everything, Some(9)),
        ("whole", Kind::Windows, None),
        ("chunks-of-9", Kind::Windows, Some(9)),
        ("token-by-token", Kind::Windows, Some(1)),
        ("whole", Kind::Blocks, None),
        ("chunks-of-9", Kind::Blocks, Some(9)),
        ("token-by-token", Kind::Blocks, Some(1)),
    ];
    let case = |rule: &str, (way, kind, chunk): (&str, Kind, Chunk)| {
        let rule = rule.to_owned();
        Case::new(format!("{}/masked.{rule}/{way}", kind.name()), move |reference| run(reference, &rule, kind, chunk))
    };
    rules.into_iter().flat_map(|rule| ways.map(|way| case(rule, way))).collect()
}

fn run(reference: &Reference, rule: &str, kind: Kind, chunk: Chunk) -> Result<Outcome, Failure> {
    let Some(masked) = reference.masked(rule)? else { return skipped(format!("no reference for masked.{rule}")) };
    let name = format!("masked.{}.{}", masked.rule, masked.prompt);
    let prompt = reference.prompt(&masked.prompt).ok_or(format!("there is no prompt {}", masked.prompt))?;
    let expected = Expected {
        prompt: &name,
        logits: reference.tensor(&format!("{name}.logits")),
        greedy: &masked.greedy,
        greedy_logits: reference.tensor(&format!("{name}.greedy_logits")),
    };
    let mut agreement = Agreement::default();
    kind.run(&masked.model, |cache| {
        let logits = prefill(&reference.decoder, cache, prompt, chunk)?;
        check(&reference.decoder, cache, &logits, &expected, &mut agreement)
    })?;
    Ok(agreement.outcome(&name))
}
