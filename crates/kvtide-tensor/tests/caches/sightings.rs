//! Views that were returned, with their content: later each reads exactly that, or fails for a reason.

use candle_core::Tensor;
use kvtide_core::Code;
use kvtide_tensor::View;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::tokens::{address_of, bytes_of};

/// The possible effect of a call on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// New tokens, none like any other: a slot that was written has changed.
    NewTokens,
    /// Perhaps the same bytes again: a slot may be written and look as before.
    AnyTokens,
}

/// One view.
#[derive(Debug)]
struct Sighting {
    view: View,
    bytes: Vec<u8>,
    /// Each of its runs, as raw memory that is never refused, and what was there.
    runs: Vec<(Tensor, Vec<u8>)>,
    cache: usize,
    /// It lies in memory that no cache writes.
    apart: bool,
    stale: bool,
}

/// Every view that a test keeps.
#[derive(Debug, Default)]
pub struct Sightings {
    list: Vec<Sighting>,
    closed: Vec<usize>,
}

impl Sightings {
    /// Keeps a view of cache `cache`, whose buffer `whole` shows, after a look at all that it says about itself.
    pub fn see(
        &mut self,
        cache: usize,
        whole: Option<&View>,
        view: View,
        bytes: Vec<u8>,
        positions: &[usize],
    ) -> Result<(), TestCaseError> {
        prop_assert_eq!(view.to_bytes()?, &bytes[..]);
        prop_assert!(!view.is_stale());
        let axis = view.sequence_axis().expect("a view of a cache has a sequence");
        let starts: Vec<usize> =
            (0..positions.len()).filter(|&at| at == 0 || positions[at] != positions[at - 1] + 1).collect();
        if !positions.is_empty() {
            let expected: Vec<u64> = starts.iter().map(|&start| positions[start] as u64).collect();
            prop_assert_eq!(view.key_positions(), &expected[..]);
        }
        prop_assert_eq!(view.runs().len() as usize, positions.len());
        let copy = view.to_tensor()?;
        prop_assert_eq!(copy.dims(), view.shape());
        prop_assert_eq!(bytes_of(&copy), &bytes[..]);
        let whole = whole.map(|whole| whole.tensor().map(|tensor| address_of(&tensor))).transpose()?;
        let mut runs = Vec::new();
        let mut apart = false;
        for (place, &start) in starts.iter().enumerate() {
            let end = starts.get(place + 1).copied().unwrap_or(positions.len());
            let raw = view.narrow(axis, start, end - start)?.tensor()?;
            apart = whole != Some(address_of(&raw));
            runs.push((raw.clone(), bytes_of(&raw)));
        }
        if starts.len() > 1 {
            prop_assert_eq!(view.tensor().map(|_| ()).map_err(|error| error.code()), Err(Code::NotContiguous));
        } else {
            prop_assert_eq!(bytes_of(&view.tensor()?), &bytes[..]);
        }
        self.list.push(Sighting { view, bytes, runs, cache, apart, stale: false });
        Ok(())
    }

    /// Notes that a cache was closed.
    pub fn close(&mut self, cache: usize) {
        self.closed.push(cache);
    }

    /// Drops about half of them.
    pub fn forget(&mut self, which: u32) {
        let mut place = which;
        self.list.retain(|_| {
            place = place.wrapping_mul(5).wrapping_add(1);
            place & 4 == 0
        });
    }

    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// Reads every view.
    pub fn check(&mut self, wrote: Wrote) -> Result<(), TestCaseError> {
        for sighting in &mut self.list {
            let closed = self.closed.contains(&sighting.cache) && !sighting.apart;
            match sighting.view.to_bytes() {
                Ok(bytes) => {
                    prop_assert!(!closed, "a view of a closed cache was read");
                    prop_assert!(!sighting.stale, "a stale view was read");
                    prop_assert_eq!(&bytes, &sighting.bytes, "a view shows something else than it did");
                }
                Err(error) if closed => prop_assert_eq!(error.code(), Code::Disposed),
                Err(error) => {
                    prop_assert_eq!(error.code(), Code::StaleView);
                    prop_assert!(!sighting.apart, "a view in memory of its own is stale");
                    prop_assert!(sighting.view.is_stale() && sighting.view.tensor().is_err());
                    let unchanged = || sighting.runs.iter().all(|(raw, before)| bytes_of(raw) == *before);
                    if !sighting.stale && wrote == Wrote::NewTokens {
                        prop_assert!(!unchanged(), "a view is stale whose slots were not written");
                    }
                    sighting.stale = true;
                }
            }
        }
        Ok(())
    }
}
