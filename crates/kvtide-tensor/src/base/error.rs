//! Everything a cache can refuse: what its planner refuses, and what is wrong with a tensor, memory or a device.

use kvtide_core::{Code, Detail, DetailValue, counted, details, there_are};

/// The result of a call on a cache.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A refusal. The cache that gave it is as it was, unless the error is [`Error::Poisoned`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The planner's refusal.
    #[error(transparent)]
    Plan(#[from] kvtide_core::Error),
    /// A tensor's shape does not fit.
    #[error("{argument} {} {value:?}, expected {expected}", if *argument == "shape" { "is" } else { "has shape" })]
    ShapeMismatch {
        /// The argument's public name.
        argument: &'static str,
        /// The shape given.
        value: Vec<usize>,
        /// The shape it may have.
        expected: String,
    },
    /// A tensor's element type does not fit.
    #[error("{argument} is {value}, expected {expected}")]
    DtypeMismatch {
        /// The argument's public name.
        argument: &'static str,
        /// The dtype given.
        value: String,
        /// The dtype it may have.
        expected: String,
    },
    /// A tensor lies on another device.
    #[error("{argument} is on {value}, expected {expected}")]
    DeviceMismatch {
        /// The argument's public name.
        argument: &'static str,
        /// The device it is on.
        value: String,
        /// The device it should be on.
        expected: String,
    },
    /// The bytes of a view were asked for where the host does not see them.
    #[error("data is on {device}, expected cpu: toArray() or readInto() copies it from there")]
    NotOnHost {
        /// The device it is on.
        device: String,
    },
    /// One token's vector has the wrong number of elements.
    #[error("{argument} has {}, expected {expected}", counted(*actual, "element"))]
    DimMismatch {
        /// The argument's public name.
        argument: &'static str,
        /// Elements given.
        actual: u64,
        /// Elements of one token.
        expected: u64,
    },
    /// Too few free blocks in a group of layers; none was taken.
    #[error("{} needed in group {group} of the layers, {} free", there_are(*needed, "block"), there_are(*free, ""))]
    OutOfBlocks {
        /// The place of the group.
        group: usize,
        /// Blocks needed.
        needed: u64,
        /// Blocks free.
        free: u64,
    },
    /// K or V of one of several layers does not fit.
    #[error("layers[{place}].{error}")]
    InLayer {
        /// Its place among those given.
        place: usize,
        /// What is wrong with it.
        error: Box<Error>,
    },
    /// A view whose memory was overwritten since it was made.
    #[error("the view is stale: the cache has overwritten a slot that it shows; keep a copy with toArray() instead")]
    StaleView,
    /// One piece of memory was asked of a view that lies in two.
    #[error(
        "{operation} needs one piece of memory, the view lies in {pieces}: readInto and toArray copy it from there"
    )]
    NotContiguous {
        /// What was asked.
        operation: &'static str,
        /// How the view lies.
        pieces: &'static str,
    },
    /// A memory limit, or memory itself, is exhausted.
    #[error("cannot take {}: {used_bytes} bytes used, {}", bytes(*requested_bytes), limit(*limit_bytes))]
    OutOfMemory {
        /// Bytes asked for.
        requested_bytes: u64,
        /// Bytes in use under the limit.
        used_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The object, or the cache that a view shows, was disposed of.
    #[error("the {object} was disposed of")]
    Disposed {
        /// What kind of object.
        object: &'static str,
    },
    /// An earlier failure left the content undefined.
    #[error("the cache is poisoned: an earlier copy failed half-way")]
    Poisoned,
    /// A step was committed before every layer was written.
    #[error("layers {layers:?} of the step are not written")]
    StepIncomplete {
        /// Those layers.
        layers: Vec<usize>,
    },
    /// Someone reads the cache, or computes a step of it, in the background, so that it cannot be changed.
    #[error("work in the background still uses the cache: it can be changed when that has ended")]
    Busy,
    /// The caller's signal ended the work.
    #[error("aborted by its signal")]
    Aborted,
    /// The device is not there or cannot be used.
    #[error("device {device} cannot be used: {reason}")]
    DeviceUnavailable {
        /// The device asked for.
        device: String,
        /// Why not.
        reason: String,
    },
    /// A device did not do what it was told: what it was to write is in no known state.
    #[error("{0}")]
    Launch(#[from] kvtide_cuda::Error),
    /// candle refused something that was checked: a defect of this library.
    #[error("internal error: {0}")]
    Candle(#[from] candle_core::Error),
}

impl Error {
    /// An argument that is out of bounds.
    pub fn argument(argument: &'static str, value: impl Into<DetailValue>, expected: impl Into<String>) -> Self {
        Error::Plan(kvtide_core::Error::argument(argument, value, expected))
    }

    /// The refusal of a group of layers, by its place.
    pub(crate) fn in_group(self, group: usize) -> Self {
        match self {
            Error::Plan(kvtide_core::Error::OutOfBlocks { needed, free }) => Error::OutOfBlocks { group, needed, free },
            other => other,
        }
    }

    /// The refusal of K or V of a layer, by its place among those given.
    pub(crate) fn in_layer(self, place: usize) -> Self {
        let is_of =
            |detail: &Detail| detail.name == "argument" && ["k", "v"].map(DetailValue::from).contains(&detail.value);
        match self.details().iter().any(is_of) {
            true => Error::InLayer { place, error: Box::new(self) },
            false => self,
        }
    }

    /// The stable name of the refusal.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Plan(error) => error.code(),
            Error::ShapeMismatch { .. } => Code::ShapeMismatch,
            Error::DtypeMismatch { .. } => Code::DtypeMismatch,
            Error::DeviceMismatch { .. } | Error::NotOnHost { .. } => Code::DeviceMismatch,
            Error::DimMismatch { .. } => Code::DimMismatch,
            Error::OutOfBlocks { .. } => Code::OutOfBlocks,
            Error::InLayer { error, .. } => error.code(),
            Error::StaleView => Code::StaleView,
            Error::NotContiguous { .. } => Code::NotContiguous,
            Error::OutOfMemory { .. } => Code::OutOfMemory,
            Error::Disposed { .. } => Code::Disposed,
            Error::Poisoned => Code::Poisoned,
            Error::StepIncomplete { .. } => Code::StepIncomplete,
            Error::Busy => Code::Busy,
            Error::Aborted => Code::Aborted,
            Error::DeviceUnavailable { .. } => Code::DeviceUnavailable,
            Error::Launch(kvtide_cuda::Error::OutOfMemory { .. }) => Code::OutOfMemory,
            Error::Candle(_) | Error::Launch(_) => Code::Internal,
        }
    }

    /// The refusal's fields, named as users of every language see them.
    #[must_use]
    pub fn details(&self) -> Vec<Detail> {
        match self {
            Error::Plan(error) => error.details(),
            Error::ShapeMismatch { argument, value, expected } => {
                details![argument: *argument, value: value.as_slice(), expected: expected]
            }
            Error::DtypeMismatch { argument, value, expected }
            | Error::DeviceMismatch { argument, value, expected } => {
                details![argument: *argument, value: value, expected: expected]
            }
            Error::NotOnHost { device } => details![argument: "data", value: device, expected: "cpu"],
            Error::DimMismatch { argument, actual, expected } => {
                details![argument: *argument, value: *actual, actual: *actual, expected: *expected]
            }
            Error::OutOfBlocks { group, needed, free } => details![needed: *needed, free: *free, group: *group],
            Error::InLayer { place, error } => {
                let mut details = error.details();
                for detail in details.iter_mut().filter(|detail| detail.name == "argument") {
                    if let DetailValue::Text(argument) = &detail.value {
                        detail.value = DetailValue::Text(format!("layers[{place}].{argument}"));
                    }
                }
                details
            }
            Error::NotContiguous { operation, pieces } => details![operation: *operation, pieces: *pieces],
            Error::OutOfMemory { requested_bytes, used_bytes, limit_bytes } => {
                details![requestedBytes: *requested_bytes, usedBytes: *used_bytes, limitBytes: *limit_bytes]
            }
            Error::DeviceUnavailable { device, reason } => details![device: device, reason: reason],
            Error::Disposed { object } => details![object: *object],
            Error::StepIncomplete { layers } => details![layers: &layers[..]],
            Error::StaleView | Error::Poisoned | Error::Busy | Error::Aborted => Vec::new(),
            Error::Launch(kvtide_cuda::Error::OutOfMemory { bytes, free, total }) => {
                details![requestedBytes: *bytes, usedBytes: total.saturating_sub(*free), limitBytes: *total]
            }
            Error::Launch(error) => {
                let mut details = details![reason: &error.to_string()];
                if let kvtide_cuda::Error::Launch { kernel, driver, .. } = error {
                    details.extend(details![operation: *kernel]);
                    details.extend(
                        driver.iter().flat_map(|driver| details![driverError: &driver.name, driverCode: driver.code]),
                    );
                }
                details
            }
            Error::Candle(error) => {
                let reason = error.to_string();
                let mut details = details![reason: &reason];
                details.extend(driver_error(&reason).into_iter().flat_map(|name| details![driverError: name]));
                details
            }
        }
    }
}

