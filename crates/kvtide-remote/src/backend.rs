//! What a store that others run can do, one batch at a time: it may be late, fail, and be given up at any moment.

use std::future::Future;

use crate::fault::Fault;

/// What came of a batch that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replies<T> {
    /// One for each key, in their order.
    pub each: Vec<T>,
    /// What went wrong with some of them.
    pub fault: Option<Fault>,
}

impl<T> Replies<T> {
    /// Replies without a fault.
    pub fn new(each: Vec<T>) -> Self {
        Replies { each, fault: None }
    }
}

/// A store that is asked over the network. Its calls do not retry, and wait as long as it takes: `Guarded` does the rest.
pub trait Backend: Send + Sync + std::fmt::Debug {
    /// The values of keys; nothing where there is none, or where it is longer than `bytes_max`. No memory beyond that is taken.
    fn get(
        &self,
        keys: &[String],
        bytes_max: usize,
    ) -> impl Future<Output = Result<Replies<Option<Vec<u8>>>, Fault>> + Send;

    /// Whether there are values of keys.
    fn has(&self, keys: &[String]) -> impl Future<Output = Result<Replies<bool>, Fault>> + Send;

    /// Adds values unless they are there; answers which of them certainly are, then.
    fn put(&self, entries: &[(String, &[u8])]) -> impl Future<Output = Result<Replies<bool>, Fault>> + Send;

    /// Removes values.
    fn remove(&self, keys: &[String]) -> impl Future<Output = Result<Replies<()>, Fault>> + Send;
}
