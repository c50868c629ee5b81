//! 512-bit vectors: AVX-512 with its byte, word and quadword parts.
#![expect(unsafe_code, reason = "the compiler's vector instructions")]
#![allow(unsafe_op_in_unsafe_fn, reason = "each method is one or a few instructions; the trait states what they need")]

use std::arch::x86_64::*;

use super::{Lanes, lanes};

/// 16 floats.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

impl Avx512 {
    #[inline(always)]
    pub(super) unsafe fn of_integers(integers: __m512i) -> Self {
        Self(_mm512_cvtepi32_ps(integers))
    }

    /// The floats of this vector at the indices, of which the lowest four bits count.
    #[inline(always)]
    pub(super) unsafe fn looked_up(self, indices: __m512i) -> Self {
        Self(_mm512_permutexvar_ps(indices, self.0))
    }
}

lanes! {
    Avx512: 16 floats, 32 registers;

    prefetch(address: *const u8) = _mm_prefetch::<_MM_HINT_T1>(address.cast());
    splat(value: f32) -> Self = Self(_mm512_set1_ps(value));
    load(from: *const f32) -> Self = Self(_mm512_loadu_ps(from));
    store(self, to: *mut f32) = _mm512_storeu_ps(to, self.0);
    load_f16(from: *const u8) -> Self = Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast())));
    load_bf16(from: *const u8) -> Self = {
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
    };
    load_f8(from: *const u8) -> Self = {
        // Reads it as a half float with the same bits moved right by the difference of the exponents: 2^8 too small. NaN is
        // set separately.
        let wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast()));
        let magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
        let sign = _mm256_slli_epi16::<8>(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)));
        let is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
        let bits = _mm256_or_si256(sign, _mm256_slli_epi16::<7>(magnitude));
        let nan = _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00));
        let half = _mm512_cvtph_ps(_mm256_or_si256(bits, nan));
        Self(_mm512_mul_ps(half, _mm512_set1_ps(256.0)))
    };
    load_i8(from: *const u8) -> Self = Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))));
    load_nibbles(from: *const u8, high: bool) -> Self = {
        let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
        let codes = if high { _mm512_srli_epi32::<4>(wide) } else { _mm512_and_si512(wide, _mm512_set1_epi32(15)) };
        Self(_mm512_cvtepi32_ps(codes))
    };
    add(self, other: Self) -> Self = Self(_mm512_add_ps(self.0, other.0));
    sub(self, other: Self) -> Self = Self(_mm512_sub_ps(self.0, other.0));
    mul(self, other: Self) -> Self = Self(_mm512_mul_ps(self.0, other.0));
    div(self, other: Self) -> Self = Self(_mm512_div_ps(self.0, other.0));
    mul_add(self, factor: Self, term: Self) -> Self = Self(_mm512_fmadd_ps(self.0, factor.0, term.0));
    // The instruction returns its second operand if one is NaN.
    max(self, other: Self) -> Self = Self(_mm512_max_ps(other.0, self.0));
    min(self, other: Self) -> Self = Self(_mm512_min_ps(other.0, self.0));
    sums(of: [Self; 4]) -> [f32; 4] = {
        let halves = |v: __m512| _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
        let ab = _mm256_hadd_ps(halves(of[0].0), halves(of[1].0));
        let cd = _mm256_hadd_ps(halves(of[2].0), halves(of[3].0));
        let abcd = _mm256_hadd_ps(ab, cd);
        let sums = _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps::<1>(abcd));
        let mut out = [0.0; 4];
        _mm_storeu_ps(out.as_mut_ptr(), sums);
        out
    };
    put_columns(of: [Self; 4], to: *mut f32, stride: usize) = {
        // Each quarter of the vectors is a square of four by four.
        let (low, high) = (_mm512_unpacklo_ps(of[0].0, of[1].0), _mm512_unpackhi_ps(of[0].0, of[1].0));
        let (low2, high2) = (_mm512_unpacklo_ps(of[2].0, of[3].0), _mm512_unpackhi_ps(of[2].0, of[3].0));
        let columns = [
            _mm512_unpacklo_pd(_mm512_castps_pd(low), _mm512_castps_pd(low2)),
            _mm512_unpackhi_pd(_mm512_castps_pd(low), _mm512_castps_pd(low2)),
            _mm512_unpacklo_pd(_mm512_castps_pd(high), _mm512_castps_pd(high2)),
            _mm512_unpackhi_pd(_mm512_castps_pd(high), _mm512_castps_pd(high2)),
        ];
        for (next, column) in columns.into_iter().enumerate() {
            let (to, column) = (to.add(next * stride), _mm512_castpd_ps(column));
            _mm_storeu_ps(to, _mm512_castps512_ps128(column));
            _mm_storeu_ps(to.add(4 * stride), _mm512_extractf32x4_ps::<1>(column));
            _mm_storeu_ps(to.add(8 * stride), _mm512_extractf32x4_ps::<2>(column));
            _mm_storeu_ps(to.add(12 * stride), _mm512_extractf32x4_ps::<3>(column));
        }
    };
    largest(self) -> f32 = _mm512_reduce_max_ps(self.0);
    sum(self) -> f32 = _mm512_reduce_add_ps(self.0);
    round(self) -> Self = Self(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0));
    scale_by_power(self, exponent: Self) -> Self = {
        let kept = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(exponent.0, _mm512_set1_ps(-127.0));
        Self(_mm512_maskz_scalef_ps(kept, self.0, exponent.0))
    };
}
