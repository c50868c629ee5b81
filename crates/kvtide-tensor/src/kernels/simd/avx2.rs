//! 256-bit vectors: AVX2 with fused multiply-add and half floats.
#![expect(unsafe_code, reason = "the compiler's vector instructions")]
#![allow(unsafe_op_in_unsafe_fn, reason = "each method is one or a few instructions; the trait states what they need")]

use std::arch::x86_64::*;

use super::{Lanes, lanes};

/// 8 floats.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256);

impl Avx2 {
    #[inline(always)]
    pub(super) unsafe fn of_integers(integers: __m256i) -> Self {
        Self(_mm256_cvtepi32_ps(integers))
    }
}

lanes! {
    Avx2: 8 floats, 16 registers;

    prefetch(address: *const u8) = _mm_prefetch::<_MM_HINT_T1>(address.cast());
    splat(value: f32) -> Self = Self(_mm256_set1_ps(value));
    load(from: *const f32) -> Self = Self(_mm256_loadu_ps(from));
    store(self, to: *mut f32) = _mm256_storeu_ps(to, self.0);
    load_f16(from: *const u8) -> Self = Self(_mm256_cvtph_ps(_mm_loadu_si128(from.cast())));
    load_bf16(from: *const u8) -> Self = {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
    };
    load_f8(from: *const u8) -> Self = {
        // Reads it as a half float with the same bits moved right by the difference of the exponents: 2^8 too small. NaN is
        // set separately.
        let wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(from.cast()));
        let magnitude = _mm_and_si128(wide, _mm_set1_epi16(0x7f));
        let sign = _mm_slli_epi16::<8>(_mm_and_si128(wide, _mm_set1_epi16(0x80)));
        let is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
        let bits = _mm_or_si128(sign, _mm_slli_epi16::<7>(magnitude));
        let nan = _mm_and_si128(is_nan, _mm_set1_epi16(0x7e00));
        Self(_mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(bits, nan)), _mm256_set1_ps(256.0)))
    };
    load_i8(from: *const u8) -> Self = Self(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))));
    load_nibbles(from: *const u8, high: bool) -> Self = {
        let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
        let codes = if high { _mm256_srli_epi32::<4>(wide) } else { _mm256_and_si256(wide, _mm256_set1_epi32(15)) };
        Self(_mm256_cvtepi32_ps(codes))
    };
    add(self, other: Self) -> Self = Self(_mm256_add_ps(self.0, other.0));
    sub(self, other: Self) -> Self = Self(_mm256_sub_ps(self.0, other.0));
    mul(self, other: Self) -> Self = Self(_mm256_mul_ps(self.0, other.0));
    div(self, other: Self) -> Self = Self(_mm256_div_ps(self.0, other.0));
    mul_add(self, factor: Self, term: Self) -> Self = Self(_mm256_fmadd_ps(self.0, factor.0, term.0));
    // The instruction returns its second operand if one is NaN.
    max(self, other: Self) -> Self = Self(_mm256_max_ps(other.0, self.0));
    min(self, other: Self) -> Self = Self(_mm256_min_ps(other.0, self.0));
    sums(of: [Self; 4]) -> [f32; 4] = {
        let abcd = _mm256_hadd_ps(_mm256_hadd_ps(of[0].0, of[1].0), _mm256_hadd_ps(of[2].0, of[3].0));
        let sums = _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps::<1>(abcd));
        let mut out = [0.0; 4];
        _mm_storeu_ps(out.as_mut_ptr(), sums);
        out
    };
    put_columns(of: [Self; 4], to: *mut f32, stride: usize) = {
        // Each half of the vectors is a square of four by four.
        let (low, high) = (_mm256_unpacklo_ps(of[0].0, of[1].0), _mm256_unpackhi_ps(of[0].0, of[1].0));
        let (low2, high2) = (_mm256_unpacklo_ps(of[2].0, of[3].0), _mm256_unpackhi_ps(of[2].0, of[3].0));
        let columns = [
            _mm256_unpacklo_pd(_mm256_castps_pd(low), _mm256_castps_pd(low2)),
            _mm256_unpackhi_pd(_mm256_castps_pd(low), _mm256_castps_pd(low2)),
            _mm256_unpacklo_pd(_mm256_castps_pd(high), _mm256_castps_pd(high2)),
            _mm256_unpackhi_pd(_mm256_castps_pd(high), _mm256_castps_pd(high2)),
        ];
        for (next, column) in columns.into_iter().enumerate() {
            let column = _mm256_castpd_ps(column);
            _mm_storeu_ps(to.add(next * stride), _mm256_castps256_ps128(column));
            _mm_storeu_ps(to.add((next + 4) * stride), _mm256_extractf128_ps::<1>(column));
        }
    };
    largest(self) -> f32 = {
        let pair = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
        let pair = _mm_max_ps(pair, _mm_movehl_ps(pair, pair));
        _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)))
    };
    sum(self) -> f32 = {
        let pair = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
        let pair = _mm_add_ps(pair, _mm_movehl_ps(pair, pair));
        _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
    };
    round(self) -> Self = Self(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0));
    scale_by_power(self, exponent: Self) -> Self = {
        let biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponent.0), _mm256_set1_epi32(127));
        Self(_mm256_mul_ps(self.0, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))))
    };
}
