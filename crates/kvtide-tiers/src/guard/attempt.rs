//! One batch, with retries: each attempt has a permit and a timeout of its own. There is no retry after a permanent
//! fault, or once the store is unreachable.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};

use super::backend::Replies;
use super::desk::{Admitted, WatchedDesk};
use crate::fault::{Fault, FaultKind};
use crate::gate::{Answered, Outcome, Refusal};
use crate::policy::GuardOptions;

/// The attempts of a call.
pub(super) struct Attempts<'a> {
    desk: &'a WatchedDesk,
    options: &'a GuardOptions,
    /// True if any part of the call was answered.
    answered: AtomicBool,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(desk: &'a WatchedDesk, options: &'a GuardOptions) -> Self {
        Attempts { desk, options, answered: AtomicBool::new(false) }
    }

    /// Tries a batch until it is answered, or until a retry cannot help.
    pub(super) async fn run<T, F: Future<Output = Result<Replies<T>, Fault>>>(
        &self,
        mut admitted: Admitted<'_>,
        bytes: u64,
        call: impl Fn() -> F,
        about: impl Fn(&[T]) -> Answered,
    ) -> Option<Vec<T>> {
        for failures in 1.. {
            admitted = admitted.of_call(&self.answered);
            let fault = match tokio::time::timeout(self.options.attempt_timeout, call()).await {
                Ok(Ok(Replies { each, fault })) => {
                    self.answered.store(true, Ordering::Relaxed);
                    admitted.settle(Outcome::Answered(Answered { fault, ..about(&each) }));
                    return Some(each);
                }
                Ok(Err(fault)) => fault,
                Err(_) => Fault::new(FaultKind::TimedOut, "no answer in the time of an attempt"),
            };
            let pause = self.options.pause_after(failures, &fault);
            admitted.settle(Outcome::Failed(fault));
            tokio::time::sleep(pause?).await;
            admitted = self.readmitted(bytes).await?;
        }
        None
    }

    async fn readmitted(&self, bytes: u64) -> Option<Admitted<'a>> {
        loop {
            let settled = self.desk.settled();
            match self.desk.admit(bytes) {
                Ok(admitted) => return Some(admitted),
                Err(Refusal::Busy) => settled.await,
                Err(_) => return None,
            }
        }
    }
}
