//! A step that JavaScript holds: open, or ended.

use kvtide_core::Error;

use crate::guard::Outcome;

/// A step; nothing once it has ended.
pub(crate) struct OpenStep<S>(Option<S>);

impl<S> OpenStep<S> {
    pub fn of(step: S) -> Self {
        OpenStep(Some(step))
    }

    /// It, refused once it has ended.
    pub fn get(&self) -> Outcome<&S> {
        Ok(self.0.as_ref().ok_or(Error::TransactionClosed)?)
    }

    /// The same, to write with.
    pub fn get_mut(&mut self) -> Outcome<&mut S> {
        Ok(self.0.as_mut().ok_or(Error::TransactionClosed)?)
    }

    /// Ends it, which was committed or undone.
    pub fn end(&mut self) {
        self.0 = None;
    }

    /// Takes it out, if it is open.
    pub fn take(&mut self) -> Option<S> {
        self.0.take()
    }
}
