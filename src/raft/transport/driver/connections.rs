//! Open connections, so that they can be ended from outside the tasks that use them.

use crate::reactor::serve::Stream;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::net::Shutdown;
use std::rc::Rc;

/// The connections of a peer, or of those that are no peers yet.
#[derive(Default)]
pub(super) struct Connections {
    open: RefCell<Slab<Stream>>,
    ended: Cell<bool>,
}

/// Keeps a connection on the list.
pub(super) struct Listed {
    connections: Rc<Connections>,
    key: usize,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.connections.open.borrow_mut().remove(self.key);
    }
}

impl Connections {
    /// Puts a connection on the list; `None` when there are to be no more.
    pub fn list(self: &Rc<Self>, stream: &Stream) -> Option<Listed> {
        if self.ended.get() {
            return None;
        }
        let key = self.open.borrow_mut().insert(stream.clone());
        Some(Listed {
            connections: self.clone(),
            key,
        })
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
        open.iter().for_each(|(_, stream)| stream.shutdown(Shutdown::Both));
    }
}
