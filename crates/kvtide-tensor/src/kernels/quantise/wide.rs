//! The same loops, compiled for the vectors that the machine has.
//!
//! Nothing is contracted or reordered by that: every form gives the same bits.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calls of functions that need more of the machine than every build does")
)]

use super::Codec;
use crate::device::form::Kernels;

macro_rules! forms {
    ($($(#[$on:meta])* $form:ident, $encode:ident, $decode:ident, $features:literal;)+) => {
        /// [`Codec::encode`] in a form that the machine can run.
        pub(super) fn encode(kernels: Kernels, codec: &Codec, values: &mut [f32], codes: &mut [u8], scales: &mut [u8]) {
            match kernels {
                // SAFETY: a form is chosen only where the machine has what it needs.
                $($(#[$on])* Kernels::$form => unsafe { $encode(codec, values, codes, scales) },)+
                _ => codec.encode_plain(values, codes, scales),
            }
        }

        /// [`Codec::decode`] in a form that the machine can run.
        pub(super) fn decode(kernels: Kernels, codec: &Codec, codes: &[u8], scales: &[u8], slot: usize, out: &mut [f32]) {
            match kernels {
                // SAFETY: as above.
                $($(#[$on])* Kernels::$form => unsafe { $decode(codec, codes, scales, slot, out) },)+
                _ => codec.decode_plain(codes, scales, slot, out),
            }
        }

        $(
            $(#[$on])*
            #[target_feature(enable = $features)]
            fn $encode(codec: &Codec, values: &mut [f32], codes: &mut [u8], scales: &mut [u8]) {
                codec.encode_plain(values, codes, scales);
            }

            $(#[$on])*
            #[target_feature(enable = $features)]
            fn $decode(codec: &Codec, codes: &[u8], scales: &[u8], slot: usize, out: &mut [f32]) {
                codec.decode_plain(codes, scales, slot, out);
            }
        )+
    };
}

forms! {
    #[cfg(target_arch = "x86_64")]
    Avx2, encode_avx2, decode_avx2, "avx2,fma,f16c";
    #[cfg(target_arch = "x86_64")]
    Avx512, encode_avx512, decode_avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl";
}
