//! Copies that leave the caches alone: what is larger than they are is written past them.
//!
//! A plain store reads the line that it is about to overwrite; a streaming one does not, which saves a third of the traffic.
//! The C library's `memcpy` streams only pieces of many megabytes, and a page's rows are a few kilobytes. Whole lines of the
//! target are streamed, its edges are not. On machines without such stores this is `copy_from_slice`.
#![expect(unsafe_code, reason = "streaming stores are intrinsics over raw memory")]

/// Bytes of a call from which on its copies stream: less stays in the caches, where whoever reads it next finds it.
pub(crate) const STREAM_BYTES: usize = 8 << 20;

/// Copies `source` to `target`, which is as long. A thread calls [`settle`] after its last one.
pub(crate) fn stream(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len(), "a copy of as many bytes");
    #[cfg(target_arch = "x86_64")]
    if target.len() >= 2 * x86::LINE && is_x86_feature_detected!("avx512f") {
        // SAFETY: the machine has what the function needs.
        unsafe { x86::stream(target, source) };
        return;
    }
    target.copy_from_slice(source);
}

/// Makes what this thread has streamed visible to the others before what it writes next.
pub(crate) fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86_64 machine has this fence, which touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};

    /// Bytes of a line, and of a vector.
    pub(super) const LINE: usize = 64;

    #[target_feature(enable = "avx512f")]
    pub(super) fn stream(target: &mut [u8], source: &[u8]) {
        let head = target.as_ptr().align_offset(LINE).min(target.len());
        target[..head].copy_from_slice(&source[..head]);
        let lines = (target.len() - head) / LINE;
        let end = head + lines * LINE;
        let (to, from) = (target[head..end].as_mut_ptr(), source[head..end].as_ptr());
        for line in 0..lines {
            // SAFETY: `line` is below the number of lines in both slices, which are as long; the target's are aligned.
            unsafe {
                let at = line * LINE;
                _mm512_stream_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast()));
            }
        }
        target[end..].copy_from_slice(&source[end..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_no_other_changes() {
        let source: Vec<u8> = (0..1000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for (start, len) in (0..70).flat_map(|start| [0, 1, 63, 64, 127, 128, 129, 500].map(|len| (start, len))) {
            let mut target = vec![0xaa; 1000];
            stream(&mut target[start..start + len], &source[3..3 + len]);
            settle();
            assert_eq!(target[start..start + len], source[3..3 + len]);
            assert!(target[..start].iter().chain(&target[start + len..]).all(|&byte| byte == 0xaa));
        }
    }
}
