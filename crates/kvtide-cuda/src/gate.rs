//! The gate of a stream: while one thread captures a graph, all others wait before they touch the device.
//!
//! ```text
//! thread A   capture: closed ------------------------- open
//! thread B              enter . . . . . . . . . waits   launch, copy, free
//! ```
//!
//! A GPU has one stream for the process, and what reaches a stream while it is captured is recorded instead of done, whoever sends it:
//! launches of another thread would be repeated by every replay, memory that it gives back would be given back by the graph, and
//! a copy of its would break the capture. A stream of the capture's own would not help, since candle's operations, which a
//! model calls while it is captured, go to the one stream of their device.
//!
//! Whoever is inside may enter again, and so may who captures: nothing is waited for twice. The gate comes before every other lock that
//! an operation takes. O(1), without a system call as long as nobody captures.
#![cfg_attr(
    not(any(test, all(feature = "captured-steps", any(feature = "cuda", feature = "emulate")))),
    expect(dead_code, reason = "without captures nobody closes it")
)]

use std::any::Any;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::{self, ThreadId};

use crate::error::{Error, Result};

/// Of one stream; as long as the process.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    door: RwLock<()>,
    /// Threads that wait at it.
    waiting: Mutex<Vec<ThreadId>>,
    /// What the thread that captures has dropped of what there was before: given back when the capture has ended, since a graph
    /// can give back its own memory alone.
    parked: Mutex<Vec<Box<dyn Any + Send>>>,
}

/// How a thread is inside of a gate.
#[derive(Debug)]
enum Inside {
    /// With so many passes, which hold the door open together.
    Enters {
        passes: usize,
        _door: RwLockReadGuard<'static, ()>,
    },
    Captures,
}

thread_local! {
    /// The gates that this thread is inside of, by their addresses.
    static HELD: RefCell<Vec<(usize, Inside)>> = const { RefCell::new(Vec::new()) };
}

/// Held while something is done on a stream: no other thread begins to capture it. It stays with its thread.
#[derive(Debug)]
#[must_use = "the gate is left when it is dropped"]
pub struct Pass {
    gate: &'static Gate,
    /// The door itself, where the thread is ending and notes nothing any more.
    _own: Option<Inside>,
    _thread: PhantomData<*const ()>,
}

/// Held by the thread that captures; all others wait until it is dropped.
#[derive(Debug)]
pub(crate) struct Closed {
    gate: &'static Gate,
    _door: RwLockWriteGuard<'static, ()>,
}

