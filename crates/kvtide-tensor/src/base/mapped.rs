//! Gives back the memory of weights that were packed: an engine maps the file of a model, and pages that were read stay in memory beside the
//! packed weights. What is read once more is read from the file again.
#![cfg_attr(target_os = "linux", expect(unsafe_code, reason = "advice about memory is a system call"))]

/// Gives back the memory of ranges that lie in a mapped file: whole pages that nothing has written to. Other memory stays as it is,
/// and so does what the ranges contain. Does nothing except on Linux.
pub fn release_mapped(ranges: &[&[u8]]) {
    #[cfg(target_os = "linux")]
    linux::release(ranges);
    #[cfg(not(target_os = "linux"))]
    let _ = ranges;
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::ops::Range;
    use std::os::unix::fs::FileExt;

    /// Looking up a smaller range costs more than it gives back.
    const LARGE: usize = 64 << 10;

    pub fn release(ranges: &[&[u8]]) {
        let Ok(map) = File::open("/proc/self/pagemap") else { return };
        for range in ranges.iter().filter(|range| range.len() >= LARGE) {
            let pages = whole_pages(range);
            if are_of_a_file(&map, &pages) {
                // SAFETY: the pages belong to a slice that nothing can write to, and those that have content are a file's: they have the same
                // content whenever they are read again.
                unsafe { libc::madvise(pages.start as *mut libc::c_void, pages.len(), libc::MADV_DONTNEED) };
            }
        }
    }

    /// The size of a page, a power of two.
    fn page() -> usize {
        // SAFETY: it reads a constant of the system.
        unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
    }

    fn whole_pages(range: &[u8]) -> Range<usize> {
        let (range, mask) = (range.as_ptr_range(), page().wrapping_sub(1));
        (range.start as usize).wrapping_add(mask) & !mask..range.end as usize & !mask
    }

    /// True if all of these pages that have content are pages of a file. A page of a private mapping that was written to is none.
    fn are_of_a_file(map: &File, pages: &Range<usize>) -> bool {
        entries(map, pages).is_some_and(|all| all.iter().all(|entry| entry & HAS_CONTENT == 0 || entry & IS_FILE != 0))
    }

    /// Bits of an entry of the page map: the page is in memory or swapped out; it is a file's.
    const HAS_CONTENT: u64 = 0b11 << 62;
    const IS_FILE: u64 = 1 << 61;

    fn entries(map: &File, pages: &Range<usize>) -> Option<Vec<u64>> {
        let (first, count) = (pages.start.checked_div(page())?, pages.len().checked_div(page())?);
        let mut entries = vec![0; count];
        map.read_exact_at(bytemuck::cast_slice_mut(&mut entries), (first as u64).wrapping_mul(8)).ok()?;
        Some(entries)
    }

    #[cfg(test)]
    mod tests {
        use std::os::fd::AsRawFd;

        use super::*;

        const BYTES: usize = 1 << 20;
        const PAGE: usize = 64 << 10;

        /// The number of pages of a range that are in memory.
        fn resident(range: &[u8]) -> usize {
            let all = entries(&File::open("/proc/self/pagemap").unwrap(), &whole_pages(range)).unwrap();
            all.iter().filter(|&&entry| entry & HAS_CONTENT != 0).count()
        }

        #[test]
        fn pages_of_a_file_are_given_back_and_read_again() {
            let content: Vec<u8> = (0..BYTES).map(|at| (at * 31 % 251) as u8).collect();
            let path = std::env::temp_dir().join(format!("kvtide-mapped-{}", std::process::id()));
            std::fs::write(&path, &content).unwrap();
            let file = File::open(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            let flags = libc::PROT_READ | libc::PROT_WRITE;
            let start =
                unsafe { libc::mmap(std::ptr::null_mut(), BYTES, flags, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
            assert_ne!(start, libc::MAP_FAILED);
            let mapped = || unsafe { std::slice::from_raw_parts(start.cast::<u8>(), BYTES) };
            assert!(mapped() == content);
            let all = resident(mapped());
            release(&[&mapped()[PAGE / 2..BYTES - PAGE / 2]]);
            assert!(resident(mapped()) * 8 <= all, "{} of {all}", resident(mapped()));
            assert!(mapped() == content);
            // A page that was written to is the only copy of its bytes.
            unsafe { *start.cast::<u8>().add(5 * PAGE) = 255 };
            release(&[mapped()]);
            assert_eq!(resident(mapped()), all);
            assert_eq!(mapped()[5 * PAGE], 255);
            unsafe { libc::munmap(start, BYTES) };
        }

        #[test]
        fn other_memory_keeps_its_content() {
            let own = vec![7u8; BYTES];
            release(&[&own, &own[..100], &[]]);
            assert!(own.iter().all(|&byte| byte == 7));
        }
    }
}
