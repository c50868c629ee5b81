//! Where a model's bytes lie. They are read by position, never mapped: a file that is cut short meanwhile is an error
//! and not the end of the process.

use std::fs::File;
use std::io;

/// A range of bytes in a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// Where it starts.
    pub offset: u64,
    /// How many bytes it has.
    pub length: u64,
}

impl Span {
    /// The offset behind its last byte.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// Bytes that are read by position.
pub trait Source {
    /// How many bytes there are.
    fn size(&self) -> u64;

    /// Fills `bytes` from `offset` on, or fails.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
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

impl Source for Vec<u8> {
    fn size(&self) -> u64 {
        self.as_slice().size()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_at(offset, bytes)
    }
}

/// A file, with the size that it had when it was opened.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    size: u64,
}

impl FileSource {
    /// Takes an open file; its position is not used.
    pub fn new(file: File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        Ok(Self { file, size })
    }
}

impl Source for FileSource {
    fn size(&self) -> u64 {
        self.size
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
