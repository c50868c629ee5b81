//! The widest unit with which memory can be copied.

use crate::kernel::{ByUnit, Kernel};

/// Bytes that are loaded and stored at once: 16 or a smaller power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit(u32);

impl Unit {
    /// The widest unit.
    pub const WIDEST: Unit = Unit(4);

    /// The widest unit that also divides these numbers: addresses, strides and sizes in bytes.
    pub fn dividing(self, numbers: impl IntoIterator<Item = u64>) -> Self {
        let all = numbers.into_iter().fold(0, |all, number| all | number);
        Unit(self.0.min(all.trailing_zeros()))
    }

    /// The number of bytes.
    pub fn bytes(self) -> usize {
        1 << self.0
    }

    /// The kernel for this unit.
    pub fn of(self, kernels: &ByUnit) -> &'static Kernel {
        kernels[4 - self.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::Unit;

    #[test]
    fn a_unit_divides_all_numbers() {
        let bytes = |numbers: &[u64]| Unit::WIDEST.dividing(numbers.iter().copied()).bytes();
        assert_eq!([bytes(&[]), bytes(&[0, 64]), bytes(&[32, 24]), bytes(&[6]), bytes(&[16, 1])], [16, 16, 8, 2, 1]);
    }
}
