//! Open connections, so that they can be ended from outside the tasks that use them.

use crate::reactor::serve::Stream;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::Shutdown;
use std::rc::Rc;

/// The connections of a peer, or of those that are no peers yet.
#[derive(Default)]
pub(super) struct Connections {
    /// By their numbers, which count up: the oldest comes first.
    open: RefCell<BTreeMap<u64, Stream>>,
    next: Cell<u64>,
    ended: Cell<bool>,
}

/// Keeps a connection on the list.
pub(super) struct Listed {
    connections: Rc<Connections>,
    number: u64,
}

impl Listed {
    /// Takes it off the list before its end: somebody else answers for it from now on.
    pub fn strike(&self) {
        self.connections.open.borrow_mut().remove(&self.number);
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.strike();
    }
}

impl Connections {
    /// Puts a connection on the list; `None` when there are to be no more.
    pub fn list(self: &Rc<Self>, stream: &Stream) -> Option<Listed> {
        if self.ended.get() {
            return None;
        }
        let number = self.next.get();
        self.next.set(number + 1);
        self.open.borrow_mut().insert(number, stream.clone());
        Some(Listed {
            connections: self.clone(),
            number,
        })
    }

    /// Ends the oldest while there are `max` or more. Whether there were so many.
    pub fn make_room(&self, max: usize) -> bool {
        let mut open = self.open.borrow_mut();
        let is_full = open.len() >= max;
        while open.len() >= max
            && let Some((_, oldest)) = open.pop_first()
        {
            oldest.shutdown(Shutdown::Both);
        }
        is_full
    }

    pub fn count(&self) -> usize {
        self.open.borrow().len()
    }

    /// Whether there are to be no more.
    pub fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// Ends all of them, now and from now on.
    pub fn end(&self) {
        self.ended.set(true);
        let open = self.open.borrow();
        open.values().for_each(|stream| stream.shutdown(Shutdown::Both));
    }
}
