//! Vectors of 32-bit floats, with which the arithmetic kernels are written once for all widths.
//!
//! An algorithm is generic over [`Lanes`] and inlined completely into an entry function that has the instructions enabled
//! (see `kernels/tile`). Nothing here is checked: the caller of an algorithm has checked its bounds, and that the machine
//! has the instructions.
#![expect(unsafe_code, reason = "vector instructions read and write through pointers, and exist on some machines only")]

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod dots;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

/// A vector of 32-bit floats.
///
/// # Safety
///
/// Every method needs the instructions of its type. Loads and stores need memory for the elements that they access, of any
/// alignment.
pub(crate) trait Lanes: Copy {
    /// The number of floats.
    const COUNT: usize;
    /// The number of vectors that fit in the machine's registers.
    const REGISTERS: usize;

    /// Prefetches the cache line at this address, which need not be valid, into the second-level cache. Prefetching into the
    /// first level was measured to be slower: it takes about two dozen outstanding requests, while the second level follows
    /// a stream by itself.
    unsafe fn prefetch(address: *const u8);
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn load_f16(from: *const u8) -> Self;
    unsafe fn load_bf16(from: *const u8) -> Self;
    unsafe fn load_f8(from: *const u8) -> Self;
    unsafe fn load_i8(from: *const u8) -> Self;
    /// The low or the high four bits of each byte.
    unsafe fn load_nibbles(from: *const u8, high: bool) -> Self;

    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// `self * factor + term`, rounded once.
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self;
    /// The larger of each pair; NaN where `self` is NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// The smaller of each pair; NaN where `self` is NaN.
    unsafe fn min(self, other: Self) -> Self;
    /// The sum of each of four vectors.
    unsafe fn sums(of: [Self; 4]) -> [f32; 4];
    /// Stores element `i` of the four vectors at `to + i * stride` and the three places after it.
    unsafe fn put_columns(of: [Self; 4], to: *mut f32, stride: usize);
    unsafe fn largest(self) -> f32;
    unsafe fn sum(self) -> f32;
    /// The nearest integers.
    unsafe fn round(self) -> Self;
    /// `self * 2^exponent` for integer exponents from -127 to 127; -127 gives 0.
    unsafe fn scale_by_power(self, exponent: Self) -> Self;
}

/// The Taylor series of 2^x around 0, for -0.5 <= x <= 0.5, from the last term on.
pub(crate) const POWERS: [f32; 7] =
    [1.540_353_1e-4, 1.333_355_8e-3, 9.618_129e-3, 5.550_411e-2, 2.402_265e-1, std::f32::consts::LN_2, 1.0];

/// 2 to the power of each element, within 2 units in the last place; 0 below -126.5, NaN for NaN.
///
/// # Safety
///
/// The machine has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn exp2<V: Lanes>(exponent: V) -> V {
    // SAFETY: arithmetic only.
    unsafe {
        let clamped = exponent.max(V::splat(-127.0)).min(V::splat(127.0));
        let whole = clamped.round();
        let rest = clamped.sub(whole);
        let mut power = V::splat(POWERS[0]);
        for &term in &POWERS[1..] {
            power = power.mul_add(rest, V::splat(term));
        }
        power.scale_by_power(whole)
    }
}

/// Implements the methods of a vector, each always inlined.
macro_rules! lanes {
    ($vector:ident: $count:literal floats, $registers:literal registers;
     $($name:ident($($argument:tt)*) $(-> $result:ty)? = $body:expr;)+) => {
        impl Lanes for $vector {
            const COUNT: usize = $count;
            const REGISTERS: usize = $registers;

            $(
                #[inline(always)]
                unsafe fn $name($($argument)*) $(-> $result)? {
                    $body
                }
            )+
        }
    };
}
use lanes;
