//! What a power cut leaves: the medium behind a volatile cache.
//!
//! The medium holds what is durable and, apart from it and in order, every change that is not. A sync folds the changes
//! it covers into what is durable. At a power cut each sector (512 bytes) of each unsynced change is kept or lost:
//! all, none, a prefix of the changes with the last one torn, whole changes at random, or sectors at random; so
//! unsynced writes are dropped, torn and reordered. A sector itself is never a mixture of old and new bytes. Names that
//! were created, renamed or removed since their directory was synced are kept or lost likewise, a rename as a whole.

use super::volume::{Contents, Inode, InodeId, ROOT};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes that reach the medium together or not at all.
pub const SECTOR: usize = 512;

/// A small seeded generator (splitmix64): the same seed gives the same run on every machine and version.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that is determined by its seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert_ne!(bound, 0);
        self.bits() % bound
    }

    /// True once in two.
    pub fn coin(&mut self) -> bool {
        self.bits() & 1 == 1
    }
}

/// A change of a file's contents.
#[derive(Clone, Debug)]
pub enum Change {
    /// Bytes written.
    Write { offset: u64, bytes: Arc<[u8]> },
    /// Zeros written: the same, without the memory.
    Zeros { offset: u64, length: u64 },
    /// Blocks reserved, the file grown.
    Allocate { offset: u64, length: u64 },
    /// Blocks given back.
    Punch { offset: u64, length: u64 },
    /// A new length.
    Truncate { length: u64 },
}

impl Change {
    /// A write of `bytes`.
    pub fn write(offset: u64, bytes: &[u8]) -> Change {
        if bytes.iter().all(|&byte| byte == 0) {
            let length = bytes.len() as u64;
            Change::Zeros { offset, length }
        } else {
            let bytes = Arc::from(bytes);
            Change::Write { offset, bytes }
        }
    }

    fn apply(&self, contents: &mut Contents) {
        match self {
            Change::Write { offset, bytes } => contents.write(*offset, bytes),
            Change::Zeros { offset, length } => contents.write_zeros(*offset, *length),
            _ => self.apply_kept(contents, &mut |_| true),
        }
    }

    /// Applies the sectors of a write that `keep` says are kept; other changes are kept whole or not at all.
    fn apply_kept(&self, contents: &mut Contents, keep: &mut dyn FnMut(u64) -> bool) {
        match self {
            Change::Write { offset, bytes } => {
                for (number, sector) in bytes.chunks(SECTOR).enumerate() {
                    if keep(number as u64) {
                        contents.write(offset + (number * SECTOR) as u64, sector);
                    }
                }
            }
            Change::Zeros { offset, length } => {
                let zeros = [0; SECTOR];
                for number in 0..length.div_ceil(SECTOR as u64) {
                    let start = number * SECTOR as u64;
                    let piece = (length - start).min(SECTOR as u64) as usize;
                    if keep(number) {
                        contents.write(offset + start, &zeros[..piece]);
                    }
                }
            }
            Change::Allocate { offset, length } if keep(0) => contents.allocate(*offset, *length),
            Change::Punch { offset, length } if keep(0) => contents.punch(*offset, *length),
            Change::Truncate { length } if keep(0) => contents.truncate(*length),
            Change::Allocate { .. } | Change::Punch { .. } | Change::Truncate { .. } => {}
        }
    }
}

/// A change of a directory.
#[derive(Clone, Debug)]
pub enum NameChange {
    /// A file or directory created under `name`.
    Insert { name: String, inode: InodeId },
    /// `name` removed.
    Remove { name: String },
    /// `from` renamed to `to`.
    Rename { from: String, to: String, inode: InodeId },
}

