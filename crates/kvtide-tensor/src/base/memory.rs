//! Memory limits of devices, and the bytes in use under them.
//!
//! ```text
//! process  ← limit of the process (80 % of memory unless set); each GPU has its own (90 % of its free memory)
//!   └ owner  ← memoryLimitBytes of one cache or pool
//!       └ lease  one allocation, released when it is dropped
//! ```
//!
//! A lease is taken before the memory is allocated. While the owner uses the memory, the lease is *live*; once only views,
//! snapshots and copies keep it, it is *held*. Memory that the owner cannot free, because only views or copies keep it, is
//! *spared*: the owner's own limit does not count it. An owner that consists of other owners, as a model consists of layers,
//! has a budget [of parts](Budget::of_parts): it spares what its parts spare.

use std::sync::{Arc, Mutex, OnceLock};

use candle_core::Device;

use crate::base::error::{Error, Result};
use crate::base::lock::lock;
use crate::base::sync::{AtomicBool, AtomicU64, Ordering};

/// A memory limit and the bytes in use under it.
#[derive(Debug)]
pub struct Budget {
    device: Device,
    parent: Option<Arc<Budget>>,
    /// True if the budgets below belong to parts of one owner, and this is the limit of that owner.
    has_parts: bool,
    limit: AtomicU64,
    used: AtomicU64,
    held: AtomicU64,
    spared: AtomicU64,
}

impl Budget {
    /// Makes a budget under that of the process; without a limit only the process's limit applies.
    #[must_use]
    pub fn new(limit: Option<u64>) -> Arc<Self> {
        Budget::under(Budget::process(), limit)
    }

    /// Makes a budget for memory of a device: under `parent` if that is for the same device, else under the budget of the
    /// whole device.
    #[must_use]
    pub fn within(device: &Device, parent: Option<&Arc<Budget>>, limit: Option<u64>) -> Arc<Self> {
        let parent = parent.filter(|parent| parent.device.same_device(device)).cloned();
        Budget::under(parent.unwrap_or_else(|| Budget::of(device)), limit)
    }

    /// The budget of all memory of a device.
    #[must_use]
    pub fn of(device: &Device) -> Arc<Self> {
        static DEVICES: Mutex<Vec<Arc<Budget>>> = Mutex::new(Vec::new());
        if device.is_cpu() {
            return Budget::process();
        }
        let mut devices = lock(&DEVICES);
        if let Some(known) = devices.iter().find(|budget| budget.device.same_device(device)) {
            return known.clone();
        }
        let budget = Arc::new(Budget::root(device.clone(), free_memory(device)));
        devices.push(budget.clone());
        budget
    }

    /// Like [`Budget::within`], for an owner that consists of parts, each with a budget under this one.
    #[must_use]
    pub(crate) fn of_parts(device: &Device, parent: Option<&Arc<Budget>>, limit: Option<u64>) -> Arc<Self> {
        let whole = Arc::into_inner(Budget::within(device, parent, limit)).expect("a budget that was just made");
        Arc::new(Budget { has_parts: true, ..whole })
    }

    /// Makes a budget under `parent`.
    #[must_use]
    pub fn under(parent: Arc<Budget>, limit: Option<u64>) -> Arc<Self> {
        let root = Budget::root(parent.device.clone(), limit.unwrap_or(u64::MAX));
        Arc::new(Budget { parent: Some(parent), ..root })
    }

    /// The budget of the process.
    #[must_use]
    pub fn process() -> Arc<Self> {
        static PROCESS: OnceLock<Arc<Budget>> = OnceLock::new();
        PROCESS.get_or_init(|| Arc::new(Budget::root(Device::Cpu, default_limit()))).clone()
    }

    /// Makes a budget without one above it.
    pub(crate) fn root(device: Device, limit: u64) -> Self {
        Budget {
            device,
            parent: None,
            has_parts: false,
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            held: AtomicU64::new(0),
            spared: AtomicU64::new(0),
        }
    }

    /// The device whose memory is counted.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The part of the used bytes that only views and snapshots keep.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// The limit; `u64::MAX` if there is none.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. Memory that is already in use stays.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// The bytes in use that count against the limit.
    fn counted(&self) -> u64 {
        // Another thread may take and spare bytes between the two loads.
        self.used().saturating_sub(self.spared.load(Ordering::Relaxed))
    }

    /// Makes the error of an allocation that does not fit.
    #[must_use]
    pub fn refusal(&self, requested_bytes: u64) -> Error {
        Error::OutOfMemory { requested_bytes, used_bytes: self.counted(), limit_bytes: self.limit() }
    }

