//! The file system of saves and loads, as traits: [`Disk`] is the real one, and tests replace it.
//!
//! A save calls `check_target`, `names` and `modified` (to sweep), `create`, `write_at`, `read_at`, `cut`, `flush`,
//! `rename`, `flush_folder`, and `remove` if it fails. A load calls `open` and `read_at`.

use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::Result;
use std::path::Path;
use std::time::SystemTime;

use crate::regular;

/// A file system.
pub trait Fs: Debug + Send + Sync {
    /// Opens a regular file for reading, and returns it with its length. Refuses everything else, and never waits.
    fn open(&self, path: &Path) -> Result<(Box<dyn FsFile>, u64)>;

    /// Creates a file for reading and writing, for its owner alone. Refused if the path exists.
    fn create(&self, path: &Path) -> Result<Box<dyn FsFile>>;

    /// Refuses a path that has something other than a regular file, even behind a link. The path may be free.
    fn check_target(&self, path: &Path) -> Result<()>;

    /// Renames a file, and replaces any file of the new name.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> Result<()>;

    /// Makes the names in a folder durable.
    fn flush_folder(&self, folder: &Path) -> Result<()>;

    /// Returns all names in a folder.
    fn names(&self, folder: &Path) -> Result<Vec<OsString>>;

    /// Returns the time of a file's last change. Refused unless it is a regular file.
    fn modified(&self, path: &Path) -> Result<SystemTime>;

    /// Returns the time.
    fn now(&self) -> SystemTime;
}

/// An open file.
pub trait FsFile: Debug + Send + Sync {
    /// Reads from a byte on. Refused if the file ends before `out` is full.
    fn read_at(&self, at: u64, out: &mut [u8]) -> Result<()>;

    /// Writes from a byte on.
    fn write_at(&self, at: u64, bytes: &[u8]) -> Result<()>;

    /// Cuts the file off at a byte.
    fn cut(&self, len: u64) -> Result<()>;

    /// Makes the content durable.
    fn flush(&self) -> Result<()>;
}

/// The file system of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Disk;

impl Fs for Disk {
    fn open(&self, path: &Path) -> Result<(Box<dyn FsFile>, u64)> {
        let (file, len) = regular::open(path)?;
        Ok((Box::new(file), len))
    }

    fn create(&self, path: &Path) -> Result<Box<dyn FsFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Ok(Box::new(options.open(path)?))
    }

    fn check_target(&self, path: &Path) -> Result<()> {
        regular::check_target(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        fs::remove_file(path)
    }

    /// Windows has no call for it.
    fn flush_folder(&self, folder: &Path) -> Result<()> {
        #[cfg(unix)]
        File::open(folder)?.sync_all()?;
        let _ = folder;
        Ok(())
    }

    fn names(&self, folder: &Path) -> Result<Vec<OsString>> {
        fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn modified(&self, path: &Path) -> Result<SystemTime> {
        let about = fs::symlink_metadata(path)?;
        regular::check(about.file_type())?;
        about.modified()
    }

    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

impl FsFile for File {
    #[cfg(unix)]
    fn read_at(&self, at: u64, out: &mut [u8]) -> Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, out, at)
    }

    #[cfg(windows)]
    fn read_at(&self, mut at: u64, mut out: &mut [u8]) -> Result<()> {
        while !out.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(self, out, at)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                read => {
                    at += read as u64;
                    out = &mut out[read..];
                }
            }
        }
        Ok(())
    }

    #[cfg(unix)]
    fn write_at(&self, at: u64, bytes: &[u8]) -> Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, at)
    }

    #[cfg(windows)]
    fn write_at(&self, mut at: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match std::os::windows::fs::FileExt::seek_write(self, bytes, at)? {
                0 => return Err(std::io::ErrorKind::WriteZero.into()),
                written => {
                    at += written as u64;
                    bytes = &bytes[written..];
                }
            }
        }
        Ok(())
    }

    fn cut(&self, len: u64) -> Result<()> {
        self.set_len(len)
    }

    fn flush(&self) -> Result<()> {
        self.sync_all()
    }
}
