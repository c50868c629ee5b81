//! The tier in which a worker keeps a block.

/// A kind of memory, fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The accelerator's memory.
    Gpu,
    /// The host's memory.
    Cpu,
    /// A disk of the host.
    Disk,
}

impl Tier {
    /// All tiers, fastest first.
    pub const ALL: [Tier; 3] = [Tier::Gpu, Tier::Cpu, Tier::Disk];

    /// The tier of an event's `medium`; without one it is the GPU. `None` for a medium that is not the worker's own.
    #[must_use]
    pub(crate) fn of_medium(medium: Option<&str>) -> Option<Self> {
        match medium {
            None | Some("GPU" | "DEVICE") => Some(Tier::Gpu),
            Some("CPU" | "CPU_PINNED" | "CPU_TIER1") => Some(Tier::Cpu),
            Some("DISK" | "CPU_TIER2" | "NVME" | "STORAGE") => Some(Tier::Disk),
            Some(_) => None,
        }
    }

    /// The `medium` of this tier in events.
    #[must_use]
    pub fn medium(self) -> &'static str {
        match self {
            Tier::Gpu => "GPU",
            Tier::Cpu => "CPU",
            Tier::Disk => "DISK",
        }
    }
}
