//! The numbers of workers.

/// The most workers that an index takes.
pub const WORKERS_MAX: usize = 1024;

/// The number of a worker in an index. Numbers of removed workers are reused, the lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(u16);

impl WorkerId {
    /// The number, counted from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0.into()
    }

    /// The worker with this number, for callers that store numbers. Each call checks that the worker exists.
    #[must_use]
    pub fn of_index(index: usize) -> Self {
        WorkerId(u16::try_from(index).unwrap_or(u16::MAX))
    }
}
