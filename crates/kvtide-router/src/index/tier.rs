//! Where a worker keeps a block.

/// A kind of memory, fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The accelerator's.
    Gpu,
    /// The host's.
    Cpu,
    /// A disk of the host's.
    Disk,
}

impl Tier {
    /// All of them, fastest first.
    pub const ALL: [Tier; 3] = [Tier::Gpu, Tier::Cpu, Tier::Disk];

    /// The tier that an event's `medium` means; an event without one is of the GPU. None for what is not the worker's own.
    #[must_use]
    pub fn of_medium(medium: Option<&str>) -> Option<Self> {
        match medium {
            None | Some("GPU" | "DEVICE") => Some(Tier::Gpu),
            Some("CPU" | "CPU_PINNED" | "CPU_TIER1") => Some(Tier::Cpu),
            Some("DISK" | "CPU_TIER2" | "NVME" | "STORAGE") => Some(Tier::Disk),
            Some(_) => None,
        }
    }

    /// What an event's `medium` says of it.
    #[must_use]
    pub fn medium(self) -> &'static str {
        match self {
            Tier::Gpu => "GPU",
            Tier::Cpu => "CPU",
            Tier::Disk => "DISK",
        }
    }
}
