//! How the C library's allocator is to deal with large pieces.

/// Pieces from this size on are mapped and unmapped one by one.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 128 << 10;

/// Has large pieces mapped one by one, whatever was freed before. To be called once, before other threads start.
///
/// Left alone, glibc raises that size when such a piece is freed. Then the window's blocks, the largest pieces there
/// are, come from the heap, where small pieces that live longer keep their memory from being given back.
pub fn map_large_pieces() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallopt touches the allocator's own settings only, and no other thread runs yet.
        let done = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES) };
        if done != 1 {
            tracing::warn!("the allocator keeps its own threshold for mapping memory");
        }
    }
}

/// Gives freed memory back to the system, also from between pieces that are still in use. Some milliseconds, in which
/// other threads that allocate may wait: for after a burst.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim takes the allocator's own locks and touches free memory only.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    fn resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    /// Blocks that are freed leave the process although small pieces allocated among them stay.
    #[test]
    fn stress_freed_blocks_are_given_back() {
        super::map_large_pieces();
        let mut small = Vec::new();
        let mut block = || {
            small.push(vec![1u8; 100]);
            vec![1u8; 1 << 20]
        };
        // The first block that is freed would raise the threshold.
        drop(block());
        let blocks: Vec<_> = (0..384).map(|_| block()).collect();
        let full = resident();
        drop(blocks);
        // Other tests run beside this one.
        assert!(resident() + (192 << 20) < full, "{full} bytes, then {}", resident());
    }

    #[test]
    fn stress_freed_pieces_between_others_are_given_back() {
        let pieces: Vec<_> = (0..4096).map(|_| vec![1u8; 60_000]).collect();
        let (kept, freed): (Vec<_>, Vec<_>) = pieces.into_iter().enumerate().partition(|(at, _)| at % 8 == 0);
        let full = resident();
        drop(freed);
        super::give_back();
        assert!(resident() + (128 << 20) < full, "{full} bytes, then {}", resident());
        drop(kept);
    }
}
