//! Points at which a test lets calls of this thread fail.

use std::cell::RefCell;
use std::io::{ErrorKind, Result};

thread_local! {
    /// The points so far, and the numbers of those that fail.
    static POINTS: RefCell<(Vec<&'static str>, Vec<usize>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Passes a point. Returns an error, if it is one that fails.
pub(crate) fn point(name: &'static str) -> Result<()> {
    POINTS.with_borrow_mut(|(passed, fails)| {
        passed.push(name);
        if fails.contains(&(passed.len() - 1)) { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    })
}

/// Lets these points fail while `work` runs. Returns its result, and the points that it passed.
pub(crate) fn during<T>(fails: &[usize], work: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
    POINTS.set((Vec::new(), fails.to_vec()));
    let result = work();
    (result, POINTS.take().0)
}
