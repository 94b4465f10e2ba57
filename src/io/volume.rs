//! A file system in memory: directories, sparse files and open handles; the common ground of the two test disks.
//!
//! Everything here takes effect at once and nothing is ever lost: durability is `medium`'s subject, timing and faults
//! are `faulty`'s. Contents are kept in blocks of 4096 bytes that are shared between clones, and blocks of zeros cost
//! no memory, so that a clone of a whole volume per crash point is cheap.

use super::buffer::{ALIGNMENT, AlignedBuffer};
use super::disk::{DiskError, FileId, OpenMode, Operation, Outcome};
use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Bytes of a block, the unit in which space is allocated.
pub const BLOCK: u64 = ALIGNMENT as u64;

/// A file or directory, independent of its name.
pub type InodeId = u64;

/// The root directory.
pub const ROOT: InodeId = 0;

/// One allocated block.
#[derive(Clone, Debug)]
enum Block {
    Zeros,
    Bytes(Arc<[u8; ALIGNMENT]>),
}

/// What a file holds: a length and the blocks that are allocated; a hole reads as zeros.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    length: u64,
    blocks: BTreeMap<u64, Block>,
}

impl Contents {
    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes of allocated blocks.
    pub fn allocated(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK
    }

    /// Fills `into` from `offset`, zeros where there is nothing; returns how many bytes lie before the end of the file.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        into.fill(0);
        let length = (self.length.saturating_sub(offset)).min(into.len() as u64) as usize;
        for_each_piece(offset, length, |block, within, piece| {
            if let Some(Block::Bytes(bytes)) = self.blocks.get(&block) {
                into[piece.clone()].copy_from_slice(&bytes[within..within + piece.len()]);
            }
        });
        length
    }

    /// Writes `bytes` at `offset`, growing the file as needed.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        for_each_piece(offset, bytes.len(), |block, within, piece| {
            let piece = &bytes[piece];
            let slot = self.blocks.entry(block).or_insert(Block::Zeros);
            if is_zero(piece) {
                match slot {
                    Block::Zeros => return,
                    Block::Bytes(_) if piece.len() == ALIGNMENT => return *slot = Block::Zeros,
                    Block::Bytes(_) => {}
                }
            }
            if matches!(slot, Block::Zeros) {
                *slot = Block::Bytes(Arc::new([0; ALIGNMENT]));
            }
            if let Block::Bytes(shared) = slot {
                Arc::make_mut(shared)[within..within + piece.len()].copy_from_slice(piece);
            }
        });
        self.length = self.length.max(offset + bytes.len() as u64);
    }

    /// Writes `length` zeros at `offset`, growing the file as needed.
    pub fn write_zeros(&mut self, offset: u64, length: u64) {
        const ZEROS: [u8; ALIGNMENT] = [0; ALIGNMENT];
        for_each_piece(offset, length as usize, |block, within, piece| {
            self.write(block * BLOCK + within as u64, &ZEROS[..piece.len()]);
        });
    }

    /// Allocates the missing blocks of a range and grows the file to its end.
    pub fn allocate(&mut self, offset: u64, length: u64) {
        for block in offset / BLOCK..(offset + length).div_ceil(BLOCK) {
            self.blocks.entry(block).or_insert(Block::Zeros);
        }
        self.length = self.length.max(offset + length);
    }

    /// How many bytes `allocate` would add.
    pub fn missing(&self, offset: u64, length: u64) -> u64 {
        let (start, end) = (offset / BLOCK, (offset + length).div_ceil(BLOCK));
        (end - start - self.blocks.range(start..end).count() as u64) * BLOCK
    }

    /// Gives back whole blocks inside a range and zeroes the parts of blocks at its ends.
    pub fn punch(&mut self, offset: u64, length: u64) {
        let end = (offset + length).min(self.length);
        let mut position = offset;
        while position < end {
            let next = (position / BLOCK + 1) * BLOCK;
            let piece = next.min(end) - position;
            if piece == BLOCK {
                self.blocks.remove(&(position / BLOCK));
            } else if self.blocks.contains_key(&(position / BLOCK)) {
                self.write(position, &vec![0; piece as usize]);
            }
            position = next;
        }
    }

    /// Sets the length; what is cut off is gone, what is added reads as zeros.
    pub fn truncate(&mut self, length: u64) {
        if length < self.length {
            let tail = length.next_multiple_of(BLOCK).min(self.length) - length;
            if tail > 0 && self.blocks.contains_key(&(length / BLOCK)) {
                self.write(length, &vec![0; tail as usize]);
            }
            self.blocks.split_off(&length.div_ceil(BLOCK));
        }
        self.length = length;
    }

    /// The whole file.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length as usize];
        self.read(0, &mut bytes);
        bytes
    }
}

