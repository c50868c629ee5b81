//! The widest unit in which memory can be moved.

use crate::kernel::{ByUnit, Kernel};

/// Bytes that are loaded and stored at once: 16 or a smaller power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit(u32);

impl Unit {
    /// The widest.
    pub const WIDEST: Unit = Unit(4);

    /// The widest that also divides these numbers: addresses, strides and sizes in bytes.
    pub fn dividing(self, numbers: impl IntoIterator<Item = u64>) -> Self {
        let all = numbers.into_iter().fold(0, |all, number| all | number);
        Unit(self.0.min(all.trailing_zeros()))
    }

    /// How many.
    pub fn bytes(self) -> usize {
        1 << self.0
    }

    /// The kernel for it.
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
