//! Moves large amounts of memory with non-temporal stores, which bypass the CPU caches.
//!
//! A plain store first reads the cache line that it replaces, and evicts other data from the caches. Non-temporal stores do
//! neither. Measured with rows of 512 bytes in 16 stretches on a Zen 4 machine (1 MiB of L2, 32 MiB of L3), huge pages, one
//! thread, in GB/s; a compaction moves a window down by its slack:
//!
//! ```text
//!                           libc   plain 512 bits   non-temporal 512 bits
//! copy 4 MiB                49.0             48.2                    26.8
//! copy 12 MiB               27.7             29.1                    27.2
//! copy 16 MiB               22.4             24.3                    26.9
//! copy 64 MiB               12.8             13.5                    22.7
//! compact 4 MiB             40.5             47.7                    18.8
//! compact 16 MiB            26.8             29.3                    22.4
//!   slack = window          21.9             25.7                    26.2
//! compact 32 MiB            12.6             14.9                    18.2
//! compact 256 MiB           15.4             14.9                    21.1
//! ```
//!
//! So they pay from about 16 MiB on. A second thread adds 5 to 15 % there, which is the rest of that machine's memory
//! bandwidth; it is used from 32 MiB on.
#![expect(unsafe_code, reason = "the instructions for non-temporal stores work on raw pointers")]

use crate::base::threads::share;
use crate::device::form::{Form, Kernels};

/// Operations that move at least this many bytes use non-temporal stores. Small in unit tests, which cover both ways.
pub(super) const STREAM_BYTES: usize = if cfg!(test) { 256 } else { 16 << 20 };

/// Operations that move at least this many bytes are shared among threads.
pub(super) const SHARE_BYTES: usize = 2 * STREAM_BYTES;

/// Calls `work` with each index below `count`, on all threads; on this thread alone if there is no pool.
pub(super) fn spread(count: usize, work: impl Fn(usize) + Sync) {
    if share(count, usize::MAX, &work).is_err() {
        (0..count).for_each(work);
    }
}

/// Copies bytes in ascending order. `target` may overlap `source` if it begins below it.
type Forward = unsafe fn(target: *mut u8, source: *const u8, bytes: usize);

/// The way in which one operation moves bytes.
#[derive(Clone, Copy)]
pub(crate) struct Carrier(Option<Forward>);

impl Carrier {
    /// The fastest way for an operation on `bytes` bytes in all.
    pub fn of(bytes: usize) -> Carrier {
        if bytes < STREAM_BYTES {
            return Carrier(None);
        }
        match Form::of_host() {
            Ok(Form::Bytes(kernels)) => Carrier::past_caches(kernels),
            _ => Carrier(None),
        }
    }

    /// Non-temporal stores, if these kernels have them.
    pub fn past_caches(kernels: Kernels) -> Carrier {
        match kernels {
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512 if kernels.is_supported() => Carrier(Some(x86::forward_512)),
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx2 if kernels.is_supported() => Carrier(Some(x86::forward_256)),
            _ => Carrier(None),
        }
    }

    /// Plain stores.
    pub const PLAIN: Carrier = Carrier(None);

    /// Copies `source` to `target`, which has the same length.
    pub fn copy(self, target: &mut [u8], source: &[u8]) {
        self.carry(target, source);
        self.settle();
    }

    /// Makes the stores of this thread visible to other threads before its next stores. Non-temporal stores are not ordered
    /// with later ones, such as the release of a lock.
    pub fn settle(self) {
        #[cfg(target_arch = "x86_64")]
        if self.0.is_some() {
            // SAFETY: every x86_64 machine has this fence, which touches no memory.
            unsafe { std::arch::x86_64::_mm_sfence() };
        }
    }

    /// Like [`Carrier::copy`], for a caller that calls [`Carrier::settle`] after its last copy.
    pub fn carry(self, target: &mut [u8], source: &[u8]) {
        match self.0 {
            None => target.copy_from_slice(source),
            Some(forward) => {
                assert_eq!(target.len(), source.len(), "a copy of another length");
                // SAFETY: both have the given length, and a mutable slice overlaps no other slice. The machine was checked
                // for the instructions when the carrier was made.
                unsafe { forward(target.as_mut_ptr(), source.as_ptr(), source.len()) }
            }
        }
    }

