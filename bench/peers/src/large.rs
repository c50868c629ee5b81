//! Allocates memory for lanes without a cache, of the same kind as the caches' memory: zeroed at the first touch, in
//! huge pages if the system has them. On small pages, a limit would be slower than the lanes that it limits.
#![cfg_attr(target_os = "linux", expect(unsafe_code, reason = "advice about memory is a call of the system"))]

use bytemuck::Zeroable;

pub fn zeros<T: Zeroable>(count: usize) -> Vec<T> {
    let mut memory = bytemuck::zeroed_vec(count);
    advise(&mut memory);
    memory
}

pub fn filled<T: Zeroable + Copy>(count: usize, value: T) -> Vec<T> {
    let mut memory = zeros(count);
    memory.fill(value);
    memory
}

/// Asks for huge pages in memory that was not touched yet.
#[cfg(target_os = "linux")]
fn advise<T>(memory: &mut [T]) {
    /// Smaller pieces fit into a page or two.
    const LARGE: usize = 4 << 20;
    const PAGE: usize = 4096;
    let (start, bytes) = (memory.as_mut_ptr().cast::<u8>(), size_of_val(memory));
    if bytes >= LARGE {
        let lead = start.align_offset(PAGE);
        // SAFETY: the range lies within the slice, and the advice doesn't change its content.
        unsafe { libc::madvise(start.add(lead).cast(), (bytes - lead) / PAGE * PAGE, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn advise<T>(_: &mut [T]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_memory_holds_what_it_is_filled_with() {
        assert_eq!(zeros::<f32>(3 << 20), vec![0.; 3 << 20]);
        assert_eq!(filled(5 << 20, 7u8), vec![7; 5 << 20]);
    }
}
