//! An entry: a key and the address of its revision list, in one allocation that never moves.
//!
//! A key of the index is one entry for as long as nothing of it is compacted, whatever leaves it wanders through. The
//! separators of inner nodes are entries too, without a list. An entry costs 12 bytes and the key.

use super::list::{Header, List, Revisions};
use super::sync::{AtomicPtr, Ordering};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::offset_of;
use std::ptr::null_mut;

#[repr(C)]
struct Head {
    /// Null in a separator.
    list: AtomicPtr<Header>,
    key_length: u32,
}

/// The key begins right behind the head's last field.
const KEY: usize = offset_of!(Head, key_length) + size_of::<u32>();

/// An entry, by address. Copying it copies the address; freeing is explicit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry(*mut Head);

impl Entry {
    /// What fills the unused places of a node. Never looked into.
    pub const NONE: Entry = Entry(null_mut());

    /// The entry of a key of the index.
    pub fn new(key: &[u8], list: List) -> Entry {
        Entry::allocate(key, list.address())
    }

    /// A key without revisions.
    pub fn separator(key: &[u8]) -> Entry {
        Entry::allocate(key, null_mut())
    }

    fn allocate(key: &[u8], list: *mut Header) -> Entry {
        let key_length = u32::try_from(key.len()).expect("a key is far shorter than 4 GiB: requests are bounded");
        let layout = layout(key.len());
        // SAFETY: the layout is never of size zero.
        let head = unsafe { alloc(layout) }.cast::<Head>();
        if head.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: the memory is ours alone and large enough for the head's fields and the key. It may be shorter than
        // the head with its padding, so the fields are written one by one.
        unsafe {
            (&raw mut (*head).list).write(AtomicPtr::new(list));
            (&raw mut (*head).key_length).write(key_length);
            head.cast::<u8>()
                .add(KEY)
                .copy_from_nonoverlapping(key.as_ptr(), key.len());
        }
        Entry(head)
    }

    /// Where it is.
    pub fn address(self) -> *const u8 {
        self.0.cast()
    }

    /// The key.
    ///
    /// # Safety
    /// The entry must not be freed during `'a`.
    pub unsafe fn key<'a>(self) -> &'a [u8] {
        // SAFETY: alive by the caller's promise; length and key never change.
        unsafe {
            let length = (&raw const (*self.0).key_length).read();
            std::slice::from_raw_parts(self.0.cast::<u8>().add(KEY), length as usize)
        }
    }

    /// The key's revision list.
    ///
    /// # Safety
    /// The entry must not be freed or a separator. The list is valid for as long as the epoch that it was read in is
    /// pinned; for the writer, until it retires it.
    pub unsafe fn list(self) -> List {
        // SAFETY: alive by the caller's promise; only ever set to lists. Acquire makes their content visible.
        unsafe { List::from_address(self.list_field().load(Ordering::Acquire)) }
    }

    /// The revisions of the key that are visible now.
    ///
    /// # Safety
    /// As [`Entry::list`], during `'a`.
    pub unsafe fn revisions<'a>(self) -> Revisions<'a> {
        // SAFETY: by the caller's promise.
        unsafe { self.list().revisions() }
    }

    /// Puts a longer list in the place of the one before.
    ///
    /// # Safety
    /// The entry must not be freed or a separator; writer only.
    pub unsafe fn set_list(self, list: List) {
        // SAFETY: alive by the caller's promise.
        unsafe { self.list_field() }.store(list.address(), Ordering::Release);
    }

    /// Bytes of the allocation.
    ///
    /// # Safety
    /// The entry must not be freed.
    pub unsafe fn size(self) -> usize {
        // SAFETY: alive by the caller's promise.
        layout(unsafe { self.key() }.len()).size()
    }

    /// Frees the entry, not its list.
    ///
    /// # Safety
    /// Once per entry, when nobody can read it any more.
    pub unsafe fn free(self) {
        // SAFETY: alive until here by the caller's promise; the layout is the one it was made with.
        unsafe { dealloc(self.0.cast(), layout(self.key().len())) };
    }

    unsafe fn list_field<'a>(self) -> &'a AtomicPtr<Header> {
        // SAFETY: alive by the caller's promise; the reference covers this field alone.
        unsafe { &(*self.0).list }
    }
}

fn layout(key_length: usize) -> Layout {
    Layout::from_size_align(KEY + key_length, align_of::<Head>()).expect("a key's length fits an allocation")
}