    /// Moves the `len` bytes from `source` on to `target`, both within `bytes`; they may overlap.
    pub fn shift(self, bytes: &mut [u8], source: usize, target: usize, len: usize) {
        match self.0 {
            Some(forward) if target < source => {
                assert!(source + len <= bytes.len(), "a move reaches outside its memory");
                let start = bytes.as_mut_ptr();
                // SAFETY: source and target are within `bytes`, the target below the source, as `forward` requires. The
                // machine was checked for the instructions when the carrier was made.
                unsafe { forward(start.add(target), start.add(source), len) };
                self.settle();
            }
            _ => bytes.copy_within(source..source + len, target),
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, __m512i, _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512,
        _mm512_stream_si512,
    };

    /// Bytes per iteration. An iteration loads everything before it stores anything, so that a target below its source is
    /// never read after it was written.
    const TURN: usize = 256;

    /// The prefetch distance in bytes.
    const AHEAD: usize = 1024;

    macro_rules! forward {
        ($name:ident, $features:literal, $vector:ty, $load:ident, $store:ident) => {
            /// Copies `bytes` bytes in ascending order.
            ///
            /// # Safety
            ///
            /// Both must be valid for `bytes` bytes, and `target` may overlap `source` only if it begins below it. The
            /// machine must have the instructions.
            #[target_feature(enable = $features)]
            pub unsafe fn $name(mut target: *mut u8, mut source: *const u8, mut bytes: usize) {
                const LANES: usize = TURN / size_of::<$vector>();
                let lead = target.align_offset(size_of::<$vector>()).min(bytes);
                // SAFETY: `lead` is at most `bytes`; `copy` allows any overlap.
                unsafe { std::ptr::copy(source, target, lead) };
                // SAFETY: as above, both stay within their memory or at its end.
                unsafe { (target, source) = (target.add(lead), source.add(lead)) };
                bytes -= lead;
                while bytes >= TURN {
                    for line in 0..TURN / 64 {
                        _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(AHEAD + line * 64).cast());
                    }
                    // SAFETY: at least one iteration's bytes are left to load, and loads need no alignment.
                    let loaded: [$vector; LANES] =
                        std::array::from_fn(|lane| unsafe { $load(source.cast::<$vector>().add(lane)) });
                    for (lane, vector) in loaded.into_iter().enumerate() {
                        // SAFETY: at least one iteration's bytes are left to store, and the lead has aligned the target.
                        unsafe { $store(target.cast::<$vector>().add(lane), vector) };
                    }
                    // SAFETY: at least one iteration's bytes were left, so both stay within their memory or at its end.
                    unsafe { (target, source) = (target.add(TURN), source.add(TURN)) };
                    bytes -= TURN;
                }
                // SAFETY: this many bytes are left in both.
                unsafe { std::ptr::copy(source, target, bytes) };
            }
        };
    }

    forward!(forward_512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512);
    forward!(forward_256, "avx", __m256i, _mm256_loadu_si256, _mm256_stream_si256);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    #[test]
    fn each_form_agrees_with_copies_of_slices() {
        for kernels in Kernels::supported() {
            let carrier = Carrier::past_caches(kernels);
            for len in (0..600).chain([1000, 5000]) {
                for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 64), (64, 63)] {
                    let source = numbers(len + 64);
                    let (mut actual, mut expected) = (vec![0; len + 64], vec![0; len + 64]);
                    carrier.copy(&mut actual[to..to + len], &source[from..from + len]);
                    expected[to..to + len].copy_from_slice(&source[from..from + len]);
                    assert_eq!(actual, expected, "{kernels}: {len} bytes from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn each_form_moves_what_overlaps() {
        for kernels in Kernels::supported() {
            let carrier = Carrier::past_caches(kernels);
            for len in (0..600).step_by(7).chain([256, 257, 3000]) {
                for (source, target) in
                    [(1, 0), (64, 0), (65, 2), (300, 0), (700, 13), (0, 1), (0, 300), (13, 700), (5, 5)]
                {
                    let (mut actual, mut expected) = (numbers(len + 1000), numbers(len + 1000));
                    carrier.shift(&mut actual, source, target, len);
                    expected.copy_within(source..source + len, target);
                    assert_eq!(actual, expected, "{kernels}: {len} bytes from {source} to {target}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "another length")]
    fn a_copy_to_another_length_is_refused() {
        let carrier = Kernels::supported().map(Carrier::past_caches).last().filter(|carrier| carrier.0.is_some());
        match carrier {
            Some(carrier) => carrier.copy(&mut [0; 4], &[0; 5]),
            None => panic!("slices refuse another length too"),
        }
    }

    #[test]
    #[should_panic]
    fn a_move_from_outside_is_refused() {
        let carrier = Kernels::supported().map(Carrier::past_caches).last().unwrap_or(Carrier(None));
        carrier.shift(&mut [0; 10], 8, 0, 3);
    }
}
