//! A disk in memory that never fails, never loses anything and completes operations in the order they came.

use super::disk::{Completion, Disk, Operation};
use super::volume::Volume;

/// The disk. Clone it to keep a state.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    volume: Volume,
    completed: Vec<(u64, Operation)>,
}

impl MemoryDisk {
    /// An empty disk that holds the root directory only.
    pub fn new() -> MemoryDisk {
        MemoryDisk::default()
    }

    /// The files as they are.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The files, to be changed behind the disk's back.
    pub fn volume_mut(&mut self) -> &mut Volume {
        &mut self.volume
    }
}

impl Disk for MemoryDisk {
    fn submit(&mut self, token: u64, operation: Operation) {
        self.completed.push((token, operation));
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        for (token, operation) in self.completed.drain(..) {
            let result = self.volume.run(operation);
            completions.push(Completion { token, result });
        }
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) {
        self.poll(completions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::buffer::AlignedBuffer;
    use crate::io::disk::{OpenMode, Outcome};
    use std::path::Path;

    #[test]
    fn files_have_names_lengths_and_contents() {
        let mut disk = MemoryDisk::new();
        disk.call(Operation::CreateDirectory { path: "/a".into() }).unwrap();
        disk.call(Operation::CreateDirectory { path: "/a".into() }).unwrap();
        let (file, length) = disk.open(Path::new("/a/x"), OpenMode::CreateNew).unwrap();
        assert_eq!(length, 0);
        assert!(disk.open(Path::new("/a/x"), OpenMode::CreateNew).is_err());
        assert!(
            disk.open(Path::new("/a/y"), OpenMode::Existing)
                .unwrap_err()
                .is_not_found()
        );

        let mut buffer = AlignedBuffer::zeroed(4096);
        buffer[7] = 7;
        let write = Operation::Write {
            file,
            offset: 4096,
            buffer,
            durable: true,
        };
        assert!(matches!(disk.call(write), Ok(Outcome::Written { .. })));
        let (bytes, length) = disk.read(file, 4096, 8192).unwrap();
        assert_eq!((bytes[7], length), (7, 4096));

        disk.call(Operation::Rename {
            from: "/a/x".into(),
            to: "/a/z".into(),
        })
        .unwrap();
        assert_eq!(disk.list(Path::new("/a")).unwrap(), ["z"]);
        disk.call(Operation::Rename {
            from: "/a".into(),
            to: "/b".into(),
        })
        .unwrap();
        let (reopened, length) = disk.open(Path::new("/b/z"), OpenMode::ReadOnly).unwrap();
        assert_eq!(length, 8192);
        let refused = Operation::Truncate {
            file: reopened,
            length: 0,
        };
        assert!(disk.call(refused).is_err(), "opened for reading only");
        disk.call(Operation::Truncate { file, length: 100 }).unwrap();
        assert_eq!(disk.read(reopened, 0, 4096).unwrap().1, 100);
    }
}
