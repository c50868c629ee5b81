//! A model whose layers keep everything, under a window: as a rule of attention, and in a cache that drops the rest.

use std::collections::BTreeSet;

use decoder::{Contiguous, Keep};

use super::running::{Chunk, Expected, check, prefill};
use crate::agreement::Agreement;
use crate::case::{Case, Failure, Outcome, skipped};
use crate::folder::Reference;

/// Rules that are named as skipped where a folder does not have them.
const RULES: [&str; 2] = ["window16", "sinks4_window12"];

/// The cases of rules: those that are always named, and any other that the folder has.
pub fn cases(reference: &Reference) -> Vec<Case> {
    let there = reference.json["masked"].as_object().into_iter().flat_map(|rules| rules.keys().map(String::as_str));
    let rules: BTreeSet<_> = RULES.into_iter().chain(there).collect();
    let ways = [
        ("in-attention", Keep::Everything, Some(9)),
        ("in-cache/whole", Keep::Windows, None),
        ("in-cache/chunks-of-9", Keep::Windows, Some(9)),
        ("in-cache/token-by-token", Keep::Windows, Some(1)),
    ];
    let case = |rule: &str, (way, keep, chunk)| {
        let rule = rule.to_owned();
        Case::new(format!("contiguous/masked.{rule}/{way}"), move |reference| run(reference, &rule, keep, chunk))
    };
    rules.into_iter().flat_map(|rule| ways.map(|way| case(rule, way))).collect()
}

fn run(reference: &Reference, rule: &str, keep: Keep, chunk: Chunk) -> Result<Outcome, Failure> {
    let Some(masked) = reference.masked(rule)? else { return skipped(format!("no reference for masked.{rule}")) };
    let name = format!("masked.{}.{}", masked.rule, masked.prompt);
    let prompt = reference.prompt(&masked.prompt).ok_or(format!("there is no prompt {}", masked.prompt))?;
    let mut cache = Contiguous::new(&masked.model, &[0], keep)?;
    let logits = prefill(&reference.decoder, &mut cache, prompt, chunk)?;
    let expected = Expected {
        prompt: &name,
        logits: reference.tensor(&format!("{name}.logits")),
        greedy: &masked.greedy,
        greedy_logits: reference.tensor(&format!("{name}.greedy_logits")),
    };
    let mut agreement = Agreement::default();
    check(&reference.decoder, &mut cache, &logits, &expected, &mut agreement)?;
    Ok(agreement.outcome(&name))
}