impl NameChange {
    fn apply(&self, entries: &mut BTreeMap<String, InodeId>) {
        match self {
            NameChange::Insert { name, inode } => drop(entries.insert(name.clone(), *inode)),
            NameChange::Remove { name } => drop(entries.remove(name)),
            NameChange::Rename { from, to, inode } => {
                entries.remove(from);
                entries.insert(to.clone(), *inode);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Pending<C> {
    number: u64,
    /// Durable by itself, but behind changes that are not and that it must not be folded before.
    durable: bool,
    change: C,
}

#[derive(Clone, Debug, Default)]
struct FileOnMedium {
    durable: Contents,
    pending: Vec<Pending<Change>>,
}

#[derive(Clone, Debug, Default)]
struct DirectoryOnMedium {
    durable: BTreeMap<String, InodeId>,
    pending: Vec<Pending<NameChange>>,
}

/// The medium and its volatile cache.
#[derive(Clone, Debug)]
pub struct Medium {
    files: BTreeMap<InodeId, FileOnMedium>,
    directories: BTreeMap<InodeId, DirectoryOnMedium>,
    changes: u64,
}

impl Default for Medium {
    fn default() -> Medium {
        Medium::new()
    }
}

impl Medium {
    /// An empty medium with a root directory.
    pub fn new() -> Medium {
        Medium {
            files: BTreeMap::new(),
            directories: BTreeMap::from([(ROOT, DirectoryOnMedium::default())]),
            changes: 0,
        }
    }

    /// A medium on which everything given is durable.
    pub fn holding(inodes: &BTreeMap<InodeId, Inode>) -> Medium {
        let mut medium = Medium::new();
        for (inode, what) in inodes {
            match what {
                Inode::File(contents) => {
                    let durable = contents.clone();
                    medium.files.insert(
                        *inode,
                        FileOnMedium {
                            durable,
                            pending: Vec::new(),
                        },
                    );
                }
                Inode::Directory(entries) => {
                    let durable = entries.clone();
                    medium.directories.insert(
                        *inode,
                        DirectoryOnMedium {
                            durable,
                            pending: Vec::new(),
                        },
                    );
                }
            }
        }
        medium
    }

    /// How many changes there have been: what a sync submitted now will cover.
    pub fn now(&self) -> u64 {
        self.changes
    }

    /// A new, empty file or directory.
    pub fn create(&mut self, inode: InodeId, directory: bool) {
        if directory {
            self.directories.insert(inode, DirectoryOnMedium::default());
        } else {
            self.files.insert(inode, FileOnMedium::default());
        }
    }

    /// A change of a file that has reached the cache, or the medium itself when `durable`.
    pub fn change(&mut self, inode: InodeId, change: Change, durable: bool) {
        self.changes += 1;
        let number = self.changes;
        let file = self.files.entry(inode).or_default();
        file.pending.push(Pending {
            number,
            durable,
            change,
        });
        fold(&mut file.pending, 0, |change| change.apply(&mut file.durable));
    }

    /// A change of a directory that has reached the cache.
    pub fn change_name(&mut self, directory: InodeId, change: NameChange) {
        self.changes += 1;
        let pending = Pending {
            number: self.changes,
            durable: false,
            change,
        };
        self.directories.entry(directory).or_default().pending.push(pending);
    }

    /// Makes a file's changes up to number `covered` durable.
    pub fn sync(&mut self, inode: InodeId, covered: u64) {
        let file = self.files.entry(inode).or_default();
        fold(&mut file.pending, covered, |change| change.apply(&mut file.durable));
    }

    /// A sync that failed: of the changes it covered some sectors arrived, and no later sync will bring the others.
    pub fn sync_failed(&mut self, inode: InodeId, covered: u64, random: &mut Random) {
        let file = self.files.entry(inode).or_default();
        fold(&mut file.pending, covered, |change| {
            change.apply_kept(&mut file.durable, &mut |_| random.coin());
        });
    }

    /// Makes a directory's names up to change number `covered` durable.
    pub fn sync_directory(&mut self, inode: InodeId, covered: u64) {
        let directory = self.directories.entry(inode).or_default();
        fold(&mut directory.pending, covered, |change| {
            change.apply(&mut directory.durable)
        });
    }

    /// Forgets files that no durable or pending name leads to and that `in_use` does not name.
    pub fn forget(&mut self, in_use: impl Fn(InodeId) -> bool) {
        let mut named = BTreeSet::new();
        for directory in self.directories.values() {
            named.extend(directory.durable.values().copied());
            named.extend(directory.pending.iter().filter_map(|pending| match &pending.change {
                NameChange::Insert { inode, .. } | NameChange::Rename { inode, .. } => Some(*inode),
                NameChange::Remove { .. } => None,
            }));
        }
        self.files.retain(|inode, _| named.contains(inode) || in_use(*inode));
    }

    /// What is durable of a file, for assertions.
    pub fn durable(&self, inode: InodeId) -> Option<&Contents> {
        self.files.get(&inode).map(|file| &file.durable)
    }

    /// What is found after a power cut now, decided by `random`.
    pub fn power_cut(&self, random: &mut Random) -> BTreeMap<InodeId, Inode> {
        let mut inodes = BTreeMap::new();
        for (inode, file) in &self.files {
            inodes.insert(*inode, Inode::File(file.survivors(random)));
        }
        for (inode, directory) in &self.directories {
            inodes.insert(*inode, Inode::Directory(directory.survivors(random)));
        }
        inodes
    }
}

/// Applies and removes the leading changes that are durable or numbered at most `covered`.
fn fold<C>(pending: &mut Vec<Pending<C>>, covered: u64, mut apply: impl FnMut(&C)) {
    let settled = pending
        .iter()
        .take_while(|change| change.durable || change.number <= covered)
        .count();
    for change in pending.drain(..settled) {
        apply(&change.change);
    }
}

impl FileOnMedium {
    fn survivors(&self, random: &mut Random) -> Contents {
        let mut contents = self.durable.clone();
        let mode = random.below(5);
        let torn = random.below(self.pending.len() as u64 + 1);
        for (position, pending) in self.pending.iter().enumerate() {
            let position = position as u64;
            if pending.durable {
                pending.change.apply(&mut contents);
                continue;
            }
            match mode {
                0 => {}
                1 => pending.change.apply(&mut contents),
                2 if position < torn => pending.change.apply(&mut contents),
                2 if position == torn => {
                    let arrived = random.below(64);
                    pending.change.apply_kept(&mut contents, &mut |sector| sector < arrived);
                }
                2 => {}
                3 if random.coin() => pending.change.apply(&mut contents),
                3 => {}
                _ => pending.change.apply_kept(&mut contents, &mut |_| random.coin()),
            }
        }
        contents
    }
}

impl DirectoryOnMedium {
    fn survivors(&self, random: &mut Random) -> BTreeMap<String, InodeId> {
        let mut entries = self.durable.clone();
        let mode = random.below(4);
        let prefix = random.below(self.pending.len() as u64 + 1);
        for (position, pending) in self.pending.iter().enumerate() {
            let kept = match mode {
                0 => false,
                1 => true,
                2 => (position as u64) < prefix,
                _ => random.coin(),
            };
            if kept {
                pending.change.apply(&mut entries);
            }
        }
        entries
    }
}