/// Whether all bytes are zero.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Cuts `offset..offset + length` at block boundaries: calls with the block, the offset within it, and the piece's
/// range.
fn for_each_piece(offset: u64, length: usize, mut visit: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < length {
        let position = offset + done as u64;
        let within = (position % BLOCK) as usize;
        let piece = (ALIGNMENT - within).min(length - done);
        visit(position / BLOCK, within, done..done + piece);
        done += piece;
    }
}

/// A file or a directory.
#[derive(Clone, Debug)]
pub enum Inode {
    /// A file's contents.
    File(Contents),
    /// A directory's entries.
    Directory(BTreeMap<String, InodeId>),
}

/// A file held open.
#[derive(Clone, Debug)]
struct Handle {
    inode: InodeId,
    path: PathBuf,
    writable: bool,
}

/// The file system. Space is accounted in blocks of files that have a name or are open.
#[derive(Clone, Debug)]
pub struct Volume {
    inodes: BTreeMap<InodeId, Inode>,
    handles: BTreeMap<FileId, Handle>,
    next_inode: InodeId,
    next_file: u32,
    /// Bytes that may be allocated in all; `None` is without end.
    pub capacity: Option<u64>,
}

impl Default for Volume {
    fn default() -> Volume {
        Volume::new()
    }
}

impl Volume {
    /// An empty volume with a root directory and no limit.
    pub fn new() -> Volume {
        Volume {
            inodes: BTreeMap::from([(ROOT, Inode::Directory(BTreeMap::new()))]),
            handles: BTreeMap::new(),
            next_inode: ROOT + 1,
            next_file: 0,
            capacity: None,
        }
    }

    /// Rebuilds a volume from what a medium holds; nothing is open. Inode numbers stay.
    pub fn from_inodes(inodes: BTreeMap<InodeId, Inode>, capacity: Option<u64>) -> Volume {
        assert!(matches!(inodes.get(&ROOT), Some(Inode::Directory(_))));
        let next_inode = inodes.keys().next_back().map_or(ROOT, |last| *last) + 1;
        let mut volume = Volume {
            inodes,
            next_inode,
            capacity,
            ..Volume::new()
        };
        volume.drop_unreachable();
        volume
    }

    /// Closes everything, as the end of a process does.
    pub fn close_all(&mut self) {
        self.handles.clear();
        self.drop_unreachable();
    }

    /// Bytes allocated by all files.
    pub fn allocated(&self) -> u64 {
        let allocated = |inode: &Inode| match inode {
            Inode::File(contents) => contents.allocated(),
            Inode::Directory(_) => 0,
        };
        self.inodes.values().map(allocated).sum()
    }

    /// The inode a path leads to.
    pub fn resolve(&self, path: &Path) -> io::Result<InodeId> {
        let mut inode = ROOT;
        for component in path.components() {
            let Component::Normal(name) = component else { continue };
            let entries = self.directory(inode)?;
            inode = *entries
                .get(&*name.to_string_lossy())
                .ok_or_else(|| errno(libc::ENOENT))?;
        }
        Ok(inode)
    }

    /// The directory that holds a path's last name, and that name.
    pub fn parent(&self, path: &Path) -> io::Result<(InodeId, String)> {
        let name = path.file_name().ok_or_else(|| errno(libc::EINVAL))?;
        let parent = self.resolve(path.parent().unwrap_or(Path::new("")))?;
        self.directory(parent)?;
        Ok((parent, name.to_string_lossy().into_owned()))
    }

