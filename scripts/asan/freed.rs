//! A library that reads freed memory when it is loaded: AddressSanitizer must report it.

extern "C" fn read_freed() {
    let freed = std::hint::black_box(vec![7_u64; 64]);
    let place = freed.as_ptr();
    drop(freed);
    // SAFETY: none, this is the fault.
    std::hint::black_box(unsafe { place.read_volatile() });
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOADING: extern "C" fn() = read_freed;