/// The driver's name for what candle met, which it keeps in its text.
fn driver_error(reason: &str) -> Option<&str> {
    let name = &reason[reason.find("CUDA_ERROR_")?..];
    let end = name.find(|of: char| !of.is_ascii_uppercase() && of != '_').unwrap_or(name.len());
    Some(&name[..end])
}

/// A number of bytes in a message; the largest one stands for more than can be counted.
fn bytes(count: u64) -> String {
    if count == u64::MAX { "more bytes than can be addressed".to_owned() } else { format!("{count} bytes") }
}

/// A limit in a message.
fn limit(count: u64) -> String {
    if count == u64::MAX { "no limit set".to_owned() } else { format!("{count} bytes allowed") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_device_say_how_to_get_them() {
        let error = Error::NotOnHost { device: "cuda:1".to_owned() };
        assert_eq!(error.code(), Code::DeviceMismatch);
        assert_eq!(error.to_string(), "data is on cuda:1, expected cpu: toArray() or readInto() copies it from there");
        assert_eq!(
            error.details().iter().map(|detail| detail.name).collect::<Vec<_>>(),
            ["argument", "value", "expected"]
        );
    }

    #[test]
    fn a_drivers_error_keeps_its_name() {
        let said = "DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"an illegal memory access was encountered\")";
        let error = Error::Candle(candle_core::Error::Msg(said.to_owned()));
        let details = error.details();
        assert_eq!(details[1], Detail { name: "driverError", value: "CUDA_ERROR_ILLEGAL_ADDRESS".into() });
        assert_eq!(Error::Candle(candle_core::Error::Msg("no".to_owned())).details().len(), 1);
    }
}
