//! The trait of network stores. A call has one batch; it may be late, fail, or be given up at any moment.

use std::future::Future;

use crate::fault::Fault;

/// The result of a batch that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replies<T> {
    /// A result for each key, in the same order.
    pub each: Vec<T>,
    /// A fault of some of the keys.
    pub fault: Option<Fault>,
}

impl<T> Replies<T> {
    /// Creates replies without a fault.
    pub fn new(each: Vec<T>) -> Self {
        Replies { each, fault: None }
    }
}

/// A store that is reached over the network. Its calls do not retry and have no timeout: `Guarded` adds both.
pub trait Backend: Send + Sync + std::fmt::Debug {
    /// Returns the values of keys; `None` if a value does not exist or is longer than `bytes_max`. No more memory than
    /// that is allocated.
    fn get(
        &self,
        keys: &[String],
        bytes_max: usize,
    ) -> impl Future<Output = Result<Replies<Option<Vec<u8>>>, Fault>> + Send;

    /// Returns true for each key that exists.
    fn has(&self, keys: &[String]) -> impl Future<Output = Result<Replies<bool>, Fault>> + Send;

    /// Adds values that do not exist yet. Returns true for each value that certainly exists afterwards.
    fn put(&self, entries: &[(String, &[u8])]) -> impl Future<Output = Result<Replies<bool>, Fault>> + Send;

    /// Removes values.
    fn remove(&self, keys: &[String]) -> impl Future<Output = Result<Replies<()>, Fault>> + Send;
}
