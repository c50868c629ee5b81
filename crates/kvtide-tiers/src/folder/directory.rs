//! Access to a folder of this user and to the files in it, without following a link.
//!
//! ```text
//! Directory   open, make          a folder by its path, whose last part is not a link
//!             folder, make_folder a folder in it                    read, create, open_or_make   a regular file in it
//!             about, names        its content                       remove, rename               a regular file
//! ```
//!
//! A folder is refused if it is a link, if it belongs to another user, or if others may write to it. Anything in it
//! that is neither a folder nor a regular file is refused as well, and never removed.
//!
//! On Unix (`by_handle.rs`), everything is opened relative to the handle of the checked folder: even if a folder is
//! replaced by a link between two calls, no call leaves the folder. Elsewhere (`by_path.rs`), each call first looks for
//! links and junctions, and files are opened without following them; users and rights are left to the system's access
//! lists, and a replacement during a call is not noticed.

use std::fs::File;
use std::io::{Result, Write};
use std::time::SystemTime;

#[cfg(unix)]
mod by_handle;
#[cfg(any(not(unix), test))]
mod by_path;

#[cfg(unix)]
pub(crate) use by_handle::Directory;
#[cfg(not(unix))]
pub(crate) use by_path::Directory;

/// The properties of a regular file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    /// Its length in bytes.
    pub bytes: u64,
    /// The time of its last change.
    pub modified: SystemTime,
}

fn refused(why: impl Into<String>) -> std::io::Error {
    std::io::Error::other(why.into())
}

/// Writes to a file.
pub(crate) fn write(file: &mut File, bytes: &[u8]) -> Result<()> {
    #[cfg(all(test, unix))]
    if let Err(reason) = fails::point("write") {
        // A disk that is full has written a part.
        file.write_all(&bytes[..bytes.len() / 2])?;
        return Err(reason);
    }
    file.write_all(bytes)
}

const NO_FOLDER: &str = "it is a link, or no folder";
const NO_FILE: &str = "it is not a regular file";

#[cfg(all(test, unix))]
pub(crate) mod fails;
#[cfg(test)]
mod tests;
