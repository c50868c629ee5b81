//! Pages of 8 bits: the share of equal most probable tokens. A measured rate, not a test of equality.

use candle_core::{D, Tensor};
use kvtide_core::paged::PageFormat;

use super::kind::{blocks, sequence};
use super::running::prefill;
use crate::case::{Case, Failure, Outcome, skipped};
use crate::folder::Reference;

/// The minimum share of equal tokens.
const LEAST: f64 = 0.9;

/// Returns the cases of low-bit pages.
pub fn cases() -> Vec<Case> {
    vec![Case::new("paged/q8/top-1", run)]
}

fn run(reference: &Reference) -> Result<Outcome, Failure> {
    let (mut same, mut all, mut furthest) = (0, 0, 0f32);
    for (name, prompt) in &reference.prompts {
        let Some(wanted) = reference.tensor(&format!("logits.{name}")) else { continue };
        let mut cache = blocks(reference.model(), Some(PageFormat::Q8))?;
        let logits = prefill(&reference.decoder, &mut sequence(&mut cache)?, prompt, Some(7))?;
        let most_likely = |logits: &Tensor| logits.argmax(D::Minus1)?.to_vec1::<u32>();
        let (found, expected) = (most_likely(&logits)?, most_likely(wanted)?);
        same += found.iter().zip(&expected).filter(|(found, expected)| found == expected).count();
        all += expected.len();
        furthest = furthest.max((logits - wanted)?.abs()?.flatten_all()?.max(0)?.to_scalar()?);
    }
    if all == 0 {
        return skipped("no logits of any prompt");
    }
    let share = same as f64 / all as f64;
    let said = format!("the most likely token is the same for {same} of {all}, logits at most {furthest:.1e} off");
    if share < LEAST { Err(said.into()) } else { Ok(Outcome::Passed(said)) }
}
