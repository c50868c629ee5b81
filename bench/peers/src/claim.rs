//! A ratio between two lanes of a workload, and what it is to reach.

use serde::{Deserialize, Serialize};

use crate::harness::Measured;
use crate::statistics::Spread;

/// What a ratio is held against.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Bound {
    /// The ratio should not be above it: less is better.
    AtMost(f64),
    /// The ratio should not be below it: more is better.
    AtLeast(f64),
    /// No target; less is better.
    Less,
    /// No target; more is better.
    More,
}

impl Bound {
    /// True, or false, where there is a target.
    pub fn met(self, ratio: f64) -> Option<bool> {
        match self {
            Bound::AtMost(most) => Some(ratio <= most),
            Bound::AtLeast(least) => Some(ratio >= least),
            Bound::Less | Bound::More => None,
        }
    }
}

/// The ratio of the medians of two lanes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// What the recorded ratios know it by.
    pub id: String,
    /// What the ratio is, in words.
    pub says: String,
    pub ratio: f64,
    /// Where the lowest and the highest tenth of the rounds' own ratios end.
    pub low: f64,
    pub high: f64,
    pub to_reach: Bound,
    pub met: Option<bool>,
    /// What bare memory operations reach in the place of ours, in the same run.
    pub limit: Option<f64>,
    /// Why it is no better, in what the same run has measured; none: the limit tells.
    pub why: Option<String>,
}

/// The lanes of one run, by name.
pub struct Lanes<'a>(pub &'a [Measured]);

impl Lanes<'_> {
    /// The nanoseconds of a lane, round by round.
    pub fn rounds(&self, name: &str) -> &[f64] {
        let found = self.0.iter().find(|lane| lane.name == name);
        &found.unwrap_or_else(|| panic!("no lane is called {name}")).nanoseconds
    }

    /// The ratio of the lane `over` to the lane `under`.
    pub fn claim(&self, id: &str, says: &str, over: &str, under: &str, to_reach: Bound) -> Claim {
        Claim::new(id, says, Spread::ratio(self.rounds(over), self.rounds(under)), to_reach)
    }

    /// The ratio of the medians of two lanes.
    pub fn ratio(&self, over: &str, under: &str) -> f64 {
        Spread::ratio(self.rounds(over), self.rounds(under)).median
    }

    /// The ratio of two lanes, over the ratio of two others.
    pub fn ratio_of_ratios(&self, [over, under]: [&str; 2], [base_over, base_under]: [&str; 2]) -> Spread {
        let each = |over: &str, under: &str| -> Vec<f64> {
            self.rounds(over).iter().zip(self.rounds(under)).map(|(over, under)| over / under).collect()
        };
        let rounds: Vec<f64> =
            each(over, under).iter().zip(each(base_over, base_under)).map(|(ratio, base)| ratio / base).collect();
        Spread { median: self.ratio(over, under) / self.ratio(base_over, base_under), ..Spread::of(&rounds) }
    }
}

impl Claim {
    pub fn new(id: &str, says: &str, ratio: Spread, to_reach: Bound) -> Self {
        Claim {
            id: id.to_owned(),
            says: says.to_owned(),
            ratio: ratio.median,
            low: ratio.p10,
            high: ratio.p90,
            to_reach,
            met: to_reach.met(ratio.median),
            limit: None,
            why: None,
        }
    }

    /// The same, with what bare memory operations reach in the place of ours.
    pub fn with_limit(mut self, limit: f64) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The same, with why it is no better.
    pub fn because(mut self, why: String) -> Self {
        self.why = Some(why);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Role;

    fn lane(name: &str, nanoseconds: &[f64]) -> Measured {
        Measured { name: name.to_owned(), role: Role::Ours, nanoseconds: nanoseconds.to_vec() }
    }

    #[test]
    fn a_bound_is_met_on_its_own_side() {
        assert_eq!([1.0, 1.1, 1.2].map(|ratio| Bound::AtMost(1.1).met(ratio)), [Some(true), Some(true), Some(false)]);
        assert_eq!([1.0, 1.1, 1.2].map(|ratio| Bound::AtLeast(1.1).met(ratio)), [Some(false), Some(true), Some(true)]);
        assert_eq!([Bound::Less.met(9.), Bound::More.met(0.)], [None, None]);
    }

    #[test]
    fn a_claim_is_a_ratio_of_two_lanes() {
        let measured = [lane("ours", &[2., 2., 4.]), lane("peer", &[1., 1., 1.])];
        let claim = Lanes(&measured).claim("id", "ours over the peer", "ours", "peer", Bound::AtMost(1.5));
        assert_eq!((claim.ratio, claim.met, claim.limit), (2., Some(false), None));
        assert_eq!(claim.with_limit(1.2).limit, Some(1.2));
        assert_eq!(Lanes(&measured).ratio("peer", "ours"), 0.5);
        let squared = Lanes(&measured).ratio_of_ratios(["ours", "peer"], ["peer", "ours"]);
        assert_eq!((squared.median, squared.p10), (4., 4.));
    }
}
