//! Sources of a model's bytes. They are read by position, never mapped: if another process truncates the file, reading
//! returns an error instead of crashing the process.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::regular;

/// A range of bytes in a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
}

impl Span {
    /// The offset behind the last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// Bytes that are read by position.
pub trait Source {
    /// The number of bytes.
    fn size(&self) -> u64;

    /// Fills `bytes` from `offset` on, or returns an error.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Like `read_at`, for a file in the model's folder that contains small tensors. A source without a folder returns
    /// an `Unsupported` error; such tensors are then unknown.
    fn read_beside(&self, _file: &str, _offset: u64, _bytes: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The number of bytes of a file in the model's folder. A source without a folder returns an `Unsupported` error.
    fn size_beside(&self, _file: &str) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Source for [u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let found = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..start.checked_add(bytes.len())?))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(found);
        Ok(())
    }
}

impl<T: Source + ?Sized> Source for &T {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, bytes)
    }

    fn read_beside(&self, file: &str, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        (**self).read_beside(file, offset, bytes)
    }

    fn size_beside(&self, file: &str) -> io::Result<u64> {
        (**self).size_beside(file)
    }
}

impl Source for Vec<u8> {
    fn size(&self) -> u64 {
        self.as_slice().size()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_at(offset, bytes)
    }
}

/// A file, with its size when it was opened.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    size: u64,
    folder: Option<PathBuf>,
}

impl FileSource {
    /// Returns a source for an open file; the file's position is not used.
    pub fn new(file: File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        Ok(Self { file, size, folder: None })
    }

    /// Opens a file, and reads small tensors in files next to it. Returns an error unless it is a regular file: a
    /// FIFO or a device is not opened.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let folder = path.as_ref().parent().map(Path::to_owned);
        Ok(Self { folder, ..Self::regular(path.as_ref())? })
    }

    fn regular(path: &Path) -> io::Result<Self> {
        let (file, size) = regular::open(path)?;
        Ok(Self { file, size, folder: None })
    }
}

impl Source for FileSource {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_beside(&self, file: &str, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let folder = self.folder.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        Self::regular(&folder.join(file))?.read_at(offset, bytes)
    }

    fn size_beside(&self, file: &str) -> io::Result<u64> {
        let folder = self.folder.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let found = folder.join(file).metadata()?;
        if found.is_file() { Ok(found.len()) } else { Err(io::Error::other("it is not a file")) }
    }

    #[cfg(unix)]
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, bytes, offset)
    }

    #[cfg(windows)]
    fn read_at(&self, mut offset: u64, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let read = std::os::windows::fs::FileExt::seek_read(&self.file, bytes, offset)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            offset += read as u64;
            bytes = &mut bytes[read..];
        }
        Ok(())
    }

    #[cfg(not(any(unix, windows)))]
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        let mut file = &self.file;
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(bytes)
    }
}
