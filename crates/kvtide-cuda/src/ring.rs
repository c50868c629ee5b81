//! A ring of memory pieces for asynchronous copies, which grows before a copy has to wait.
//!
//! ```text
//!          oldest                              current
//! pieces   [ done? | in flight | in flight | filled from the front ]
//! ```
//!
//! If the current piece is full, the oldest one is next, provided that its copies are done. If they are not, the device is
//! behind and the ring grows by one piece; only at its limit the host waits. It never shrinks, because freeing such memory
//! waits for the device. O(1) per copy.

/// A piece of memory from which copies are enqueued.
pub(crate) trait RingPiece: Sized {
    /// The device's error.
    type Error;

    /// Marks the end of the copies that were enqueued from it.
    fn close(&mut self) -> Result<(), Self::Error>;

    /// True if the copies before the mark are done.
    fn is_done(&self) -> Result<bool, Self::Error>;

    /// Waits for the copies before the mark.
    fn wait(&self) -> Result<(), Self::Error>;
}

/// A ring of pieces of equal size.
#[derive(Debug)]
pub(crate) struct Ring<P> {
    /// The pieces in the order in which they were last used, starting after `present`.
    pieces: Vec<P>,
    present: usize,
    /// The used bytes of the current piece.
    used: usize,
    bytes: usize,
    most: usize,
}

impl<P: RingPiece> Ring<P> {
    /// A ring of at most `most` pieces of `bytes` bytes.
    pub const fn new(bytes: usize, most: usize) -> Self {
        Ring { pieces: Vec::new(), present: 0, used: 0, bytes, most }
    }

    /// Reserves room for a copy, which must fit in one piece, at a multiple of `alignment`. Returns the piece and the
    /// offset.
    pub fn room(
        &mut self,
        bytes: usize,
        alignment: usize,
        make: impl FnOnce() -> Result<P, P::Error>,
    ) -> Result<(&mut P, usize), P::Error> {
        debug_assert!(bytes <= self.bytes, "a copy that is cut into pieces");
        if self.pieces.is_empty() || self.used.next_multiple_of(alignment) + bytes > self.bytes {
            self.advance(make)?;
        }
        let start = self.used.next_multiple_of(alignment);
        self.used = start + bytes;
        Ok((&mut self.pieces[self.present], start))
    }

    /// Moves on to a piece from which no copy is in flight.
    fn advance(&mut self, make: impl FnOnce() -> Result<P, P::Error>) -> Result<(), P::Error> {
        let Some(present) = self.pieces.get_mut(self.present) else {
            self.pieces.push(make()?);
            return Ok(());
        };
        present.close()?;
        let oldest = (self.present + 1) % self.pieces.len();
        // A ring with one piece has no older one.
        if self.pieces.len() > 1 && self.pieces[oldest].is_done()? {
            self.present = oldest;
        } else if self.pieces.len() < self.most {
            let piece = make()?;
            self.present += 1;
            self.pieces.insert(self.present, piece);
        } else {
            self.pieces[oldest].wait()?;
            self.present = oldest;
        }
        self.used = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::convert::Infallible;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    /// A fake device, which is told when it has finished which copy.
    #[derive(Default)]
    struct Device {
        done: Cell<u64>,
        enqueued: Cell<u64>,
        waits: Cell<u64>,
        made: Cell<usize>,
        /// The copies from each piece, and the bytes that they read.
        under_way: RefCell<Vec<(usize, u64, std::ops::Range<usize>)>>,
    }

    struct Fake {
        device: Rc<Device>,
        name: usize,
        mark: Cell<u64>,
    }

    impl RingPiece for Fake {
        type Error = Infallible;

        fn close(&mut self) -> Result<(), Infallible> {
            self.mark.set(self.device.enqueued.get());
            Ok(())
        }

        fn is_done(&self) -> Result<bool, Infallible> {
            Ok(self.device.done.get() >= self.mark.get())
        }

        fn wait(&self) -> Result<(), Infallible> {
            self.device.waits.set(self.device.waits.get() + 1);
            self.device.done.set(self.device.done.get().max(self.mark.get()));
            Ok(())
        }
    }

    /// Copies this many bytes; panics if it would overwrite bytes that the device still reads.
    fn copy(ring: &mut Ring<Fake>, device: &Rc<Device>, bytes: usize) {
        let make = || {
            device.made.set(device.made.get() + 1);
            Ok(Fake { device: device.clone(), name: device.made.get(), mark: Cell::new(0) })
        };
        let (piece, start) = ring.room(bytes, 4, make).unwrap();
        assert_eq!(start % 4, 0);
        let (name, taken) = (piece.name, start..start + bytes);
        let mut under_way = device.under_way.borrow_mut();
        under_way.retain(|(_, number, _)| *number > device.done.get());
        let is_read = |(other, _, range): &(usize, u64, std::ops::Range<usize>)| {
            *other == name && range.start < taken.end && taken.start < range.end
        };
        assert!(!under_way.iter().any(is_read), "written while the device reads it");
        device.enqueued.set(device.enqueued.get() + 1);
        under_way.push((name, device.enqueued.get(), taken));
    }

    #[test]
    fn it_grows_while_the_device_is_behind_and_waits_at_its_limit_alone() {
        let (device, mut ring) = (Rc::new(Device::default()), Ring::new(16, 5));
        for _ in 0..5 {
            copy(&mut ring, &device, 16);
        }
        assert_eq!((device.made.get(), device.waits.get()), (5, 0));
        copy(&mut ring, &device, 16);
        assert_eq!((device.made.get(), device.waits.get()), (5, 1));
    }

    #[test]
    fn it_stays_small_while_the_device_keeps_up() {
        let (device, mut ring) = (Rc::new(Device::default()), Ring::new(16, 5));
        for _ in 0..100 {
            copy(&mut ring, &device, 7);
            device.done.set(device.enqueued.get());
        }
        assert_eq!((device.made.get(), device.waits.get()), (2, 0));
    }

    proptest! {
        #[test]
        fn nothing_is_written_while_it_is_read(
            copies in prop::collection::vec((1..=16usize, 0..3u64), 1..200),
            most in 1..6usize,
        ) {
            let (device, mut ring) = (Rc::new(Device::default()), Ring::new(16, most));
            for (bytes, done) in copies {
                copy(&mut ring, &device, bytes);
                device.done.set((device.done.get() + done).min(device.enqueued.get()));
            }
            prop_assert!(device.made.get() <= most);
        }
    }
}
