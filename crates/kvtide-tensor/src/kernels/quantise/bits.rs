//! Bit operations on floats that all formats share.

/// 1.5 * 2^23. Adding it to a number rounds the number to an integer, ties to even, which is then in the low bits.
pub(super) const ROUND: f32 = 12_582_912.;

/// The nearest integer, ties to even, as a byte in two's complement.
#[inline(always)]
pub(super) fn whole(value: f32) -> u8 {
    (value + ROUND).to_bits() as u8
}

/// Floats whose bits, without the sign, are at least this are not finite.
pub(super) const INFINITE: u32 = 0x7f80_0000;

/// The bits of a float without its sign, which compare as the magnitudes do.
#[inline(always)]
pub(super) fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}
