//! A second continuation of the first 60 tokens of a prompt: by truncating to them, by restoring a snapshot, by a
//! fork, and by a prefix match with an earlier prompt.

use kvtide_tensor::PagedKvCache;

use decoder::{Cache, Sequences};

use super::kind::{BLOCK_SIZE, blocks};
use super::running::{check_prompt, prefill};
use crate::agreement::Agreement;
use crate::case::{Case, Failure, Outcome, skipped};
use crate::folder::Reference;

const STEM: &str = "p100";
const BRANCH: &str = "branch60";
const SHARED: usize = 60;

/// A way from the stem to the branch.
type Run = fn(&Reference, &[u32], &[u32]) -> Result<Outcome, Failure>;

/// Returns the cases of branches.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, run: Run| {
        Case::new(format!("paged/{BRANCH}/{name}"), move |reference| {
            match (reference.prompt(STEM), reference.prompt(BRANCH), reference.greedy(BRANCH)) {
                (Some(stem), Some(branch), Some(_)) if stem.get(..SHARED) == branch.get(..SHARED) => {
                    run(reference, stem, branch)
                }
                _ => skipped(format!("no reference for {BRANCH}")),
            }
        })
    };
    vec![
        case("truncated", |reference, stem, branch| match reference.slides() {
            true => skipped("blocks that left a window are freed"),
            false => truncated(reference, stem, branch),
        }),
        case("restored", restored),
        case("forked", forked),
        case("shared-prefix", |reference, stem, branch| shared(reference, stem, branch, false)),
        case("shared-partial-prefix", |reference, stem, branch| shared(reference, stem, branch, true)),
    ]
}

fn truncated(reference: &Reference, stem: &[u32], branch: &[u32]) -> Result<Outcome, Failure> {
    let mut cache = blocks(reference.model(), None)?;
    let id = run(reference, &mut cache, stem, None)?;
    cache.truncate(id, SHARED as u32)?;
    let mut agreement = Agreement::default();
    go_on(reference, &mut cache, id, BRANCH, branch, &mut agreement)?;
    Ok(agreement.outcome(BRANCH))
}

/// Decodes the stem further before the branch, so that windows move past the tokens that the branch needs.
fn restored(reference: &Reference, stem: &[u32], branch: &[u32]) -> Result<Outcome, Failure> {
    let mut cache = blocks(reference.model(), None)?;
    let id = run(reference, &mut cache, &stem[..SHARED], None)?;
    let snapshot = cache.snapshot(id)?;
    prefill(&reference.decoder, &mut Sequences::new(&mut cache, &[id]), &stem[SHARED..], Some(1))?;
    cache.restore(id, &snapshot)?;
    let mut agreement = Agreement::default();
    go_on(reference, &mut cache, id, BRANCH, branch, &mut agreement)?;
    Ok(agreement.outcome(BRANCH))
}

/// Continues stem and branch from the same tokens, and checks both.
fn forked(reference: &Reference, stem: &[u32], branch: &[u32]) -> Result<Outcome, Failure> {
    let mut cache = blocks(reference.model(), None)?;
    let id = run(reference, &mut cache, &stem[..SHARED], None)?;
    let fork = cache.fork(id)?;
    let mut agreement = Agreement::default();
    go_on(reference, &mut cache, fork, BRANCH, branch, &mut agreement)?;
    go_on(reference, &mut cache, id, STEM, stem, &mut agreement)?;
    Ok(agreement.outcome(BRANCH))
}

/// Checks that the branch reuses the common prefix of the stem, whose sequence was dropped.
fn shared(reference: &Reference, stem: &[u32], branch: &[u32], partial: bool) -> Result<Outcome, Failure> {
    let mut cache = blocks(reference.model(), None)?;
    let id = run(reference, &mut cache, stem, Some(7))?;
    cache.drop_sequence(id)?;
    let prefix = cache.find_prefix(branch, Default::default(), partial)?;
    let (found, most) = (prefix.length() as usize, SHARED / BLOCK_SIZE as usize * BLOCK_SIZE as usize);
    let expected = if partial && !reference.slides() { SHARED } else { most };
    if found != expected {
        return Err(format!("{found} tokens were found, not {expected}").into());
    }
    let id = cache.create_sequence_from(prefix)?;
    let mut rows = Sequences::new(&mut cache, &[id]);
    let mut agreement = Agreement::default();
    let logits = prefill(&reference.decoder, &mut rows, &branch[found..], None)?;
    check_prompt(reference, &mut rows, BRANCH, &logits, &mut agreement)?;
    cache.check_invariants()?;
    Ok(agreement.outcome(BRANCH))
}

/// Makes a new sequence with these tokens.
fn run(reference: &Reference, cache: &mut PagedKvCache, tokens: &[u32], chunk: Option<usize>) -> Result<u64, Failure> {
    let id = cache.create_sequence()?;
    let mut rows = Sequences::new(cache, &[id]);
    assert_eq!(rows.rows(), 1);
    prefill(&reference.decoder, &mut rows, tokens, chunk)?;
    Ok(id)
}

fn go_on(
    reference: &Reference,
    cache: &mut PagedKvCache,
    id: u64,
    name: &str,
    prompt: &[u32],
    agreement: &mut Agreement,
) -> Result<(), Failure> {
    let mut rows = Sequences::new(cache, &[id]);
    let logits = prefill(&reference.decoder, &mut rows, &prompt[SHARED..], None)?;
    check_prompt(reference, &mut rows, name, &logits, agreement)?;
    Ok(cache.check_invariants()?)
}
