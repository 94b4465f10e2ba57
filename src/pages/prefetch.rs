//! Asking the memory for something before it is needed.
//!
//! It stands here because this is the lowest room whose readers wait for memory; `mvcc` asks by it as well.

/// Most lookups that go together, step by step: what they ask for has to fit the nearest cache until it is looked at.
pub const TOGETHER: usize = 32;
const LINE_BYTES: usize = 64;

/// Asks for the first `lines` cache lines of a piece of memory at `address`. A hint: any address will do.
pub fn prefetch<T>(address: *const T, lines: usize) {
    for line in 0..lines {
        let address = address.cast::<i8>().wrapping_add(line * LINE_BYTES);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing that the program could see, and faults at no address.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = address;
    }
}

/// Asks for up to `lines` cache lines of `bytes`.
pub fn prefetch_bytes(bytes: &[u8], lines: usize) {
    prefetch(bytes.as_ptr(), bytes.len().div_ceil(LINE_BYTES).min(lines));
}
