//! Prompts of unequal lengths in one batch, padded on the left.

use candle_core::Tensor;
use decoder::{Contiguous, Keep, greedy};
use serde_json::Value;

use crate::agreement::Agreement;
use crate::case::{Case, Failure, Outcome, skipped};
use crate::folder::{Reference, tokens};

/// The cases of batches.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, keep: Keep, chunk: Option<usize>| {
        Case::new(format!("contiguous/batch_left_padded/{name}"), move |reference| match keep {
            Keep::Windows if !reference.slides() => skipped("no layer slides"),
            _ => run(reference, keep, chunk),
        })
    };
    vec![
        case("whole", Keep::Everything, None),
        case("chunks-of-7", Keep::Everything, Some(7)),
        case("windows", Keep::Windows, Some(7)),
    ]
}

/// A list of lists of tokens.
fn rows(value: &Value) -> Option<Vec<Vec<u32>>> {
    value.as_array()?.iter().map(tokens).collect()
}

fn run(reference: &Reference, keep: Keep, chunk: Option<usize>) -> Result<Outcome, Failure> {
    let padded = &reference.json["batch_left_padded"];
    let (Some(inputs), Some(mask)) = (rows(&padded["input_ids"]), rows(&padded["attention_mask"])) else {
        return skipped("no reference for batch_left_padded");
    };
    let wanted = rows(&padded["greedy"]).ok_or("batch_left_padded has no greedy tokens")?;
    let paddings: Vec<_> =
        mask.iter().map(|row| row.iter().position(|&shown| shown == 1).unwrap_or(row.len()) as u32).collect();
    let mut cache = Contiguous::new(reference.model(), &paddings, keep)?;
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

/// Runs a batch, so many tokens of each row at a time; answers the logits of each row's last one.
fn last_logits(
    reference: &Reference,
    cache: &mut Contiguous,
    inputs: &[Vec<u32>],
    chunk: Option<usize>,
) -> Result<Tensor, Failure> {
    let length = inputs.first().map_or(0, Vec::len);
    if length == 0 || inputs.iter().any(|row| row.len() != length) {
        return Err("the rows of batch_left_padded are not of one length".into());
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
