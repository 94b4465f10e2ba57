//! How the C library's allocator is to deal with large pieces.

/// Pieces from this size on are mapped and unmapped one by one.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 512 << 10;

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

#[cfg(test)]
mod tests {
    /// Blocks that are freed leave the process although small pieces allocated among them stay.
    #[test]
    fn stress_freed_blocks_are_given_back() {
        super::map_large_pieces();
        let resident = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
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
}
