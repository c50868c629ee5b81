//! Access by paths, on systems without handles of folders.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{About, NO_FILE, NO_FOLDER, refused};

/// A folder that is not a link.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// Opens a folder.
    pub fn open(path: &Path) -> Result<Self> {
        let about = path.symlink_metadata()?;
        if about.is_dir() && !leads_elsewhere(&about) {
            Ok(Directory(path.to_owned()))
        } else {
            Err(refused(NO_FOLDER))
        }
    }

    /// Opens a folder, and creates it if it doesn't exist.
    pub fn make(path: &Path) -> Result<Self> {
        match std::fs::create_dir(path) {
            Err(reason) if reason.kind() != ErrorKind::AlreadyExists => Err(reason),
            _ => Directory::open(path),
        }
    }

    /// Opens a folder in it.
    pub fn folder(&self, name: &str) -> Result<Self> {
        Directory::open(&self.place(name)?)
    }

    /// Opens a folder in it, and creates it if it doesn't exist.
    pub fn make_folder(&self, name: &str) -> Result<Self> {
        Directory::make(&self.place(name)?)
    }

    /// Returns the path of something in it, after checking that it is still a folder.
    fn place(&self, name: &str) -> Result<PathBuf> {
        Ok(Directory::open(&self.0)?.0.join(name))
    }

    /// Opens a file for reading. Its time can be set.
    pub fn read(&self, name: &str) -> Result<File> {
        self.about(name)?;
        self.file(name, OpenOptions::new().read(true).write(true))
    }

    /// Creates a file for writing. Refused if the name exists.
    pub fn create(&self, name: &str) -> Result<File> {
        self.file(name, OpenOptions::new().write(true).create_new(true))
    }

    /// Opens a file for reading and writing, and creates it if it doesn't exist.
    pub fn open_or_make(&self, name: &str) -> Result<File> {
        match self.about(name) {
            Err(reason) if reason.kind() != ErrorKind::NotFound => Err(reason),
            _ => self.file(name, OpenOptions::new().read(true).write(true).create(true).truncate(false)),
        }
    }

    fn file(&self, name: &str, how: &mut OpenOptions) -> Result<File> {
        let file = as_itself(how).open(self.place(name)?)?;
        let about = file.metadata()?;
        if about.is_file() && !leads_elsewhere(&about) { Ok(file) } else { Err(refused(NO_FILE)) }
    }

    /// Returns the properties of a file. Refused unless it is a regular file.
    pub fn about(&self, name: &str) -> Result<About> {
        let about = self.place(name)?.symlink_metadata()?;
        if !about.is_file() || leads_elsewhere(&about) {
            return Err(refused(NO_FILE));
        }
        Ok(About { bytes: about.len(), modified: about.modified().unwrap_or(SystemTime::UNIX_EPOCH) })
    }

    /// Removes a regular file.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.about(name)?;
        std::fs::remove_file(self.place(name)?)
    }

    /// Renames a file, and replaces any file of the new name.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        std::fs::rename(self.place(from)?, self.place(to)?)
    }

    /// Returns all names in it that are text.
    pub fn names(&self) -> Result<Vec<String>> {
        Directory::open(&self.0)?;
        let names = std::fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }
}

/// True for a link or a junction.
#[cfg(windows)]
fn leads_elsewhere(about: &Metadata) -> bool {
    const FILE_ATTRIBUTE_REPARSE_POINT: u32 = 0x400;
    std::os::windows::fs::MetadataExt::file_attributes(about) & FILE_ATTRIBUTE_REPARSE_POINT != 0
}

/// True for a link.
#[cfg(not(windows))]
fn leads_elsewhere(about: &Metadata) -> bool {
    about.is_symlink()
}

/// Opens the file itself instead of a link's target.
fn as_itself(how: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(windows)]
    {
        const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x0020_0000;
        std::os::windows::fs::OpenOptionsExt::custom_flags(how, FILE_FLAG_OPEN_REPARSE_POINT);
    }
    how
}
