//! One batch, tried a few times: each attempt has a permit and a time of its own, and there is a random pause between two.
//!
//! ```text
//! attempt n fails   pause: anything from nothing to pause * 2^(n - 1), so that callers who failed together come back apart
//! ```
//!
//! What will not get better is not tried again, nor is a store that has become unavailable meanwhile.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::GuardOptions;
use super::desk::{Admitted, Desk};
use crate::backend::Replies;
use crate::fault::{Fault, FaultKind};
use crate::gate::{Answered, Outcome, Refusal};

/// The attempts of a call.
pub(super) struct Attempts<'a> {
    desk: &'a Desk,
    options: &'a GuardOptions,
    /// Whether anything of the call was answered.
    answered: AtomicBool,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(desk: &'a Desk, options: &'a GuardOptions) -> Self {
        Attempts { desk, options, answered: AtomicBool::new(false) }
    }

    /// Tries a batch until it is answered, or there is no use in trying.
    pub(super) async fn run<T, F: Future<Output = Result<Replies<T>, Fault>>>(
        &self,
        mut admitted: Admitted<'_>,
        bytes: u64,
        call: impl Fn() -> F,
        about: impl Fn(&[T]) -> Answered,
    ) -> Option<Vec<T>> {
        for attempt in 1.. {
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
            let is_last = attempt >= self.options.attempts_max || !fault.kind.is_passing();
            admitted.settle(Outcome::Failed(fault));
            if is_last {
                return None;
            }
            tokio::time::sleep(jitter(self.options.pause.saturating_mul(1 << (attempt - 1).min(16)))).await;
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

/// Anything from nothing to `most`.
fn jitter(most: Duration) -> Duration {
    thread_local!(static RANDOM: Cell<u64> = Cell::new(RandomState::new().build_hasher().finish()));
    let drawn = RANDOM.with(|random| {
        // xorshift64*, whose state is never 0.
        let mut next = random.get() | 1;
        next ^= next >> 12;
        next ^= next << 25;
        next ^= next >> 27;
        random.set(next);
        next.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    });
    most.mul_f64(drawn as f64 / f64::from(u32::MAX)).min(most)
}