impl Gate {
    #[cfg_attr(
        not(feature = "emulate"),
        expect(dead_code, reason = "the gate of the CPU in a GPU's stead is a static")
    )]
    pub const fn new() -> Self {
        Gate { door: RwLock::new(()), waiting: Mutex::new(Vec::new()), parked: Mutex::new(Vec::new()) }
    }

    /// Waits while another thread captures.
    pub fn enter(&'static self) -> Pass {
        let entered = self.held(|held| match held {
            Some(Inside::Enters { passes, .. }) => {
                *passes += 1;
                true
            }
            Some(Inside::Captures) => true,
            None => false,
        });
        let own = (!entered).then(|| {
            let wait = || self.wait(|| self.door.read().unwrap_or_else(PoisonError::into_inner));
            let door = self.door.try_read().unwrap_or_else(|_| wait());
            self.note(Inside::Enters { passes: 1, _door: door })
        });
        Pass { gate: self, _own: own.flatten(), _thread: PhantomData }
    }

    /// Waits until nobody is inside, and lets nobody in. Refused to a thread that is inside: it would wait for itself.
    pub fn close(&'static self) -> Result<Closed> {
        let reason = self.held(|held| match held {
            Some(Inside::Enters { .. }) => Some("this thread holds captures off"),
            Some(Inside::Captures) => Some("this thread captures already"),
            None => None,
        });
        if let Some(reason) = reason {
            return Err(Error::capture(reason));
        }
        let door = self.wait(|| self.door.write().unwrap_or_else(PoisonError::into_inner));
        let _noted = self.note(Inside::Captures);
        Ok(Closed { gate: self, _door: door })
    }

    /// Waits, and says so meanwhile.
    fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        let this = thread::current().id();
        self.waiting().push(this);
        let got = wait();
        self.waiting().retain(|waiting| *waiting != this);
        got
    }

    /// Whether this thread captures.
    pub fn is_captured_here(&self) -> bool {
        self.held(|held| matches!(held, Some(Inside::Captures)))
    }

    /// Drops memory of the stream's: behind a capture of another thread, and behind one of this thread's own.
    pub fn give_back(&'static self, memory: impl Any + Send) {
        if self.is_captured_here() {
            return self.parked.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(memory));
        }
        let _pass = self.enter();
        drop(memory);
    }

    /// Whether a thread waits for a capture to end.
    #[cfg(any(test, feature = "emulate"))]
    pub fn is_waiting(&self, thread: ThreadId) -> bool {
        self.waiting().contains(&thread)
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<ThreadId>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Looks at how this thread is inside.
    fn held<T>(&self, look: impl Fn(Option<&mut Inside>) -> T) -> T {
        let of = |held: &RefCell<Vec<(usize, Inside)>>| {
            look(held.borrow_mut().iter_mut().find(|(key, _)| *key == self.key()).map(|(_, inside)| inside))
        };
        HELD.try_with(of).unwrap_or_else(|_| look(None))
    }

    /// Notes how this thread is inside; gives it back where the thread is ending.
    fn note(&self, inside: Inside) -> Option<Inside> {
        let mut inside = Some(inside);
        let _ending = HELD.try_with(|held| held.borrow_mut().extend(inside.take().map(|inside| (self.key(), inside))));
        inside
    }

    fn forget(&self) {
        let _ending = HELD.try_with(|held| held.borrow_mut().retain(|(key, _)| *key != self.key()));
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let is_last = self.gate.held(|held| match held {
            Some(Inside::Enters { passes, .. }) => {
                *passes -= 1;
                *passes == 0
            }
            Some(Inside::Captures) | None => false,
        });
        if is_last {
            self.gate.forget();
        }
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        // The stream is no longer captured, and the door is closed till the end.
        let parked = std::mem::take(&mut *self.gate.parked.lock().unwrap_or_else(PoisonError::into_inner));
        drop(parked);
        self.gate.forget();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn gate() -> &'static Gate {
        Box::leak(Box::default())
    }

    #[test]
    fn others_wait_until_a_capture_has_ended() {
        let gate = gate();
        let closed = gate.close().unwrap();
        let (send, entered) = channel();
        let other = thread::spawn(move || {
            let _pass = gate.enter();
            send.send(()).unwrap();
        });
        while !gate.is_waiting(other.thread().id()) && !other.is_finished() {
            thread::yield_now();
        }
        assert!(entered.try_recv().is_err(), "it entered a gate that was closed");
        drop(closed);
        entered.recv().unwrap();
        other.join().unwrap();
        assert!(gate.waiting().is_empty());
    }

    #[test]
    fn who_is_inside_enters_again() {
        let gate = gate();
        let closed = gate.close().unwrap();
        drop((gate.enter(), gate.enter()));
        // Still closed for others.
        assert!(thread::spawn(move || gate.door.try_read().is_err()).join().unwrap());
        drop(closed);
        let [first, second] = [gate.enter(), gate.enter()];
        drop(second);
        assert!(gate.close().is_err());
        let third = gate.enter();
        drop(first);
        assert!(gate.close().is_err(), "the last pass holds it open");
        drop(third);
        drop(gate.close().unwrap());
    }

    #[test]
    fn who_would_wait_for_itself_is_refused() {
        let gate = gate();
        let pass = gate.enter();
        assert!(gate.close().unwrap_err().to_string().contains("holds captures off"));
        drop(pass);
        let closed = gate.close().unwrap();
        assert!(gate.close().unwrap_err().to_string().contains("captures already"));
        drop(closed);
        drop(gate.close().unwrap());
    }

    #[test]
    fn what_is_dropped_within_a_capture_is_given_back_behind_it() {
        struct Given(std::sync::mpsc::Sender<()>);
        impl Drop for Given {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        let gate = gate();
        let (send, given) = channel();
        let closed = gate.close().unwrap();
        gate.give_back(Given(send.clone()));
        assert!(given.try_recv().is_err());
        drop(closed);
        assert_eq!(given.try_recv(), Ok(()));
        gate.give_back(Given(send));
        assert_eq!(given.try_recv(), Ok(()));
    }
}
