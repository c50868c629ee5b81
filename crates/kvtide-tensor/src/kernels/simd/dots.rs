//! Dot products with codes of 4 bits: of signed bytes, summed in 32-bit integers, and codes as floats.
#![expect(unsafe_code, reason = "the compiler's vector instructions")]
#![allow(unsafe_op_in_unsafe_fn, reason = "each method is a few instructions; the trait states what they need")]

use std::arch::x86_64::*;

use super::Lanes;
use super::avx2::Avx2;
use super::avx512::Avx512;

/// Sums of products, one for each of some columns. Integers, so that their order does not matter.
///
/// # Safety
///
/// Every method needs the instructions of its type, and memory of any alignment for the elements that it reads.
pub(crate) trait Dots: Copy {
    /// A sum of each column as a float.
    type Floats: Lanes;
    /// The codes of each column for eight elements of a row: those of even elements, and those of odd elements.
    type Codes: Copy;

    /// The same sum for all columns.
    unsafe fn start(sum: i32) -> Self;
    /// Reads four bytes of each column, with two codes each, the even one in the low bits.
    unsafe fn codes(from: *const u8) -> Self::Codes;
    /// Adds the products with two words of a row: four bytes of even elements, and four of odd elements.
    unsafe fn add_products(self, codes: Self::Codes, row: *const i32) -> Self;
    /// Subtracts `factor` times the integer of each column.
    unsafe fn sub_times(self, integers: *const i32, factor: i32) -> Self;
    unsafe fn floats(self) -> Self::Floats;
}

/// 16 columns, with the dot products of AVX-512 (VNNI). The sums of even and of odd elements are separate, because an
/// instruction that adds to a sum waits for the one before.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Dots([__m512i; 2]);

impl Dots for Avx512Dots {
    type Floats = Avx512;
    type Codes = [__m512i; 2];

    #[inline(always)]
    unsafe fn start(sum: i32) -> Self {
        Self([_mm512_set1_epi32(sum), _mm512_setzero_si512()])
    }

    #[inline(always)]
    unsafe fn codes(from: *const u8) -> Self::Codes {
        let (bytes, low) = (_mm512_loadu_si512(from.cast()), _mm512_set1_epi8(15));
        [_mm512_and_si512(bytes, low), _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), low)]
    }

    #[inline(always)]
    unsafe fn add_products(self, [even, odd]: Self::Codes, row: *const i32) -> Self {
        let (evens, odds) = (_mm512_set1_epi32(*row), _mm512_set1_epi32(*row.add(1)));
        Self([_mm512_dpbusd_epi32(self.0[0], even, evens), _mm512_dpbusd_epi32(self.0[1], odd, odds)])
    }

    #[inline(always)]
    unsafe fn sub_times(self, integers: *const i32, factor: i32) -> Self {
        let product = _mm512_mullo_epi32(_mm512_loadu_si512(integers.cast()), _mm512_set1_epi32(factor));
        Self([_mm512_sub_epi32(self.0[0], product), self.0[1]])
    }

    #[inline(always)]
    unsafe fn floats(self) -> Avx512 {
        Avx512::of_integers(_mm512_add_epi32(self.0[0], self.0[1]))
    }
}

/// 8 columns, with AVX2: products of pairs in 16 bits, whose sum is at most 4 * 15 * 128.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Dots(__m256i);

impl Dots for Avx2Dots {
    type Floats = Avx2;
    type Codes = [__m256i; 2];

    #[inline(always)]
    unsafe fn start(sum: i32) -> Self {
        Self(_mm256_set1_epi32(sum))
    }

    #[inline(always)]
    unsafe fn codes(from: *const u8) -> Self::Codes {
        let (bytes, low) = (_mm256_loadu_si256(from.cast()), _mm256_set1_epi8(15));
        [_mm256_and_si256(bytes, low), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low)]
    }

    #[inline(always)]
    unsafe fn add_products(self, [even, odd]: Self::Codes, row: *const i32) -> Self {
        let (evens, odds) = (_mm256_set1_epi32(*row), _mm256_set1_epi32(*row.add(1)));
        let pairs = _mm256_add_epi16(_mm256_maddubs_epi16(even, evens), _mm256_maddubs_epi16(odd, odds));
        Self(_mm256_add_epi32(self.0, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))))
    }

    #[inline(always)]
    unsafe fn sub_times(self, integers: *const i32, factor: i32) -> Self {
        let product = _mm256_mullo_epi32(_mm256_loadu_si256(integers.cast()), _mm256_set1_epi32(factor));
        Self(_mm256_sub_epi32(self.0, product))
    }

    #[inline(always)]
    unsafe fn floats(self) -> Avx2 {
        Avx2::of_integers(self.0)
    }
}

