//! The source of a load: a file or memory, read at any offset and by several threads.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::fs::{Disk, Fs, FsFile};

/// A known number of bytes.
#[derive(Clone, Debug)]
pub struct Source {
    bytes: Bytes,
    len: u64,
}

#[derive(Clone, Debug)]
enum Bytes {
    File(Arc<dyn FsFile>, PathBuf),
    Memory(Arc<Vec<u8>>),
}

impl Source {
    /// Opens a file with its current length. Only regular files are opened, no FIFOs or devices.
    pub fn file(path: &Path) -> Result<Self> {
        Source::file_in(&Disk, path)
    }

    /// As [`Source::file`], in a file system.
    pub fn file_in(fs: &dyn Fs, path: &Path) -> Result<Self> {
        let (file, len) = fs.open(path).map_err(|reason| Error::io("open", path, reason))?;
        Ok(Source { bytes: Bytes::File(file.into(), path.to_owned()), len })
    }

    /// Creates a source from memory.
    #[must_use]
    pub fn bytes(bytes: impl Into<Arc<Vec<u8>>>) -> Self {
        let bytes = bytes.into();
        Source { len: bytes.len() as u64, bytes: Bytes::Memory(bytes) }
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads from a byte on. After an error, the content of `out` is undefined.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        if at.checked_add(out.len() as u64).is_none_or(|end| end > self.len) {
            return Err(Error::corrupt("the file", format!("{} bytes long", self.len), format!("more than {at}")));
        }
        match &self.bytes {
            Bytes::Memory(bytes) => out.copy_from_slice(&bytes[at as usize..at as usize + out.len()]),
            Bytes::File(file, path) => file.read_at(at, out).map_err(|reason| match reason.kind() {
                // The file was longer when it was opened.
                std::io::ErrorKind::UnexpectedEof => Error::corrupt(path.display(), "cut short", "as long as it was"),
                _ => Error::io("read", path, reason),
            })?,
        }
        Ok(())
    }
}
