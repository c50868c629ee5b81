//! The calls of `RotatingCache` and `RotatingKvCache` that differ in their number of tensors, under one name.

use kvtide_tensor::buffers::Source;
use kvtide_tensor::{Kv, Result, Rotating, RotatingSnapshot, View};

pub trait Window<const PARTS: usize>: Sized {
    fn feed(&mut self, sources: [Source<'_>; PARTS]) -> Result<[View; PARTS]>;
    fn present(&self) -> Result<Option<[View; PARTS]>>;
    fn latest(&self) -> Option<[View; PARTS]>;
    fn whole(&self) -> Result<Option<[View; PARTS]>>;
    fn accepted(
        &self,
        snapshot: &RotatingSnapshot<PARTS>,
        keep_len: u64,
        row: u64,
        batch: u64,
    ) -> Result<Option<[View; PARTS]>>;
    fn revive(snapshot: &RotatingSnapshot<PARTS>, accepted: Option<[Source<'_>; PARTS]>, keep_len: u64)
    -> Result<Self>;
}

impl Window<1> for Rotating<1> {
    fn feed(&mut self, [source]: [Source<'_>; 1]) -> Result<[View; 1]> {
        Ok([self.append(source)?])
    }

    fn present(&self) -> Result<Option<[View; 1]>> {
        Ok(self.current_data()?.map(|view| [view]))
    }

    fn latest(&self) -> Option<[View; 1]> {
        self.last_append_result().map(|view| [view])
    }

    fn whole(&self) -> Result<Option<[View; 1]>> {
        Ok(self.all_data()?.map(|view| [view]))
    }

    fn accepted(&self, snapshot: &RotatingSnapshot<1>, keep: u64, row: u64, batch: u64) -> Result<Option<[View; 1]>> {
        Ok(self.accepted_append_from_batched_append(snapshot, keep, row, batch)?.map(|view| [view]))
    }

    fn revive(snapshot: &RotatingSnapshot<1>, accepted: Option<[Source<'_>; 1]>, keep_len: u64) -> Result<Self> {
        Self::restore_from_snapshot(snapshot, accepted.map(|[source]| source), keep_len)
    }
}

impl Window<2> for Rotating<2> {
    fn feed(&mut self, [k, v]: [Source<'_>; 2]) -> Result<[View; 2]> {
        Ok(pair(self.append(k, v)?))
    }

    fn present(&self) -> Result<Option<[View; 2]>> {
        Ok(self.current_data()?.map(pair))
    }

    fn latest(&self) -> Option<[View; 2]> {
        self.last_append_result().map(pair)
    }

    fn whole(&self) -> Result<Option<[View; 2]>> {
        Ok(self.all_data()?.map(pair))
    }

    fn accepted(&self, snapshot: &RotatingSnapshot<2>, keep: u64, row: u64, batch: u64) -> Result<Option<[View; 2]>> {
        Ok(self.accepted_append_from_batched_append(snapshot, keep, row, batch)?.map(pair))
    }

    fn revive(snapshot: &RotatingSnapshot<2>, accepted: Option<[Source<'_>; 2]>, keep_len: u64) -> Result<Self> {
        Self::restore_from_snapshot(snapshot, accepted.map(|[k, v]| (k, v)), keep_len)
    }
}

pub fn pair(kv: Kv) -> [View; 2] {
    [kv.k, kv.v]
}
