//! The loops of the formats, compiled for the vector instructions of the machine.
//!
//! Compilation contracts and reorders nothing: all versions give the same bits.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calls of functions that need instructions beyond those of the build")
)]

use super::codec::Codec;
use crate::device::form::Kernels;

macro_rules! forms {
    ($($(#[$on:meta])* $form:ident, $encode:ident, $decode:ident, $features:literal;)+) => {
        /// [`Codec::encode`] with the instructions of `kernels`.
        pub(super) fn encode(kernels: Kernels, codec: &Codec, values: &mut [f32], codes: &mut [u8], scales: &mut [u8]) {
            match kernels {
                // SAFETY: kernels are chosen only if the machine has their instructions.
                $($(#[$on])* Kernels::$form => unsafe { $encode(codec, values, codes, scales) },)+
                _ => codec.encode_plain(values, codes, scales),
            }
        }

        /// [`Codec::decode`] with the instructions of `kernels`.
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
