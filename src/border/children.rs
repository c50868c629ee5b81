//! What was made from one cache: buffers and views that JavaScript has. The cache knows them weakly, so that disposing of the cache
//! frees their memory at once.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

/// Something that gives its memory back when its cache is disposed of.
trait Release {
    fn release(&self);
}

impl<T> Release for RefCell<Option<T>> {
    fn release(&self) {
        self.replace(None);
    }
}

/// What was made from one cache.
#[derive(Clone, Default)]
pub(crate) struct Children(Rc<RefCell<Vec<Weak<dyn Release>>>>);

impl Children {
    /// Keeps `value` until the cache or its own object ends.
    pub fn adopt<T: 'static>(&self, value: T) -> Rc<RefCell<Option<T>>> {
        let child = Rc::new(RefCell::new(Some(value)));
        let mut children = self.0.borrow_mut();
        if children.len() == children.capacity() {
            children.retain(|child| child.strong_count() > 0);
        }
        let known: Rc<dyn Release> = child.clone();
        children.push(Rc::downgrade(&known));
        child
    }

    /// Frees all of it.
    pub fn release(&self) {
        for child in self.0.take().iter().filter_map(Weak::upgrade) {
            child.release();
        }
    }
}
