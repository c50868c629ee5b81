//! Vectors of 32-bit floats: what the arithmetic kernels are written with, once for every width.
//!
//! An algorithm is generic over [`Lanes`] and inlined whole into an entry that has the instructions enabled (see
//! `kernels/tile`). Nothing here checks anything: whoever calls an algorithm has checked its bounds, and that the machine has
//! the instructions.
#![expect(unsafe_code, reason = "vector instructions read and write through pointers, and exist on some machines only")]

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

/// A vector of 32-bit floats.
///
/// # Safety
///
/// Every method needs the instructions of its type. Loads and stores need memory for as many elements as they name, of any
/// alignment.
pub(crate) trait Lanes: Copy {
    /// How many floats.
    const COUNT: usize;
    /// How many vectors the machine has registers for.
    const REGISTERS: usize;

    /// Asks for the cache line at this address, which need not exist, to come to the second cache. Asking for the first one
    /// was measured to be slower: it has room for two dozen requests, the second one follows a stream by itself.
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
    /// The larger one of each pair; NaN where `self` is NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// The smaller one of each pair; NaN where `self` is NaN.
    unsafe fn min(self, other: Self) -> Self;
    /// The sums of four vectors.
    unsafe fn sums(of: [Self; 4]) -> [f32; 4];
    /// Element `i` of the four goes to `to + i * stride` and the three places behind it.
    unsafe fn put_columns(of: [Self; 4], to: *mut f32, stride: usize);
    unsafe fn largest(self) -> f32;
    unsafe fn sum(self) -> f32;
    /// The nearest integers.
    unsafe fn round(self) -> Self;
    /// `self * 2^exponent`, where `exponent` holds integers from -127 to 127, and -127 gives 0.
    unsafe fn scale_by_power(self, exponent: Self) -> Self;
}

/// 2 to the power of each element: at most 2 units in the last place off, 0 below -126.5, NaN for NaN.
///
/// # Safety
///
/// The machine has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn exp2<V: Lanes>(exponent: V) -> V {
    // SAFETY: arithmetic alone.
    unsafe {
        let clamped = exponent.max(V::splat(-127.0)).min(V::splat(127.0));
        let whole = clamped.round();
        let rest = clamped.sub(whole);
        // The Taylor series of 2^x around 0, for -0.5 <= x <= 0.5.
        let mut power = V::splat(1.540_353_1e-4);
        power = power.mul_add(rest, V::splat(1.333_355_8e-3));
        power = power.mul_add(rest, V::splat(9.618_129e-3));
        power = power.mul_add(rest, V::splat(5.550_411e-2));
        power = power.mul_add(rest, V::splat(2.402_265e-1));
        power = power.mul_add(rest, V::splat(std::f32::consts::LN_2));
        power = power.mul_add(rest, V::splat(1.0));
        power.scale_by_power(whole)
    }
}

/// The methods of a vector, each inlined whole.
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