    /// A directory's entries.
    pub fn directory(&self, inode: InodeId) -> io::Result<&BTreeMap<String, InodeId>> {
        match self.inodes.get(&inode) {
            Some(Inode::Directory(entries)) => Ok(entries),
            Some(Inode::File(_)) => Err(errno(libc::ENOTDIR)),
            None => Err(errno(libc::ENOENT)),
        }
    }

    fn directory_mut(&mut self, inode: InodeId) -> io::Result<&mut BTreeMap<String, InodeId>> {
        match self.inodes.get_mut(&inode) {
            Some(Inode::Directory(entries)) => Ok(entries),
            Some(Inode::File(_)) => Err(errno(libc::ENOTDIR)),
            None => Err(errno(libc::ENOENT)),
        }
    }

    /// A file's contents.
    pub fn contents(&self, inode: InodeId) -> io::Result<&Contents> {
        match self.inodes.get(&inode) {
            Some(Inode::File(contents)) => Ok(contents),
            Some(Inode::Directory(_)) => Err(errno(libc::EISDIR)),
            None => Err(errno(libc::ENOENT)),
        }
    }

    /// A file's contents, to change them behind every disk's back.
    pub fn contents_mut(&mut self, inode: InodeId) -> io::Result<&mut Contents> {
        match self.inodes.get_mut(&inode) {
            Some(Inode::File(contents)) => Ok(contents),
            Some(Inode::Directory(_)) => Err(errno(libc::EISDIR)),
            None => Err(errno(libc::ENOENT)),
        }
    }

    /// All inodes.
    pub fn inodes(&self) -> &BTreeMap<InodeId, Inode> {
        &self.inodes
    }

    /// The inode behind an open file.
    pub fn inode_of(&self, file: FileId) -> Option<InodeId> {
        self.handles.get(&file).map(|handle| handle.inode)
    }

    /// The path an operation is about, for errors and records.
    pub fn path_of(&self, operation: &Operation) -> PathBuf {
        let handle = operation.file().and_then(|file| self.handles.get(&file));
        let path = operation.path().or(handle.map(|handle| handle.path.as_path()));
        path.unwrap_or(Path::new("(closed file)")).to_path_buf()
    }

    /// Runs one operation. Syncs succeed and do nothing.
    pub fn run(&mut self, operation: Operation) -> Result<Outcome, DiskError> {
        let name = operation.name();
        let path = self.path_of(&operation);
        self.try_run(operation).map_err(|source| DiskError {
            operation: name,
            path,
            source,
        })
    }

    fn try_run(&mut self, operation: Operation) -> io::Result<Outcome> {
        match operation {
            Operation::Open { path, mode } => return self.open(path, mode),
            Operation::Close { file } => {
                self.handles.remove(&file).ok_or_else(|| errno(libc::EBADF))?;
                self.drop_unreachable();
            }
            Operation::Read {
                file,
                offset,
                mut buffer,
            } => {
                assert_aligned(offset, &buffer);
                let inode = self.handle(file)?.inode;
                let length = self.contents(inode)?.read(offset, &mut buffer);
                return Ok(Outcome::Read { buffer, length });
            }
            Operation::Write {
                file, offset, buffer, ..
            } => {
                assert_aligned(offset, &buffer);
                self.reserve(file, offset, buffer.len() as u64)?.write(offset, &buffer);
                return Ok(Outcome::Written { buffer });
            }
            Operation::Sync { file } => drop(self.handle(file)?),
            Operation::Allocate { file, offset, length } => {
                self.reserve(file, offset, length)?.allocate(offset, length)
            }
            Operation::PunchHole { file, offset, length } => self.writable(file)?.punch(offset, length),
            Operation::Truncate { file, length } => self.writable(file)?.truncate(length),
            Operation::Rename { from, to } => self.rename(&from, &to)?,
            Operation::Remove { path } => self.remove(&path)?,
            Operation::CreateDirectory { path } => self.create_directory(&path)?,
            Operation::SyncDirectory { path } => drop(self.directory(self.resolve(&path)?)?),
            Operation::List { path } => {
                let names = self.directory(self.resolve(&path)?)?.keys().cloned().collect();
                return Ok(Outcome::Listed { names });
            }
        }
        Ok(Outcome::Done)
    }

