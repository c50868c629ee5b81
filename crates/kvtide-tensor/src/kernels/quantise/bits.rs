//! What all formats ask of the bits of a float.

/// 1.5 * 2^23: what is added to it is rounded to a whole number, halves to even, which is then in its low bits.
pub(super) const ROUND: f32 = 12_582_912.;

/// The nearest whole number, halves to even, as a byte in two's complement.
#[inline(always)]
pub(super) fn whole(value: f32) -> u8 {
    (value + ROUND).to_bits() as u8
}

/// The bits of a float that is not finite are from here on, without its sign.
pub(super) const INFINITE: u32 = 0x7f80_0000;

/// The bits of a float without its sign, which compare as the magnitudes do.
#[inline(always)]
pub(super) fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}
