//! The revisions of one key: an append-only list with one writer and many readers that never wait.
//!
//! A list is one allocation: a header with an atomic length, room for a fixed number of elements, their leases if any
//! element ever had one, and the origin of the first generation if its beginning is gone. The writer fills the next
//! free element and then releases the new length; a reader acquires the length and touches nothing beyond it. An
//! element is never changed once it is visible. When the room is used up the writer makes a longer copy and retires the
//! old list.
//!
//! Sizes: 8 bytes of header, 16 per revision, 8 more per revision in a list with leases, 16 more when the first
//! generation has lost its beginning to a compaction. Finding the revision for a read is a look at the last element,
//! else a binary search; version and create revision follow from it without a walk.

use super::KeyMeta;
use super::sync::{AtomicU32, Ordering, Slot, free};
use crate::mvcc::revision::Revision;
use std::alloc::{Layout, alloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;

const HAS_ORIGIN: u32 = 1;
const HAS_LEASES: u32 = 2;
const CAPACITY_SHIFT: u32 = 2;
/// The most revisions that one key can have in the index at a time: 2^30, some 16 GiB.
const MAX_CAPACITY: usize = (u32::MAX >> CAPACITY_SHIFT) as usize;

const ALIGN: usize = align_of::<Slot<Element>>();
const ELEMENTS: usize = size_of::<Header>().next_multiple_of(ALIGN);

/// One revision of a key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Element {
    main: i64,
    sub: u32,
    /// Position within its generation, counted from 1 at the first element of it that is in this list; 0 is a
    /// tombstone.
    ordinal: u32,
}

impl Element {
    fn revision(self) -> Revision {
        Revision::new(self.main, self.sub)
    }

    fn is_tombstone(self) -> bool {
        self.ordinal == 0
    }
}

/// What the first element of a list is when the start of its generation has been compacted away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub create_revision: i64,
    pub version: i64,
}

pub struct Header {
    length: AtomicU32,
    /// Capacity and the two flags.
    shape: u32,
}

/// A list, by address. Copying it copies the address; freeing is explicit.
#[derive(Clone, Copy)]
pub struct List(NonNull<Header>);

impl List {
    /// An empty list with room for `capacity` elements.
    pub fn new(capacity: usize, origin: Option<Origin>, leases: bool) -> List {
        assert!(
            (1..=MAX_CAPACITY).contains(&capacity),
            "a key cannot have {capacity} revisions in the index: the limit is {MAX_CAPACITY}"
        );
        let flags = if origin.is_some() { HAS_ORIGIN } else { 0 } | if leases { HAS_LEASES } else { 0 };
        let shape = (capacity as u32) << CAPACITY_SHIFT | flags;
        let layout = layout(shape);
        // SAFETY: the layout is never of size zero.
        let memory = unsafe { alloc(layout) };
        let Some(header) = NonNull::new(memory.cast::<Header>()) else {
            handle_alloc_error(layout)
        };
        // SAFETY: the memory is ours alone, aligned for the header, and the offsets stay within `layout`.
        unsafe {
            header.write(Header {
                length: AtomicU32::new(0),
                shape,
            });
            for index in 0..capacity {
                memory
                    .add(ELEMENTS)
                    .cast::<Slot<Element>>()
                    .add(index)
                    .write(Slot::new(Element::default()));
            }
            if leases {
                for index in 0..capacity {
                    memory
                        .add(leases_offset(shape))
                        .cast::<Slot<i64>>()
                        .add(index)
                        .write(Slot::new(0));
                }
            }
            if let Some(origin) = origin {
                memory.add(origin_offset(shape)).cast::<Origin>().write(origin);
            }
        }
        List(header)
    }

    /// The list at an address taken with [`List::address`].
    ///
    /// # Safety
    /// The address must be of a list that is not freed.
    pub unsafe fn from_address(address: *mut Header) -> List {
        debug_assert!(!address.is_null());
        // SAFETY: a list's address is never null.
        List(unsafe { NonNull::new_unchecked(address) })
    }

    pub fn address(self) -> *mut Header {
        self.0.as_ptr()
    }

    /// Bytes of the allocation.
    ///
    /// # Safety
    /// The list must not be freed.
    pub unsafe fn size(self) -> usize {
        // SAFETY: alive by the caller's promise.
        layout(unsafe { self.shape() }).size()
    }

    /// Frees the memory.
    ///
    /// # Safety
    /// Once per list, when nobody can read it any more.
    pub unsafe fn free(self) {
        // SAFETY: alive until here by the caller's promise; the layout is the one it was made with.
        unsafe {
            #[cfg(loom)]
            (0..self.capacity()).for_each(|index| self.element(index).write(Element::default()));
            free(self.0.as_ptr().cast(), layout(self.shape()));
        }
    }

