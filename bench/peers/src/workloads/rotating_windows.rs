//! What a token costs at a large window against a small one.
//!
//! A small window lies in the processor's caches and a large one does not: what memory itself costs at both sizes is measured
//! as the memcpy of a buffer of that size, per token.

use super::Outcome;
use super::rotating::{bare, candle, default_slack, memcpy, ours};
use crate::claim::{Bound, Claim, Lanes};
use crate::harness::{Result, measure};
use crate::tokens::Tokens;

/// The claim that the ratio of two lanes at the two windows is at most so many times that of memcpy.
fn against_memcpy(id: &str, says: &str, lanes: &Lanes<'_>, [ours, bare]: [&str; 2], windows: [usize; 2]) -> Claim {
    let [[of_small, of_large], [copy_small, copy_large]] =
        [ours, "memcpy"].map(|lane| windows.map(|window| format!("{lane}, at {window}")));
    let ratio = lanes.ratio_of_ratios([&of_large, &of_small], [&copy_large, &copy_small]);
    let [small, large] = windows.map(|window| format!("{bare}, at {window}"));
    Claim::new(id, says, ratio, Bound::AtMost(1.5))
        .with_limit(lanes.ratio(&large, &small) / lanes.ratio(&copy_large, &copy_small))
}

pub fn run(small: usize, large: usize, rounds: usize) -> Result<Outcome> {
    let step = Tokens::<f32>::new(1, 1)?;
    let mut lanes = Vec::new();
    for window in [small, large] {
        let name = |what: &str| format!("{what}, at {window}");
        lanes.push(ours(&name("kvtide"), window, default_slack(window), &step)?);
        lanes.push(ours(&name("kvtide, slack = window"), window, window, &step)?);
        lanes.push(candle(&name("candle-nn ring"), window, &step)?);
        lanes.push(bare(&name("bare rows"), window, default_slack(window), &step)?);
        lanes.push(bare(&name("bare rows, slack = window"), window, window, &step)?);
        lanes.push(memcpy::<f32>(&name("memcpy"), window, window as u32));
    }
    let measured = measure(lanes, rounds)?;
    let lanes = Lanes(&measured);
    let mut claims = Vec::new();
    for (ours, bare, suffix) in
        [("kvtide", "bare rows", ""), ("kvtide, slack = window", "bare rows, slack = window", "-roomy")]
    {
        let at = |lane: &str, window: usize| format!("{lane}, at {window}");
        let says = format!("{ours}: window {large} / window {small}");
        let raw = lanes.claim(
            &format!("rotating-windows/raw{suffix}"),
            &says,
            &at(ours, large),
            &at(ours, small),
            Bound::AtMost(2.5),
        );
        claims.push(raw.with_limit(lanes.ratio(&at(bare, large), &at(bare, small))));
        let (id, says) = (format!("rotating-windows/over-memcpy{suffix}"), format!("{says}, over that of memcpy"));
        claims.push(against_memcpy(&id, &says, &lanes, [ours, bare], [small, large]));
    }
    let title = format!("rotating, 1 token, window {large} against {small}, f32");
    Ok(Outcome::new("rotating-windows", &title, "token", &measured, claims))
}
