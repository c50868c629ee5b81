//! Prompts of unequal lengths in one batch, padded on the left.

use candle_core::Tensor;
use decoder::{Cache, Layers, Sequences, greedy};
use serde_json::Value;

use super::kind::{Kind, blocks};
use super::running::prefill;
use crate::agreement::Agreement;
use crate::case::{Case, Failure, Outcome, skipped};
use crate::folder::{Reference, tokens};

/// Returns the cases of batches.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, kind: Kind, chunk: Option<usize>| {
        Case::new(format!("{}/batch_left_padded/{name}", kind.name()), move |reference| match kind {
            Kind::Windows if !reference.slides() => skipped("no layer slides"),
            Kind::Blocks => run_ragged(reference),
            _ => run(reference, kind, chunk),
        })
    };
    vec![
        case("whole", Kind::Everything, None),
        case("chunks-of-7", Kind::Everything, Some(7)),
        case("chunks-of-7", Kind::Windows, Some(7)),
        case("without-padding", Kind::Blocks, None),
    ]
}

/// Reads a list of lists of tokens.
fn rows(value: &Value) -> Option<Vec<Vec<u32>>> {
    value.as_array()?.iter().map(tokens).collect()
}

fn run(reference: &Reference, kind: Kind, chunk: Option<usize>) -> Result<Outcome, Failure> {
    let padded = &reference.json["batch_left_padded"];
    let (Some(inputs), Some(mask)) = (rows(&padded["input_ids"]), rows(&padded["attention_mask"])) else {
        return skipped("no reference for batch_left_padded");
    };
    let wanted = rows(&padded["greedy"]).ok_or("batch_left_padded has no greedy tokens")?;
    let paddings: Vec<_> =
        mask.iter().map(|row| row.iter().position(|&shown| shown == 1).unwrap_or(row.len()) as u32).collect();
    let mut cache = Layers::new(reference.model(), &paddings, kind == Kind::Windows)?;
    let logits = last_logits(reference, &mut cache, &inputs, chunk)?;
    let mut agreement = Agreement::default();
    if let Some(first) = reference.tensor("batch_left_padded.first_logits") {
        agreement.numbers("batch_left_padded.first_logits", &logits, first)?;
    }
    let count = wanted.first().map_or(0, Vec::len);
    let found = greedy(&reference.decoder, &mut cache, logits, count)?;
    for (row, (found, wanted)) in found.tokens.iter().zip(&wanted).enumerate() {
        agreement.tokens(&format!("row {row} of batch_left_padded"), found, wanted)?;
    }
    Ok(agreement.outcome("batch_left_padded"))
}

/// Decodes sequences of unequal lengths as one batch in a paged cache, without padding.
fn run_ragged(reference: &Reference) -> Result<Outcome, Failure> {
    let padded = &reference.json["batch_left_padded"];
    let (Some(inputs), Some(mask)) = (rows(&padded["input_ids"]), rows(&padded["attention_mask"])) else {
        return skipped("no reference for batch_left_padded");
    };
    let wanted = rows(&padded["greedy"]).ok_or("batch_left_padded has no greedy tokens")?;
    let mut cache = blocks(reference.model(), None)?;
    let (mut ids, mut logits) = (Vec::new(), Vec::new());
    for (row, shown) in inputs.iter().zip(&mask) {
        let id = cache.create_sequence()?;
        let prompt: Vec<u32> =
            row.iter().zip(shown).filter(|(_, shown)| **shown == 1).map(|(&token, _)| token).collect();
        let all = prefill(&reference.decoder, &mut Sequences::new(&mut cache, &[id]), &prompt, Some(7))?;
        logits.push(all.narrow(0, all.dim(0)? - 1, 1)?);
        ids.push(id);
    }
    let mut agreement = Agreement::default();
    let logits = Tensor::cat(&logits, 0)?;
    if let Some(first) = reference.tensor("batch_left_padded.first_logits") {
        agreement.numbers("batch_left_padded.first_logits", &logits, first)?;
    }
    let mut rows = Sequences::new(&mut cache, &ids);
    assert_eq!(rows.rows(), ids.len());
    let found = greedy(&reference.decoder, &mut rows, logits, wanted.first().map_or(0, Vec::len))?;
    for (row, (found, wanted)) in found.tokens.iter().zip(&wanted).enumerate() {
        agreement.tokens(&format!("row {row} of batch_left_padded"), found, wanted)?;
    }
    cache.check_invariants()?;
    Ok(agreement.outcome("batch_left_padded"))
}

/// Runs a batch in chunks of each row, and returns the logits of each row's last token.
fn last_logits(
    reference: &Reference,
    cache: &mut dyn Cache,
    inputs: &[Vec<u32>],
    chunk: Option<usize>,
) -> Result<Tensor, Failure> {
    let length = inputs.first().map_or(0, Vec::len);
    if length == 0 || inputs.iter().any(|row| row.len() != length) {
        return Err("the rows of batch_left_padded have different lengths".into());
    }
    let (mut from, mut hidden) = (0, None);
    while from < length {
        let to = chunk.map_or(length, |chunk| (from + chunk).min(length));
        let piece: Vec<u32> = inputs.iter().flat_map(|row| &row[from..to]).copied().collect();
        hidden = Some(reference.decoder.forward(&piece, cache)?);
        from = to;
    }
    Ok(reference.decoder.last_logits(&hidden.ok_or("nothing was run")?)?)
}
