//! A workload's outcome as text for a terminal.

use std::fmt::Write;

use crate::claim::{Bound, Claim};
use crate::workloads::{LaneOutcome, Outcome};

/// The lanes, then the ratios.
pub fn table(outcome: &Outcome) -> String {
    let mut text = format!("\n{}, {}, ns per {}\n", outcome.title, outcome.memory.words(), outcome.operation);
    let width = outcome.lanes.iter().map(|lane| lane.name.len()).max().unwrap_or(0);
    for LaneOutcome { name, nanoseconds, .. } in &outcome.lanes {
        let [median, low, high] = [nanoseconds.median, nanoseconds.p10, nanoseconds.p90].map(number);
        _ = writeln!(text, "  {name:width$}  {median:>12}  ({low} to {high})");
    }
    for claim in &outcome.claims {
        _ = writeln!(text, "  {}", line(claim));
    }
    text
}

fn line(claim: &Claim) -> String {
    let [ratio, low, high] = [claim.ratio, claim.low, claim.high].map(number);
    let target = match claim.to_reach {
        Bound::AtMost(most) => format!(", at most {}", number(most)),
        Bound::AtLeast(least) => format!(", at least {}", number(least)),
        Bound::Less | Bound::More => String::new(),
    };
    let met = match claim.met {
        Some(true) => ": met",
        Some(false) => ": NOT MET",
        None => "",
    };
    let limit = claim.limit.map_or_else(String::new, |limit| format!("; bare memory reaches {}", number(limit)));
    format!("{} = {ratio} ({low} to {high}){target}{met}{limit}", claim.says)
}

/// Three digits, or all of a whole number.
fn number(value: f64) -> String {
    let digits = if value >= 100. { 0 } else { 2 - value.abs().max(0.01).log10().floor() as i32 };
    let text = format!("{value:.*}", digits.max(0) as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Spread;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(
            [0.1234, 1.0, 1.756, 12.34, 800.4, 1234567.8].map(number),
            ["0.123", "1", "1.76", "12.3", "800", "1234568"]
        );
    }

    #[test]
    fn a_line_says_whether_the_target_is_met() {
        let spread = Spread { median: 3., p10: 2.5, p90: 3.25 };
        let claim = Claim::new("id", "ours / theirs", spread, Bound::AtMost(2.5)).with_limit(2.);
        assert_eq!(line(&claim), "ours / theirs = 3 (2.5 to 3.25), at most 2.5: NOT MET; bare memory reaches 2");
        let claim = Claim::new("id", "theirs / ours", spread, Bound::More);
        assert_eq!(line(&claim), "theirs / ours = 3 (2.5 to 3.25)");
    }
}
