//! All errors of a cache: those of its planner, and those about tensors, memory and devices.

use kvtide_core::{BlockHolders, Code, Detail, DetailValue, counted, details, holding, there_are};

/// The result of a call on a cache.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error. The cache that returned it is unchanged, unless the error is [`Error::Poisoned`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the planner.
    #[error(transparent)]
    Plan(#[from] kvtide_core::Error),
    /// A tensor has the wrong shape.
    #[error("{argument} {} {value:?}, expected {expected}", if *argument == "shape" { "is" } else { "has shape" })]
    ShapeMismatch {
        /// The argument's public name.
        argument: &'static str,
        /// The given shape.
        value: Vec<usize>,
        /// The shapes that are accepted.
        expected: String,
    },
    /// A tensor has the wrong element type.
    #[error("{argument} is {value}, expected {expected}")]
    DtypeMismatch {
        /// The argument's public name.
        argument: &'static str,
        /// The given dtype.
        value: String,
        /// The dtypes that are accepted.
        expected: String,
    },
    /// A tensor is on the wrong device.
    #[error("{argument} is on {value}, expected {expected}")]
    DeviceMismatch {
        /// The argument's public name.
        argument: &'static str,
        /// The device of the tensor.
        value: String,
        /// The device that was expected.
        expected: String,
    },
    /// The bytes of a view were requested, but the view is in device memory that the host cannot address.
    #[error("data is on {device}, expected cpu; copy it with toArray() or readInto()")]
    NotOnHost {
        /// The device of the view.
        device: String,
    },
    /// One token's vector has the wrong number of elements.
    #[error("{argument} has {}, expected {expected}", counted(*actual, "element"))]
    DimMismatch {
        /// The argument's public name.
        argument: &'static str,
        /// The number of elements given.
        actual: u64,
        /// The number of elements of one token.
        expected: u64,
    },
    /// A group of layers has too few free blocks. No block was taken.
    #[error(
        "{} needed in group {group} of the layers, {} free{}",
        there_are(*needed, "block"), there_are(*free, ""), holding(*holders)
    )]
    OutOfBlocks {
        /// The index of the group.
        group: usize,
        /// The number of blocks needed.
        needed: u64,
        /// The number of free blocks.
        free: u64,
        /// The holders of the other blocks.
        holders: Option<BlockHolders>,
    },
    /// K or V of one layer, in a call with several layers, does not fit.
    #[error("layers[{place}].{error}")]
    InLayer {
        /// The layer's index in the call.
        place: usize,
        /// The error of that layer.
        error: Box<Error>,
    },
    /// The cache has overwritten a slot of the view.
    #[error("the view is stale: the cache has overwritten a slot that it shows; keep a copy with toArray() instead")]
    StaleView,
    /// The call needs contiguous memory, and the view is not contiguous.
    #[error("{operation} needs contiguous memory, but the view has {pieces}; copy it with toArray() or readInto()")]
    NotContiguous {
        /// The requested operation.
        operation: &'static str,
        /// The layout of the view.
        pieces: &'static str,
    },
    /// A memory limit is reached, or the allocator has no memory.
    #[error("cannot allocate {}: {used_bytes} bytes used, {}", bytes(*requested_bytes), limit(*limit_bytes))]
    OutOfMemory {
        /// The number of bytes requested.
        requested_bytes: u64,
        /// The number of bytes in use under the limit.
        used_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The object was disposed of, or the cache that a view shows.
    #[error("the {object} was disposed of")]
    Disposed {
        /// The kind of object.
        object: &'static str,
    },
    /// An earlier failure left the content undefined.
    #[error("the cache is poisoned: an earlier copy failed half-way")]
    Poisoned,
    /// A step was committed before all layers were written.
    #[error("the step cannot be committed: layers {layers:?} are not written")]
    StepIncomplete {
        /// The layers that are not written.
        layers: Vec<usize>,
    },
    /// The cache cannot be changed because a background call reads it or computes a step of it.
    #[error("a background call still uses the cache; change it after that call has ended")]
    Busy,
    /// The caller's abort signal ended the call.
    #[error("aborted by its signal")]
    Aborted,
    /// The device does not exist or cannot be used.
    #[error("device {device} cannot be used: {reason}")]
    DeviceUnavailable {
        /// The requested device.
        device: String,
        /// The reason.
        reason: String,
    },
    /// A launch on a device failed: the memory that it was to write is in an unknown state.
    #[error("{0}")]
    Launch(#[from] kvtide_cuda::Error),
    /// candle rejected an argument that was already checked: a bug in this library.
    #[error("internal error: {0}")]
    Candle(#[from] candle_core::Error),
}

impl Error {
    /// Makes the error of an argument that is out of bounds.
    pub fn argument(argument: &'static str, value: impl Into<DetailValue>, expected: impl Into<String>) -> Self {
        Error::Plan(kvtide_core::Error::argument(argument, value, expected))
    }

    /// Adds the index of the group of layers to an `OutOfBlocks` error; other errors stay as they are.
    pub(crate) fn in_group(self, group: usize) -> Self {
        match self {
            Error::Plan(kvtide_core::Error::OutOfBlocks { needed, free, holders }) => {
                Error::OutOfBlocks { group, needed, free, holders }
            }
            other => other,
        }
    }

    /// Adds the layer's index to an error about its K or V; other errors stay as they are.
    pub(crate) fn in_layer(self, place: usize) -> Self {
        let is_of =
            |detail: &Detail| detail.name == "argument" && ["k", "v"].map(DetailValue::from).contains(&detail.value);
        match self.details().iter().any(is_of) {
            true => Error::InLayer { place, error: Box::new(self) },
            false => self,
        }
    }

    /// The stable code of the error.
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

    /// The error's fields, named as in the public API of every language.
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
            &Error::OutOfBlocks { group, needed, free, holders } => {
                let mut details = kvtide_core::Error::OutOfBlocks { needed, free, holders }.details();
                details.extend(details![group: group]);
                details
            }
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

/// Finds the name of the driver's error in candle's message.
fn driver_error(reason: &str) -> Option<&str> {
    let name = &reason[reason.find("CUDA_ERROR_")?..];
    let end = name.find(|of: char| !of.is_ascii_uppercase() && of != '_').unwrap_or(name.len());
    Some(&name[..end])
}

/// Formats a number of bytes; `u64::MAX` stands for more than can be counted.
fn bytes(count: u64) -> String {
    if count == u64::MAX { "more bytes than can be addressed".to_owned() } else { format!("{count} bytes") }
}

/// Formats a limit; `u64::MAX` means none.
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
        assert_eq!(error.to_string(), "data is on cuda:1, expected cpu; copy it with toArray() or readInto()");
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
