//! 128-bit vectors of 64-bit ARM.
#![expect(unsafe_code, reason = "the compiler's vector instructions")]
#![allow(unsafe_op_in_unsafe_fn, reason = "each method is one or a few instructions; the trait states what they need")]

use std::arch::aarch64::*;

use super::{Lanes, lanes};

/// 4 floats.
#[derive(Clone, Copy)]
pub(crate) struct Neon(float32x4_t);

/// 4 bytes, widened to 16 bits each.
#[inline(always)]
unsafe fn bytes(from: *const u8) -> uint16x8_t {
    vmovl_u8(vcreate_u8(u64::from(from.cast::<u32>().read_unaligned())))
}

/// 4 half floats, given as their bits. Widened with integer operations, because not every compiler has the half-float
/// instructions.
#[inline(always)]
unsafe fn from_half_bits(half: uint32x4_t) -> float32x4_t {
    let sign = vshlq_n_u32::<16>(vandq_u32(half, vdupq_n_u32(0x8000)));
    let magnitude = vandq_u32(half, vdupq_n_u32(0x7fff));
    // Moving the bits left by the difference of the exponents makes it 2^112 too small; the multiplication also corrects
    // subnormals.
    let shifted = vreinterpretq_f32_u32(vshlq_n_u32::<13>(magnitude));
    let scaled = vmulq_n_f32(shifted, f32::from_bits((127 + 112) << 23));
    let special = vcgeq_u32(magnitude, vdupq_n_u32(0x7c00));
    let exponent = vandq_u32(special, vdupq_n_u32(0x7f80_0000));
    vreinterpretq_f32_u32(vorrq_u32(vorrq_u32(vreinterpretq_u32_f32(scaled), exponent), sign))
}

lanes! {
    Neon: 4 floats, 32 registers;

    // The processor's own prefetchers follow rows; the compiler has no stable prefetch instruction.
    prefetch(_: *const u8) = ();
    splat(value: f32) -> Self = Self(vdupq_n_f32(value));
    load(from: *const f32) -> Self = Self(vreinterpretq_f32_u8(vld1q_u8(from.cast())));
    store(self, to: *mut f32) = vst1q_u8(to.cast(), vreinterpretq_u8_f32(self.0));
    load_f16(from: *const u8) -> Self = Self(from_half_bits(vmovl_u16(vreinterpret_u16_u8(vld1_u8(from)))));
    load_bf16(from: *const u8) -> Self = {
        Self(vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(from)))))
    };
    load_f8(from: *const u8) -> Self = {
        let wide = vmovl_u16(vget_low_u16(bytes(from)));
        let magnitude = vandq_u32(wide, vdupq_n_u32(0x7f));
        let sign = vshlq_n_u32::<24>(vandq_u32(wide, vdupq_n_u32(0x80)));
        // As the bits of a 32-bit float it is 2^120 too small; the multiplication also corrects subnormals.
        let scaled =
            vmulq_n_f32(vreinterpretq_f32_u32(vshlq_n_u32::<20>(magnitude)), f32::from_bits((127 + 120) << 23));
        let nan = vandq_u32(vceqq_u32(magnitude, vdupq_n_u32(0x7f)), vdupq_n_u32(0x7fc0_0000));
        Self(vreinterpretq_f32_u32(vorrq_u32(vorrq_u32(vreinterpretq_u32_f32(scaled), nan), sign)))
    };
    load_i8(from: *const u8) -> Self = {
        let wide = vmovl_s8(vcreate_s8(u64::from(from.cast::<u32>().read_unaligned())));
        Self(vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))))
    };
    load_nibbles(from: *const u8, high: bool) -> Self = {
        let wide = vmovl_u16(vget_low_u16(bytes(from)));
        Self(vcvtq_f32_u32(if high { vshrq_n_u32::<4>(wide) } else { vandq_u32(wide, vdupq_n_u32(15)) }))
    };
    add(self, other: Self) -> Self = Self(vaddq_f32(self.0, other.0));
    sub(self, other: Self) -> Self = Self(vsubq_f32(self.0, other.0));
    mul(self, other: Self) -> Self = Self(vmulq_f32(self.0, other.0));
    div(self, other: Self) -> Self = Self(vdivq_f32(self.0, other.0));
    mul_add(self, factor: Self, term: Self) -> Self = Self(vfmaq_f32(term.0, self.0, factor.0));
    max(self, other: Self) -> Self = Self(vmaxq_f32(self.0, other.0));
    min(self, other: Self) -> Self = Self(vminq_f32(self.0, other.0));
    sums(of: [Self; 4]) -> [f32; 4] = {
        let sums = vpaddq_f32(vpaddq_f32(of[0].0, of[1].0), vpaddq_f32(of[2].0, of[3].0));
        let mut out = [0.0; 4];
        vst1q_f32(out.as_mut_ptr(), sums);
        out
    };
    put_columns(of: [Self; 4], to: *mut f32, stride: usize) = {
        let (low, high) = (vzip1q_f32(of[0].0, of[1].0), vzip2q_f32(of[0].0, of[1].0));
        let (low2, high2) = (vzip1q_f32(of[2].0, of[3].0), vzip2q_f32(of[2].0, of[3].0));
        let columns = [
            vzip1q_f64(vreinterpretq_f64_f32(low), vreinterpretq_f64_f32(low2)),
            vzip2q_f64(vreinterpretq_f64_f32(low), vreinterpretq_f64_f32(low2)),
            vzip1q_f64(vreinterpretq_f64_f32(high), vreinterpretq_f64_f32(high2)),
            vzip2q_f64(vreinterpretq_f64_f32(high), vreinterpretq_f64_f32(high2)),
        ];
        for (next, column) in columns.into_iter().enumerate() {
            Self(vreinterpretq_f32_f64(column)).store(to.add(next * stride));
        }
    };
    largest(self) -> f32 = vmaxvq_f32(self.0);
    sum(self) -> f32 = vaddvq_f32(self.0);
    round(self) -> Self = Self(vrndnq_f32(self.0));
    scale_by_power(self, exponent: Self) -> Self = {
        let biased = vaddq_s32(vcvtq_s32_f32(exponent.0), vdupq_n_s32(127));
        Self(vmulq_f32(self.0, vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))))
    };
}