    fn open(&mut self, path: PathBuf, mode: OpenMode) -> io::Result<Outcome> {
        let inode = if mode == OpenMode::CreateNew {
            let (parent, name) = self.parent(&path)?;
            if self.directory(parent)?.contains_key(&name) {
                return Err(errno(libc::EEXIST));
            }
            let inode = self.new_inode(Inode::File(Contents::default()));
            self.directory_mut(parent)?.insert(name, inode);
            inode
        } else {
            self.resolve(&path)?
        };
        let length = self.contents(inode)?.length();
        let file = FileId(self.next_file);
        self.next_file += 1;
        let writable = mode != OpenMode::ReadOnly;
        self.handles.insert(file, Handle { inode, path, writable });
        Ok(Outcome::Opened { file, length })
    }

    fn new_inode(&mut self, inode: Inode) -> InodeId {
        let id = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(id, inode);
        id
    }

    fn handle(&self, file: FileId) -> io::Result<&Handle> {
        self.handles.get(&file).ok_or_else(|| errno(libc::EBADF))
    }

    fn writable(&mut self, file: FileId) -> io::Result<&mut Contents> {
        let handle = self.handle(file)?;
        if !handle.writable {
            return Err(errno(libc::EBADF));
        }
        let inode = handle.inode;
        self.contents_mut(inode)
    }

    /// The contents to be changed, when there is room for the blocks the range still needs.
    fn reserve(&mut self, file: FileId, offset: u64, length: u64) -> io::Result<&mut Contents> {
        let needed = self.writable(file)?.missing(offset, length);
        if needed > 0
            && self
                .capacity
                .is_some_and(|capacity| self.allocated() + needed > capacity)
        {
            return Err(errno(libc::ENOSPC));
        }
        self.writable(file)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_parent, from_name) = self.parent(from)?;
        let (to_parent, to_name) = self.parent(to)?;
        if from_parent != to_parent {
            return Err(errno(libc::EXDEV));
        }
        let entries = self.directory_mut(from_parent)?;
        let inode = *entries.get(&from_name).ok_or_else(|| errno(libc::ENOENT))?;
        entries.remove(&from_name);
        entries.insert(to_name, inode);
        for handle in self.handles.values_mut() {
            if let Ok(rest) = handle.path.strip_prefix(from) {
                handle.path = if rest == Path::new("") {
                    to.to_path_buf()
                } else {
                    to.join(rest)
                };
            }
        }
        self.drop_unreachable();
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let inode = *self.directory(parent)?.get(&name).ok_or_else(|| errno(libc::ENOENT))?;
        if self.directory(inode).is_ok() {
            return Err(errno(libc::EISDIR));
        }
        self.directory_mut(parent)?.remove(&name);
        self.drop_unreachable();
        Ok(())
    }

    fn create_directory(&mut self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        if let Some(existing) = self.directory(parent)?.get(&name) {
            return self.directory(*existing).map(|_| ());
        }
        let inode = self.new_inode(Inode::Directory(BTreeMap::new()));
        self.directory_mut(parent)?.insert(name, inode);
        Ok(())
    }

    /// Forgets inodes that no name leads to and nobody holds open.
    fn drop_unreachable(&mut self) {
        let mut reachable: std::collections::BTreeSet<InodeId> =
            self.handles.values().map(|handle| handle.inode).collect();
        let mut directories = vec![ROOT];
        reachable.insert(ROOT);
        while let Some(directory) = directories.pop() {
            let Some(Inode::Directory(entries)) = self.inodes.get(&directory) else {
                continue;
            };
            for inode in entries.values().filter(|inode| reachable.insert(**inode)) {
                directories.push(*inode);
            }
        }
        self.inodes.retain(|inode, _| reachable.contains(inode));
    }
}

/// A system error by its number.
pub fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn assert_aligned(offset: u64, buffer: &AlignedBuffer) {
    assert_eq!(offset % BLOCK, 0, "offset {offset} is not a multiple of {BLOCK}");
    assert_eq!(buffer.len() % ALIGNMENT, 0);
    assert!(!buffer.is_empty());
}

#[cfg(test)]
mod tests;
