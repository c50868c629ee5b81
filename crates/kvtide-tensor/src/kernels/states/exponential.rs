//! The exponential function in 32-bit floats, and functions that follow from it. Without branches, so that loops of them
//! are vectorised; within 3 units in the last place.

use super::mul_add;

/// 1.5 * 2^23: the sum of this and a small number has that number rounded to an integer in its last bits.
const ROUNDER: f32 = 12_582_912.0;

/// ln 2 in two parts. The first one has few enough bits that its multiples are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// e^x: 0 below -87.7, infinity above 88.73, NaN for NaN.
#[inline(always)]
pub(super) fn exp<const FUSED: bool>(x: f32) -> f32 {
    let low = if x < -104.0 { -104.0 } else { x };
    let within = if low > 89.0 { 89.0 } else { low };
    let rounded = mul_add::<FUSED>(within, std::f32::consts::LOG2_E, ROUNDER);
    let whole = rounded - ROUNDER;
    let rest = mul_add::<FUSED>(whole, -LN_2[1], mul_add::<FUSED>(whole, -LN_2[0], within));
    // The Taylor series for -0.35 <= x <= 0.35.
    let mut power = 1.0 / 5040.0;
    for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        power = mul_add::<FUSED>(power, rest, factor);
    }
    // Exponents from -127 to 127, as the bits of 0 and of powers of two. 2^128 is no float, but its product may be one.
    let bits = (rounded.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32);
    let exponent = if bits < -127 { -127 } else { bits };
    let (exponent, double) = if exponent > 127 { (127, 2.0) } else { (exponent, 1.0) };
    power * double * f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}

/// `x / (1 + e^-x)` for each element.
#[inline(always)]
pub(super) fn silu<const FUSED: bool>(row: &mut [f32]) {
    for x in row {
        *x /= 1.0 + exp::<FUSED>(-*x);
    }
}

/// e to the power of each element.
#[inline(always)]
pub(super) fn exps<const FUSED: bool>(row: &mut [f32]) {
    for x in row {
        *x = exp::<FUSED>(*x);
    }
}

/// `ln(1 + e^x)` for each element.
#[inline(always)]
pub(super) fn softplus<const FUSED: bool>(row: &mut [f32]) {
    for x in row {
        // ln(1 + e) = 2 atanh(e / (2 + e)), whose series needs few terms up to 1/3.
        let small = exp::<FUSED>(-x.abs());
        let z = small / (2.0 + small);
        let square = z * z;
        let mut series = 2.0 / 15.0;
        for factor in [2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 0.4, 2.0 / 3.0, 2.0] {
            series = mul_add::<FUSED>(series, square, factor);
        }
        // Not `max`, which drops NaN.
        let positive = if *x < 0.0 { 0.0 } else { *x };
        *x = mul_add::<FUSED>(series, z, positive);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The difference from the correct value in units of the last place.
    fn off(found: f32, expected: f64) -> f64 {
        let unit = f64::from(f32::EPSILON) * expected.abs().max(f64::from(f32::MIN_POSITIVE));
        (f64::from(found) - expected).abs() / unit
    }

    fn applied(function: fn(&mut [f32]), x: f32) -> f32 {
        let mut row = [x];
        function(&mut row);
        row[0]
    }

    #[test]
    fn functions_are_within_their_bounds() {
        for step in -87_000..88_720 {
            let x = step as f32 / 1000.0;
            let wide = f64::from(x);
            for (found, expected) in [
                (exp::<true>(x), wide.exp()),
                (exp::<false>(x), wide.exp()),
                (applied(silu::<true>, x), wide / (1.0 + (-wide).exp())),
                (applied(softplus::<true>, x), wide.max(0.0) + (-wide.abs()).exp().ln_1p()),
                (applied(softplus::<false>, x), wide.max(0.0) + (-wide.abs()).exp().ln_1p()),
            ] {
                assert!(off(found, expected) < 4.0, "at {x}: {found} is not {expected}");
            }
        }
    }

    #[test]
    fn ends_are_those_of_the_functions() {
        let infinity = f32::INFINITY;
        for (x, expected) in
            [(-infinity, 0.0), (-104.0, 0.0), (-88.5, 0.0), (0.0, 1.0), (90.0, infinity), (infinity, infinity)]
        {
            assert_eq!(exp::<true>(x), expected, "e^{x}");
            assert_eq!(exp::<false>(x), expected, "e^{x}");
        }
        assert!(
            [exp::<true>(f32::NAN), applied(silu::<true>, f32::NAN), applied(softplus::<true>, f32::NAN)]
                .iter()
                .all(|x| x.is_nan())
        );
        assert_eq!(applied(softplus::<true>, 100.0), 100.0);
        assert_eq!(applied(softplus::<true>, -200.0), 0.0);
        assert_eq!(applied(silu::<true>, 100.0), 100.0);
        assert_eq!(applied(silu::<true>, -100.0).abs(), 0.0);
    }
}
