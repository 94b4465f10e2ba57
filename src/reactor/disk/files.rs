//! Open files of a disk: opening with O_DIRECT or without, and the table of `FileId`s.

use crate::io::disk::{FileId, OpenMode, Operation};
use slab::Slab;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A file that is open, with the path it was opened by.
#[derive(Debug)]
pub(in crate::reactor) struct OpenFile {
    pub(in crate::reactor) file: File,
    pub(in crate::reactor) path: PathBuf,
}

impl OpenFile {
    /// What the file is called now, for errors: segments of the log are renamed while they are open. Where the kernel
    /// does not tell (no `/proc`), the path it was opened by.
    pub(in crate::reactor) fn name(&self) -> PathBuf {
        let link = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        std::fs::read_link(link).unwrap_or_else(|_| self.path.clone())
    }
}

/// Opens `path`, with O_DIRECT if `direct` and the file system takes it. Returns the length with it.
pub(in crate::reactor) fn open(path: &Path, mode: OpenMode, direct: bool) -> io::Result<(OpenFile, u64)> {
    let mut options = OpenOptions::new();
    options.read(true).mode(0o600);
    match mode {
        OpenMode::Existing => options.write(true),
        OpenMode::ReadOnly => &mut options,
        OpenMode::CreateNew => options.write(true).create_new(true),
    };
    let file = if direct {
        match options.clone().custom_flags(libc::O_DIRECT).open(path) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                warn_of_buffering(path);
                // Linux creates the file before it finds that O_DIRECT is not to be had.
                if mode == OpenMode::CreateNew {
                    options.create_new(false).create(true);
                }
                options.open(path)?
            }
            other => other?,
        }
    } else {
        options.open(path)?
    };
    let length = file.metadata()?.len();
    let path = path.to_path_buf();
    Ok((OpenFile { file, path }, length))
}

fn warn_of_buffering(path: &Path) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            path = %path.display(),
            "the file system refuses O_DIRECT: files are read and written through the page cache"
        );
    }
}

/// The files of one disk by id.
#[derive(Default)]
pub(in crate::reactor) struct FileTable {
    files: Slab<Arc<OpenFile>>,
}

impl FileTable {
    pub(in crate::reactor) fn insert(&mut self, file: OpenFile) -> FileId {
        let index = self.files.insert(Arc::new(file));
        FileId(u32::try_from(index).expect("descriptors are fewer than 2^32"))
    }

    /// The file an operation is about, if it names one. A closed id is a caller's bug.
    pub(in crate::reactor) fn resolve(&self, operation: &Operation) -> Option<Arc<OpenFile>> {
        let id = operation.file()?;
        let file = self.files.get(id.0 as usize);
        assert!(file.is_some(), "{operation:?}: the file is not open");
        file.cloned()
    }

    pub(in crate::reactor) fn remove(&mut self, id: FileId) {
        self.files.remove(id.0 as usize);
    }
}
