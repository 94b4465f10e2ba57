//! A second user of the same disk, as a thread of the same process is that uses it beside the main loop.
//!
//! Its operations take no time: they take effect when they are polled. What the main loop has in flight is not touched.
//! The machine can be told to die after some of them: from then on nothing happens any more, and whoever drives the
//! simulation sees it and ends the member.

use super::{Completion, Disk, FaultyDisk, InFlight, Operation, errno, file_of};
use crate::io::disk::DiskError;

/// The second user. Made anew whenever it has something to do.
pub struct Aside<'a> {
    disk: &'a mut FaultyDisk,
    /// Operations until the machine dies.
    left: u64,
    in_flight: Vec<InFlight>,
}

impl FaultyDisk {
    /// A second user, on a machine that dies behind `left` of its operations.
    pub fn aside(&mut self, left: u64) -> Aside<'_> {
        Aside {
            disk: self,
            left,
            in_flight: Vec::new(),
        }
    }

    /// Lets everything in flight happen and closes all files, as a member does that ends in order and is started again
    /// by the same process.
    pub fn close_in_order(&mut self) {
        let mut completions = Vec::new();
        while self.in_flight() > 0 {
            self.wait(&mut completions);
        }
        self.volume.close_all();
        self.failed.clear();
    }
}

impl Aside<'_> {
    /// Whether the machine is dead.
    pub fn is_dead(&self) -> bool {
        self.left == 0
    }
}

impl Disk for Aside<'_> {
    fn submit(&mut self, token: u64, operation: Operation) {
        let inode = file_of(&operation).and_then(|file| self.disk.volume.inode_of(file));
        if inode.is_some_and(|inode| self.disk.failed.contains(&inode)) {
            let event = self.disk.event(token, &operation);
            self.disk.violations.push(event);
        }
        self.in_flight.push(InFlight {
            token,
            operation,
            due_us: self.disk.now_us,
            order: 0,
            covered: self.disk.medium.now(),
        });
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        for in_flight in std::mem::take(&mut self.in_flight) {
            self.left = self.left.saturating_sub(1);
            completions.push(match self.is_dead() {
                false => self.disk.complete(in_flight),
                true => Completion {
                    token: in_flight.token,
                    result: Err(DiskError {
                        operation: in_flight.operation.name(),
                        path: self.disk.volume.path_of(&in_flight.operation),
                        source: errno(libc::EIO),
                    }),
                },
            });
        }
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) {
        self.poll(completions);
    }
}
