//! Access by the handles of folders.

use std::fs::File;
use std::io::Result;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

#[cfg(test)]
use super::fails;
use super::{About, NO_FILE, NO_FOLDER, refused};

/// A folder of this user.
#[derive(Debug)]
pub(crate) struct Directory {
    handle: OwnedFd,
    /// The user's number.
    owner: u32,
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Opening a pipe does not wait.
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
const PRIVATE_FOLDER: Mode = Mode::RWXU;
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

impl Directory {
    /// Opens a folder.
    pub fn open(path: &Path) -> Result<Self> {
        #[cfg(test)]
        fails::point("open")?;
        Directory::checked(rustix::fs::open(path, FOLDER, Mode::empty()), own_user()?)
    }

    /// Opens a folder, and creates it for its owner alone if it doesn't exist.
    pub fn make(path: &Path) -> Result<Self> {
        match rustix::fs::mkdirat(CWD, path, PRIVATE_FOLDER) {
            Err(reason) if reason != Errno::EXIST => Err(reason.into()),
            _ => Directory::open(path),
        }
    }

    /// Opens a folder in it.
    pub fn folder(&self, name: &str) -> Result<Self> {
        #[cfg(test)]
        fails::point("folder")?;
        Directory::checked(rustix::fs::openat(&self.handle, name, FOLDER, Mode::empty()), self.owner)
    }

    /// Opens a folder in it, and creates it if it doesn't exist.
    pub fn make_folder(&self, name: &str) -> Result<Self> {
        #[cfg(test)]
        fails::point("make_folder")?;
        match self.folder(name) {
            Err(reason) if reason.kind() == std::io::ErrorKind::NotFound => {
                match rustix::fs::mkdirat(&self.handle, name, PRIVATE_FOLDER) {
                    Err(reason) if reason != Errno::EXIST => Err(reason.into()),
                    _ => self.folder(name),
                }
            }
            opened => opened,
        }
    }

    fn checked(opened: rustix::io::Result<OwnedFd>, owner: u32) -> Result<Self> {
        let handle = opened.map_err(|reason| match reason {
            // Systems report a link with different errors.
            Errno::LOOP | Errno::MLINK | Errno::NOTDIR => refused(NO_FOLDER),
            reason => reason.into(),
        })?;
        let about = rustix::fs::fstat(&handle)?;
        if about.st_uid != owner {
            return Err(refused(format!("it belongs to user {}, and this process runs as user {owner}", about.st_uid)));
        }
        if Mode::from_raw_mode(about.st_mode).intersects(Mode::WGRP | Mode::WOTH) {
            return Err(refused("others may write to it; chmod go-w would keep them out"));
        }
        Ok(Directory { handle, owner })
    }

    /// Opens a file for reading. Its time can be set.
    pub fn read(&self, name: &str) -> Result<File> {
        self.file(name, OFlags::RDONLY)
    }

    /// Creates a file for writing, for its owner alone. Refused if the name exists.
    pub fn create(&self, name: &str) -> Result<File> {
        self.file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
    }

    /// Opens a file for reading and writing, and creates it if it doesn't exist.
    pub fn open_or_make(&self, name: &str) -> Result<File> {
        self.file(name, OFlags::RDWR | OFlags::CREATE)
    }

    fn file(&self, name: &str, how: OFlags) -> Result<File> {
        #[cfg(test)]
        fails::point("file")?;
        let opened = rustix::fs::openat(&self.handle, name, how | FILE, PRIVATE_FILE);
        let file = File::from(opened.map_err(|reason| match reason {
            Errno::LOOP | Errno::MLINK => refused(NO_FILE),
            reason => reason.into(),
        })?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(refused(NO_FILE)) }
    }

    /// Returns the properties of a file. Refused unless it is a regular file.
    pub fn about(&self, name: &str) -> Result<About> {
        #[cfg(test)]
        fails::point("about")?;
        let about = rustix::fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(about.st_mode) {
            FileType::RegularFile => {
                Ok(About { bytes: about.st_size.try_into().unwrap_or(0), modified: modified(&about) })
            }
            _ => Err(refused(NO_FILE)),
        }
    }

    /// Removes a regular file.
    pub fn remove(&self, name: &str) -> Result<()> {
        #[cfg(test)]
        fails::point("remove")?;
        self.about(name)?;
        Ok(rustix::fs::unlinkat(&self.handle, name, AtFlags::empty())?)
    }

    /// Renames a file, and replaces any file of the new name.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        #[cfg(test)]
        fails::point("rename")?;
        Ok(rustix::fs::renameat(&self.handle, from, &self.handle, to)?)
    }

    /// Returns all names in it that are text.
    pub fn names(&self) -> Result<Vec<String>> {
        #[cfg(test)]
        fails::point("names")?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.handle)? {
            match entry?.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        Ok(names)
    }
}

/// Returns the number of the user who owns the files that this process creates.
fn own_user() -> Result<u32> {
    let (reader, _) = std::io::pipe()?;
    Ok(File::from(OwnedFd::from(reader)).metadata()?.uid())
}

/// Returns the time of a file; systems differ in the types of its parts.
fn modified(of: &Stat) -> SystemTime {
    let (seconds, rest) = (u64::try_from(of.st_mtime), u32::try_from(of.st_mtime_nsec));
    SystemTime::UNIX_EPOCH + Duration::new(seconds.unwrap_or(0), rest.unwrap_or(0).min(999_999_999))
}