    /// Takes `bytes` from this budget and all budgets above it. If one of them has too little, takes nothing.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<Lease> {
        self.take_as(bytes, false)
    }

    /// Like [`Budget::take`], for memory that the owner hands out and does not keep: held from the start, and spared by the
    /// owner's own limit.
    pub(crate) fn take_given(self: &Arc<Self>, bytes: u64) -> Result<Lease> {
        let lease = self.take_as(bytes, true)?;
        lease.set_held(true);
        Ok(lease)
    }

    fn take_as(self: &Arc<Self>, bytes: u64, spared: bool) -> Result<Lease> {
        let fits = |used: u64| {
            let counted = self.counted().checked_add(bytes)?;
            if spared || counted <= self.limit() { used.checked_add(bytes) } else { None }
        };
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(|_| self.refusal(bytes))?;
        let above = match &self.parent {
            Some(parent) => parent.take_as(bytes, spared && parent.has_parts).map(Some),
            None => Ok(None),
        };
        let above = above.inspect_err(|_| {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        })?;
        if spared {
            self.spared.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(Lease {
            budget: self.clone(),
            bytes,
            held: AtomicBool::new(false),
            spared: AtomicBool::new(spared),
            above: above.map(Box::new),
        })
    }
}

/// Bytes that are taken from a budget until this is dropped.
#[derive(Debug)]
pub struct Lease {
    budget: Arc<Budget>,
    bytes: u64,
    held: AtomicBool,
    spared: AtomicBool,
    above: Option<Box<Lease>>,
}

impl Lease {
    /// The number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets whether only views and snapshots keep the memory.
    pub(crate) fn set_held(&self, held: bool) {
        self.note(&self.held, &self.budget.held, held);
        if let Some(above) = &self.above {
            above.set_held(held);
        }
    }

    /// Sets whether the owner's own limit ignores these bytes, because only views keep them and the owner cannot free them.
    /// The limits above still count them.
    pub(crate) fn set_spared(&self, spared: bool) {
        self.note(&self.spared, &self.budget.spared, spared);
        if let Some(above) = self.above.as_ref().filter(|above| above.budget.has_parts) {
            above.set_spared(spared);
        }
    }

    fn note(&self, is_counted: &AtomicBool, count: &AtomicU64, counts: bool) {
        match (is_counted.swap(counts, Ordering::Relaxed), counts) {
            (false, true) => count.fetch_add(self.bytes, Ordering::Relaxed),
            (true, false) => count.fetch_sub(self.bytes, Ordering::Relaxed),
            _ => return,
        };
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.set_spared(false);
        if self.held.load(Ordering::Relaxed) {
            self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// 90 % of a GPU's free memory if its driver reports it; otherwise no limit.
fn free_memory(device: &Device) -> u64 {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => {
            cuda.cuda_stream().context().mem_get_info().map_or(u64::MAX, |(free, _)| free as u64 / 10 * 9)
        }
        _ => u64::MAX,
    }
}

/// 80 % of the smaller of RAM and the control group's limit, if the system reports them; otherwise no limit.
fn default_limit() -> u64 {
    let number = |text: &str| text.split_whitespace().find_map(|word| word.parse::<u64>().ok());
    let ram = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| number(text.lines().find(|line| line.starts_with("MemTotal"))?))
        .map(|kib| kib * 1024);
    let group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .find_map(|path| number(&std::fs::read_to_string(path).ok()?));
    [ram, group].into_iter().flatten().min().map_or(u64::MAX, |bytes| bytes / 5 * 4)
}

/// An empty list with room for `count` items.
pub(crate) fn reserved<T>(count: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    let bytes = size_of::<T>().saturating_mul(count) as u64;
    list.try_reserve_exact(count).map_err(|_| Budget::process().refusal(bytes))?;
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_until_it_is_dropped() {
        let budget = Budget::new(Some(100));
        let lease = budget.take(60).unwrap();
        assert_eq!((budget.used(), budget.held()), (60, 0));
        lease.set_held(true);
        lease.set_held(true);
        assert_eq!((budget.used(), budget.held()), (60, 60));
        drop(lease);
        assert_eq!((budget.used(), budget.held()), (0, 0));
    }

    #[test]
    fn what_is_given_away_is_held_and_counts_above_alone() {
        let above = Budget::new(Some(100));
        let whole = Budget::of_parts(&Device::Cpu, Some(&above), Some(50));
        let part = Budget::under(whole.clone(), None);
        let given = part.take_given(80).unwrap();
        for budget in [&above, &whole, &part] {
            assert_eq!((budget.used(), budget.held()), (80, 80));
        }
        assert_eq!((above.counted(), whole.counted(), part.counted()), (80, 0, 0));
        assert!(matches!(part.take_given(30).unwrap_err(), Error::OutOfMemory { limit_bytes: 100, .. }));
        let live = part.take(20).unwrap();
        assert_eq!((whole.used(), whole.held(), whole.counted()), (100, 80, 20));
        live.set_spared(true);
        assert_eq!((above.counted(), whole.counted(), part.counted()), (100, 0, 0));
        drop((given, live));
        assert_eq!((above.used(), whole.used(), part.held(), whole.held(), part.counted()), (0, 0, 0, 0, 0));
    }

    #[test]
    fn what_does_not_fit_takes_nothing_anywhere() {
        let above = Budget::new(Some(50));
        let below = Budget::under(above.clone(), Some(100));
        let error = below.take(60).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { requested_bytes: 60, used_bytes: 0, limit_bytes: 50 }), "{error}");
        assert_eq!((above.used(), below.used()), (0, 0));
        assert!(below.take(u64::MAX).is_err());
    }
}