    /// The elements visible now.
    ///
    /// # Safety
    /// The list must not be freed during `'a`.
    pub unsafe fn revisions<'a>(self) -> Revisions<'a> {
        // SAFETY: alive by the caller's promise. Acquire makes the elements below the length visible.
        let length = unsafe { (*self.0.as_ptr()).length.load(Ordering::Acquire) } as usize;
        Revisions {
            list: self,
            length,
            borrowed: PhantomData,
        }
    }

    /// Appends a revision if there is room for it. `tombstone` ends the generation; else the revision belongs to the
    /// generation of the element before, or begins one when that is a tombstone.
    ///
    /// # Safety
    /// The list must not be freed; only one thread appends.
    pub unsafe fn push(self, revision: Revision, tombstone: bool, lease: i64) -> bool {
        // SAFETY: alive by the caller's promise.
        let revisions = unsafe { self.revisions() };
        let last = revisions.last();
        let element = Element {
            main: revision.main,
            sub: revision.sub,
            ordinal: if tombstone {
                0
            } else {
                last.map_or(0, |element| element.ordinal) + 1
            },
        };
        // SAFETY: one writer, by the caller's promise.
        unsafe { self.push_element(element, lease) }
    }

    /// # Safety
    /// As `push`.
    unsafe fn push_element(self, element: Element, lease: i64) -> bool {
        // SAFETY: alive by the caller's promise, and no element at or beyond the length has a reader.
        unsafe {
            let length = (*self.0.as_ptr()).length.load(Ordering::Relaxed) as usize;
            let leases = self.shape() & HAS_LEASES != 0;
            if length == self.capacity() || (lease != 0 && !leases) {
                return false;
            }
            self.element(length).write(element);
            if leases {
                self.lease(length).write(lease);
            }
            (*self.0.as_ptr()).length.store(length as u32 + 1, Ordering::Release);
        }
        true
    }

    /// A copy with room for at least one more revision, and for leases if `leases` or if this list has them.
    ///
    /// # Safety
    /// The list must not be freed.
    pub unsafe fn grown(self, leases: bool) -> List {
        // SAFETY: alive by the caller's promise; the copy is ours alone.
        unsafe {
            let revisions = self.revisions();
            let capacity = revisions.length + (revisions.length / 2).max(1);
            let leases = leases || self.shape() & HAS_LEASES != 0;
            let copy = List::new(capacity, revisions.origin(), leases);
            for index in 0..revisions.length {
                copy.push_element(revisions.element(index), revisions.lease(index));
            }
            copy
        }
    }

    /// A copy of what is from element `from` on, with no room to spare.
    ///
    /// # Safety
    /// The list must not be freed, and `from` must be below its length.
    pub unsafe fn suffix(self, from: usize) -> List {
        // SAFETY: alive by the caller's promise; the copy is ours alone.
        unsafe {
            let revisions = self.revisions();
            assert!(from < revisions.length, "a list is never empty");
            let first = revisions.element(from);
            let meta = revisions.meta(from);
            let origin = meta.and_then(|meta| Origin::of(meta.create_revision, meta.version, first.main));
            let leases = (from..revisions.length).any(|index| revisions.lease(index) != 0);
            let copy = List::new(revisions.length - from, origin, leases);
            // The first generation is counted anew from what is left of it.
            let mut shift = first.ordinal.saturating_sub(1);
            for index in from..revisions.length {
                let mut element = revisions.element(index);
                match element.is_tombstone() {
                    true => shift = 0,
                    false => element.ordinal -= shift,
                }
                copy.push_element(element, revisions.lease(index));
            }
            copy
        }
    }

    unsafe fn shape(self) -> u32 {
        // SAFETY: alive by the caller's promise; the shape never changes.
        unsafe { (*self.0.as_ptr()).shape }
    }

    unsafe fn capacity(self) -> usize {
        // SAFETY: as the caller's.
        (unsafe { self.shape() } >> CAPACITY_SHIFT) as usize
    }

    unsafe fn element<'a>(self, index: usize) -> &'a Slot<Element> {
        // SAFETY: alive, and `index` is below the capacity, by the caller's promise.
        unsafe {
            &*self
                .0
                .as_ptr()
                .cast::<u8>()
                .add(ELEMENTS)
                .cast::<Slot<Element>>()
                .add(index)
        }
    }

    unsafe fn lease<'a>(self, index: usize) -> &'a Slot<i64> {
        // SAFETY: as `element`, and the list has leases.
        unsafe {
            &*self
                .0
                .as_ptr()
                .cast::<u8>()
                .add(leases_offset(self.shape()))
                .cast::<Slot<i64>>()
                .add(index)
        }
    }
}

impl Origin {
    /// What has to be remembered of a generation whose first element in a list is this version, written at `main`:
    /// nothing when it is the generation's true beginning.
    pub fn of(create_revision: i64, version: i64, main: i64) -> Option<Origin> {
        (version != 1 || create_revision != main).then_some(Origin {
            create_revision,
            version,
        })
    }
}