/// 8 columns, with the dot products of AVX-VNNI.
#[derive(Clone, Copy)]
pub(crate) struct AvxVnniDots([__m256i; 2]);

impl Dots for AvxVnniDots {
    type Floats = Avx2;
    type Codes = [__m256i; 2];

    #[inline(always)]
    unsafe fn start(sum: i32) -> Self {
        Self([_mm256_set1_epi32(sum), _mm256_setzero_si256()])
    }

    #[inline(always)]
    unsafe fn codes(from: *const u8) -> Self::Codes {
        Avx2Dots::codes(from)
    }

    #[inline(always)]
    unsafe fn add_products(self, [even, odd]: Self::Codes, row: *const i32) -> Self {
        let (evens, odds) = (_mm256_set1_epi32(*row), _mm256_set1_epi32(*row.add(1)));
        Self([_mm256_dpbusd_avx_epi32(self.0[0], even, evens), _mm256_dpbusd_avx_epi32(self.0[1], odd, odds)])
    }

    #[inline(always)]
    unsafe fn sub_times(self, integers: *const i32, factor: i32) -> Self {
        let Avx2Dots(first) = Avx2Dots(self.0[0]).sub_times(integers, factor);
        Self([first, self.0[1]])
    }

    #[inline(always)]
    unsafe fn floats(self) -> Avx2 {
        Avx2::of_integers(_mm256_add_epi32(self.0[0], self.0[1]))
    }
}

/// Vectors of floats that are made of codes.
///
/// # Safety
///
/// As for [`Dots`].
pub(crate) trait Codes: Lanes {
    /// The code at a place of each word of 32 bits, minus `ZERO`.
    unsafe fn code<const ZERO: i32>(words: *const u8, place: u32) -> Self;
    unsafe fn load_integers(from: *const i32) -> Self;
}

impl Codes for Avx512 {
    #[inline(always)]
    unsafe fn code<const ZERO: i32>(words: *const u8, place: u32) -> Self {
        const fn numbers(zero: i32) -> [f32; 16] {
            let mut numbers = [0.0; 16];
            let mut code = 0;
            while code < 16 {
                numbers[code] = (code as i32 - zero) as f32;
                code += 1;
            }
            numbers
        }
        // The instruction reads the lowest four bits of each word.
        let at_start = _mm512_srl_epi32(_mm512_loadu_si512(words.cast()), _mm_cvtsi32_si128(4 * place as i32));
        Self::load(const { numbers(ZERO) }.as_ptr()).looked_up(at_start)
    }

    #[inline(always)]
    unsafe fn load_integers(from: *const i32) -> Self {
        Self::of_integers(_mm512_loadu_si512(from.cast()))
    }
}

impl Codes for Avx2 {
    #[inline(always)]
    unsafe fn code<const ZERO: i32>(words: *const u8, place: u32) -> Self {
        let at_start = _mm256_srl_epi32(_mm256_loadu_si256(words.cast()), _mm_cvtsi32_si128(4 * place as i32));
        let codes = _mm256_and_si256(at_start, _mm256_set1_epi32(15));
        Self::of_integers(if ZERO == 0 { codes } else { _mm256_sub_epi32(codes, _mm256_set1_epi32(ZERO)) })
    }

    #[inline(always)]
    unsafe fn load_integers(from: *const i32) -> Self {
        Self::of_integers(_mm256_loadu_si256(from.cast()))
    }
}

/// The nearest bytes of eight numbers times a factor, those with even indices first, and their sum. Numbers that fit in no
/// byte give any.
///
/// # Safety
///
/// The machine has AVX2.
#[inline(always)]
pub(crate) unsafe fn eight_bytes(values: &[f32; 8], factor: f32) -> ([i32; 2], i32) {
    let scaled = _mm256_mul_ps(_mm256_loadu_ps(values.as_ptr()), _mm256_set1_ps(factor));
    let wide = _mm256_cvtps_epi32(scaled);
    let words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256::<1>(wide));
    let bytes = _mm_packs_epi16(words, words);
    // The first eight bytes are in the new order, and the others are left out.
    let order = _mm_set_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 7, 5, 3, 1, 6, 4, 2, 0);
    let ordered = _mm_shuffle_epi8(bytes, order);
    // The sum of the first eight, each 128 more.
    let sums = _mm_sad_epu8(_mm_xor_si128(ordered, _mm_set1_epi8(-128)), _mm_setzero_si128());
    let both = _mm_cvtsi128_si64(ordered);
    ([both as i32, (both >> 32) as i32], _mm_cvtsi128_si32(sums) - 8 * 128)
}
