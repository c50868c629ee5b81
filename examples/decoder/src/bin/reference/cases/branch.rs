//! Another branch behind the first 60 tokens of a prompt: by truncating to them, and by restoring what was there.

use decoder::{Contiguous, Keep};

use super::running::{check_prompt, prefill};
use crate::agreement::Agreement;
use crate::case::{Case, Failure, Outcome, skipped};
use crate::folder::Reference;

const STEM: &str = "p100";
const BRANCH: &str = "branch60";
const SHARED: usize = 60;

/// What is done with the stem and the branch.
type Run = fn(&Reference, &[u32], &[u32]) -> Result<Outcome, Failure>;

/// The cases of branches.
pub fn cases() -> Vec<Case> {
    let branch = |name: &str, run: Run| {
        Case::new(format!("contiguous/{BRANCH}/{name}"), move |reference| {
            match (reference.prompt(STEM), reference.prompt(BRANCH), reference.greedy(BRANCH)) {
                (Some(stem), Some(branch), Some(_)) if stem.get(..SHARED) == branch.get(..SHARED) => {
                    run(reference, stem, branch)
                }
                _ => skipped(format!("no reference for {BRANCH}")),
            }
        })
    };
    vec![
        branch("truncated", truncated),
        branch("restored", |reference, stem, branch| restored(reference, Keep::Everything, stem, branch)),
        branch("restored-windows", |reference, stem, branch| match reference.slides() {
            true => restored(reference, Keep::Windows, stem, branch),
            false => skipped("no layer slides"),
        }),
    ]
}

fn truncated(reference: &Reference, stem: &[u32], branch: &[u32]) -> Result<Outcome, Failure> {
    let mut cache = Contiguous::new(reference.model(), &[0], Keep::Everything)?;
    prefill(&reference.decoder, &mut cache, stem, None)?;
    cache.truncate(SHARED)?;
    go_on(reference, &mut cache, branch)
}

/// The stem is decoded on, so that windows move past what the branch needs, before the branch is taken.
fn restored(reference: &Reference, keep: Keep, stem: &[u32], branch: &[u32]) -> Result<Outcome, Failure> {
    let mut cache = Contiguous::new(reference.model(), &[0], keep)?;
    prefill(&reference.decoder, &mut cache, &stem[..SHARED], None)?;
    let snapshot = cache.snapshot()?;
    prefill(&reference.decoder, &mut cache, &stem[SHARED..], Some(1))?;
    cache.restore(&snapshot)?;
    go_on(reference, &mut cache, branch)
}

fn go_on(reference: &Reference, cache: &mut Contiguous, branch: &[u32]) -> Result<Outcome, Failure> {
    let mut agreement = Agreement::default();
    let logits = prefill(&reference.decoder, cache, &branch[SHARED..], None)?;
    check_prompt(reference, cache, BRANCH, &logits, &mut agreement)?;
    Ok(agreement.outcome(BRANCH))
}