fn leases_offset(shape: u32) -> usize {
    ELEMENTS + (shape >> CAPACITY_SHIFT) as usize * size_of::<Slot<Element>>()
}

fn origin_offset(shape: u32) -> usize {
    let leases = if shape & HAS_LEASES != 0 {
        size_of::<Slot<i64>>()
    } else {
        0
    };
    leases_offset(shape) + (shape >> CAPACITY_SHIFT) as usize * leases
}

fn layout(shape: u32) -> Layout {
    let origin = if shape & HAS_ORIGIN != 0 {
        size_of::<Origin>()
    } else {
        0
    };
    // The capacity is below 2^30, so the size is far from overflowing.
    Layout::from_size_align(origin_offset(shape) + origin, ALIGN).expect("a list's size fits an allocation")
}

/// The elements of a list that were visible when it was looked at.
#[derive(Clone, Copy)]
pub struct Revisions<'a> {
    list: List,
    length: usize,
    borrowed: PhantomData<&'a Header>,
}

impl Revisions<'_> {
    pub fn len(&self) -> usize {
        self.length
    }

    /// The position of the newest revision whose main is at most `at_main`.
    pub fn position_at(&self, at_main: i64) -> Option<usize> {
        self.position_by(|element| element.main <= at_main)
    }

    /// The position of the newest revision below `revision`.
    pub fn position_before(&self, revision: Revision) -> Option<usize> {
        self.position_by(|element| element.revision() < revision)
    }

    /// The last position whose element satisfies a condition that holds for a prefix of the list.
    fn position_by(&self, holds: impl Fn(Element) -> bool) -> Option<usize> {
        let (mut low, mut high) = (0, self.length);
        if high > 0 && holds(self.element(high - 1)) {
            return Some(high - 1);
        }
        while low < high {
            let middle = low + (high - low) / 2;
            match holds(self.element(middle)) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low.checked_sub(1)
    }

    /// What is known of the version at a position; `None` when it is a tombstone.
    pub fn meta(&self, index: usize) -> Option<KeyMeta> {
        let element = self.element(index);
        let back = element.ordinal.checked_sub(1)?;
        let first = index - back as usize;
        let begun = Origin {
            create_revision: self.element(first).main,
            version: 1,
        };
        let origin = if first == 0 {
            self.origin().unwrap_or(begun)
        } else {
            begun
        };
        Some(KeyMeta {
            revision: element.revision(),
            create_revision: origin.create_revision,
            version: origin.version + i64::from(back),
            lease: self.lease(index),
        })
    }

    /// What the newest version at `at_main` is; `None` when the key did not exist then.
    pub fn meta_at(&self, at_main: i64) -> Option<KeyMeta> {
        self.position_at(at_main).and_then(|index| self.meta(index))
    }

    /// What the newest version is; `None` when the key is deleted.
    pub fn newest(&self) -> Option<KeyMeta> {
        self.length.checked_sub(1).and_then(|index| self.meta(index))
    }

    /// A revision and whether it is a tombstone.
    pub fn revision(&self, index: usize) -> (Revision, bool) {
        let element = self.element(index);
        (element.revision(), element.is_tombstone())
    }

    /// How many elements a compaction at `compact_main` removes from the front: all below the newest one at or below
    /// it, and that one too when it is a tombstone from before.
    pub fn obsolete_at(&self, compact_main: i64) -> usize {
        match self.position_at(compact_main) {
            None => 0,
            Some(index) => {
                let newest = self.element(index);
                index + usize::from(newest.is_tombstone() && newest.main < compact_main)
            }
        }
    }

    fn last(&self) -> Option<Element> {
        self.length.checked_sub(1).map(|index| self.element(index))
    }

    fn element(&self, index: usize) -> Element {
        assert!(index < self.length, "element {index} of {}", self.length);
        // SAFETY: the list is alive during the borrow; below the acquired length nobody writes.
        unsafe { self.list.element(index).read() }
    }

    fn lease(&self, index: usize) -> i64 {
        assert!(index < self.length, "lease {index} of {}", self.length);
        // SAFETY: as in `element`, and the flag says that the list has leases.
        unsafe {
            match self.list.shape() & HAS_LEASES {
                0 => 0,
                _ => self.list.lease(index).read(),
            }
        }
    }

    fn origin(&self) -> Option<Origin> {
        // SAFETY: the list is alive during the borrow; the flag says that an origin was written when it was made.
        unsafe {
            let shape = self.list.shape();
            let place = self
                .list
                .address()
                .cast::<u8>()
                .add(origin_offset(shape))
                .cast::<Origin>();
            (shape & HAS_ORIGIN != 0).then(|| place.read())
        }
    }
}
