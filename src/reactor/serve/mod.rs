//! The reactor of a serve core: an executor of tasks on one thread, with sockets, timers, files and a blocking pool.
//!
//! This folder alone names glommio; other rooms see only what is public here, so that another executor can take its
//! place. Everything except [`ServeCore`] works only on a thread that [`ServeCore::start`] made, and stays on it.

mod bell;
mod core;
mod files;
mod notify;
mod setup;
mod stream;
mod watchdog;

pub use self::bell::BellWaiter;
pub use self::core::{CoreClock, CoreOptions, ServeCore};
pub use self::files::PageFileReader;
pub use self::notify::Notify;
pub use self::stream::Stream;

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

/// Adds a task to the calling core. It is scheduled behind what is runnable, never run at once, and runs to its end
/// whether or not anybody waits for it; it is dropped when the core ends.
pub fn spawn(task: impl Future<Output = ()> + 'static) {
    let queue = glommio::executor().current_task_queue();
    match glommio::spawn_local_into(task, queue) {
        Ok(task) => drop(task.detach()),
        Err(error) => unreachable!("the queue of a running task exists: {error}"),
    }
}

/// Adds a task that works long, in slices with [`yield_now`] between them. However many of these there are, the other
/// tasks of the core get at least their share of its time ([`crate::limits::SERVE_ASIDE_SHARES`]), and wait no longer
/// than a slice or two for it. Whatever such a task spawns works aside too.
pub fn spawn_aside(task: impl Future<Output = ()> + 'static) {
    match glommio::spawn_local_into(task, self::core::aside_queue()) {
        Ok(task) => drop(task.detach()),
        Err(error) => unreachable!("the queue is there as long as its core: {error}"),
    }
}

/// Waits for `duration`, at least.
pub async fn sleep(duration: Duration) {
    glommio::timer::sleep(duration).await;
}

/// Lets every other runnable task of the core run once.
pub async fn yield_now() {
    glommio::executor().yield_now().await;
}

/// `future`, or `None` if it took longer than `duration`. What it had begun is dropped.
pub async fn timeout<T>(duration: Duration, future: impl Future<Output = T>) -> Option<T> {
    glommio::timer::timeout(duration, async { Ok::<T, glommio::GlommioError<()>>(future.await) })
        .await
        .ok()
}

/// What all the futures come to, in their order. For a few of them: each wake-up polls all that are not done.
pub async fn join<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.map(|future| Some(Box::pin(future))).collect();
    let mut done: Vec<Option<F::Output>> = pending.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (place, output) in pending.iter_mut().zip(&mut done) {
            if let Some(future) = place
                && let Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *output = Some(ready);
                *place = None;
            }
        }
        match pending.iter().all(Option::is_none) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Runs a function that blocks on the core's pool of threads, and waits for it without blocking the core.
pub async fn run_blocking<T: Send + 'static>(function: impl FnOnce() -> T + Send + 'static) -> T {
    glommio::executor().spawn_blocking(function).await
}

#[cfg(test)]
mod tests;
