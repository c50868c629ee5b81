//! Medians and spreads of what was measured round by round.

/// The middle of some numbers, and where the lowest and the highest tenth of them end.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Spread {
    pub median: f64,
    pub p10: f64,
    pub p90: f64,
}

impl Spread {
    /// That of at least one number.
    pub fn of(values: &[f64]) -> Self {
        assert!(!values.is_empty(), "a spread of nothing");
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Spread { median: percentile(&sorted, 0.5), p10: percentile(&sorted, 0.1), p90: percentile(&sorted, 0.9) }
    }

    /// The ratio of two medians, with the spread of the ratios of the rounds: round by round both ran in the same weather.
    pub fn ratio(over: &[f64], under: &[f64]) -> Self {
        assert_eq!(over.len(), under.len(), "rounds of the same run");
        let rounds: Vec<f64> = over.iter().zip(under).map(|(over, under)| over / under).collect();
        Spread { median: Spread::of(over).median / Spread::of(under).median, ..Spread::of(&rounds) }
    }
}

/// Between the two nearest of `sorted` where the share falls between them.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_does_not_depend_on_the_order() {
        let spread = Spread::of(&[5., 1., 3., 2., 4., 6., 7., 8., 9., 10., 0.]);
        assert_eq!(spread, Spread { median: 5., p10: 1., p90: 9. });
    }

    #[test]
    fn between_two_numbers_it_is_interpolated() {
        let spread = Spread::of(&[10., 20.]);
        assert_eq!(spread.median, 15.);
        assert!((spread.p10 - 11.).abs() < 1e-9 && (spread.p90 - 19.).abs() < 1e-9);
    }

    #[test]
    fn one_round_is_its_own_median() {
        assert_eq!(Spread::of(&[7.]), Spread { median: 7., p10: 7., p90: 7. });
    }

    #[test]
    fn a_ratio_is_of_medians_and_spreads_over_rounds() {
        // A slow moment that hits both sides of a round leaves the spread alone.
        let ratio = Spread::ratio(&[20., 20., 2000.], &[10., 10., 1000.]);
        assert_eq!(ratio, Spread { median: 2., p10: 2., p90: 2. });
        // One that hits one side alone shows in the spread, not in the ratio.
        let ratio = Spread::ratio(&[20., 20., 2000.], &[10., 10., 10.]);
        assert_eq!((ratio.median, ratio.p90 > 100.), (2., true));
    }
}
