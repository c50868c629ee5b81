//! Regular files. Only these are opened: opening a FIFO waits for its other end, and a device may do anything.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{Error, Result};
use std::path::Path;

/// Opens a regular file for reading, and returns it with its length. Never waits: the kind of the file is checked
/// before it is opened, and again afterwards in case it was replaced in between.
pub(crate) fn open(path: &Path) -> Result<(File, u64)> {
    check(fs::metadata(path)?.file_type())?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    let about = file.metadata()?;
    check(about.file_type())?;
    Ok((file, about.len()))
}

/// Refuses a path that has something other than a regular file, even behind a link. The path may be free.
pub(crate) fn check_target(path: &Path) -> Result<()> {
    match fs::metadata(path) {
        Ok(about) => check(about.file_type()),
        Err(reason) if reason.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(reason) => Err(reason),
    }
}

pub(crate) fn check(found: FileType) -> Result<()> {
    match found.is_file() {
        true => Ok(()),
        false => Err(Error::other(format!("it is {}, expected a regular file", kind(found)))),
    }
}

fn kind(of: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kinds = [
            (of.is_fifo(), "a FIFO"),
            (of.is_socket(), "a socket"),
            (of.is_char_device(), "a character device"),
            (of.is_block_device(), "a block device"),
        ];
        if let Some((_, kind)) = kinds.into_iter().find(|(is, _)| *is) {
            return kind;
        }
    }
    if of.is_dir() { "a folder" } else { "something else" }
}
