//! Apple GPUs through candle's operations: opened once per process.

use std::sync::Mutex;

use candle_core::Device;

use crate::base::lock::lock;

/// Opens the GPU, or returns the reason why it cannot be used.
pub(super) fn open() -> Result<Device, String> {
    static OPENED: Mutex<Option<Device>> = Mutex::new(None);
    let mut opened = lock(&OPENED);
    if let Some(device) = &*opened {
        return Ok(device.clone());
    }
    let device = Device::new_metal(0).map_err(|error| error.to_string())?;
    *opened = Some(device.clone());
    Ok(device)
}
