//! Speculative decoding with mostly wrong drafts: rejected tokens leave no trace, and the result is the same.

use candle_core::{D, Tensor};
use decoder::{Decoder, Sequences};

use super::kind::{blocks, sequence};
use super::running::prefill;
use crate::agreement::Agreement;
use crate::case::{Case, Failure, Outcome};
use crate::folder::Reference;

/// The number of tokens per draft.
const DRAFTED: usize = 5;

/// Returns the cases of drafts.
pub fn cases() -> Vec<Case> {
    vec![Case::new("paged/speculative", run)]
}

fn run(reference: &Reference) -> Result<Outcome, Failure> {
    let mut agreement = Agreement::default();
    for (name, prompt) in &reference.prompts {
        let Some(wanted) = reference.greedy(name) else { continue };
        let mut cache = blocks(reference.model(), None)?;
        let mut rows = sequence(&mut cache)?;
        let logits = prefill(&reference.decoder, &mut rows, prompt, None)?;
        let last = logits.narrow(0, prompt.len() - 1, 1)?;
        let found = speculate(&reference.decoder, &mut rows, &last, &wanted)?;
        agreement.tokens(&format!("greedy.{name}"), &found, &wanted)?;
        cache.check_invariants()?;
    }
    Ok(agreement.outcome("any prompt"))
}

/// Decodes as many tokens as `wanted` has; the first tokens of a draft are right in some rounds, the others wrong.
fn speculate(
    decoder: &Decoder,
    rows: &mut Sequences<'_>,
    logits: &Tensor,
    wanted: &[u32],
) -> Result<Vec<u32>, Failure> {
    let vocabulary = logits.dim(D::Minus1)? as u32;
    let mut found = logits.argmax(D::Minus1)?.to_vec1::<u32>()?;
    let id = rows.ids()[0];
    let mut round = 0;
    while found.len() < wanted.len() {
        round += 1;
        let right = round % (DRAFTED + 1);
        let draft = |place: usize| match wanted.get(found.len() + place) {
            Some(&token) if place < right => token,
            Some(&token) => (token + 1 + place as u32) % vocabulary,
            None => 0,
        };
        // The last known token, and the drafted tokens after it.
        let tokens: Vec<u32> = found.last().copied().into_iter().chain((0..DRAFTED).map(draft)).collect();
        let before = rows.cache().sequence_length(id);
        let transaction = rows.cache().begin(id, None, Default::default())?;
        let hidden = decoder.forward(&tokens, rows)?;
        let next = decoder.logits(&hidden)?.squeeze(0)?.argmax(D::Minus1)?.to_vec1::<u32>()?;
        let accepted = tokens[1..].iter().zip(&next).take_while(|(drafted, next)| drafted == next).count();
        rows.cache().commit(id, transaction, Some(accepted as u64 + 1))?;
        if rows.cache().sequence_length(id) != before + accepted as u32 + 1 {
            return Err("the rejected tokens are still in the cache".into());
        }
        found.extend(&next[..=accepted]);
    }
    found.truncate(wanted.len());
    Ok(found)
}
