//! Division by a number that is known before a launch, as a multiplication and a shift on the device.

use bytemuck::{Pod, Zeroable};

/// Divides numbers below 2^31, exactly: `value * factor >> shift`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct Divisor {
    pub by: u32,
    factor: u32,
    shift: u32,
}

impl Divisor {
    /// A divisor from 1 to 2^31; 0 counts as 1, for rows without elements.
    pub fn new(by: usize) -> Self {
        let by = u32::try_from(by.max(1)).ok().filter(|by| *by <= 1 << 31).expect("a divisor of 31 bits");
        // ceil(2^shift / by) is at least 2^31 and below 2^32. Times `by` it exceeds 2^shift by less than `by`. That excess
        // times a value below 2^31 is less than 2^shift: too little to reach the next quotient.
        let shift = 31 + (32 - (by - 1).leading_zeros());
        let factor = (1u64 << shift).div_ceil(by.into());
        Divisor { by, factor: factor as u32, shift }
    }

    /// Divides like the device.
    #[cfg(test)]
    fn divide(self, value: u32) -> u32 {
        ((u64::from(value) * u64::from(self.factor)) >> self.shift) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::Divisor;

    #[test]
    fn quotients_are_exact() {
        let values = |by: u32| {
            let near = (0..40u32).flat_map(move |times| {
                let multiple = u64::from(by) * (u64::from(times) * 53_687_091 / 40 + u64::from(times));
                (0..3).map(move |step| (multiple + step).saturating_sub(1))
            });
            near.chain([0, 1, 2, (1 << 31) - 1]).filter(|value| *value < 1 << 31).map(|value| value as u32)
        };
        let bys = (1..2000).chain((0..32).flat_map(|bit| [(1u32 << bit) - 1, 1 << bit, (1 << bit) + 1]));
        for by in bys.filter(|by| (1..=1 << 31).contains(by)) {
            let divisor = Divisor::new(by as usize);
            for value in values(by) {
                assert_eq!(divisor.divide(value), value / by, "{value} / {by}");
            }
        }
    }
}
