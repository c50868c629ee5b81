//! The target of a save: memory, or a file that is replaced in one step, so that the path always has the old file or
//! the new one.
//!
//! ```text
//! chat.kv.1f03a9c2.tmp    written, flushed        a process that dies leaves this, and the old chat.kv
//! chat.kv                 renamed over            then the folder is flushed
//! ```
//!
//! If the folder cannot be flushed, the save fails although the path has the new file: after a power failure, it may
//! have the old one again.
//!
//! An unfinished temporary file is removed by the next save of that name, once it is an hour old. Files are readable by
//! their owner alone, because they contain prompts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use crate::fs::{Disk, Fs, FsFile};

/// The age at which a temporary file counts as left behind.
const STALE: Duration = Duration::from_secs(60 * 60);

/// The target of a save.
#[derive(Debug)]
pub struct Sink(To);

#[derive(Debug)]
enum To {
    Memory(Vec<u8>, usize),
    File(TemporaryFile),
}

impl Sink {
    /// Creates a sink for a file, which gets this path once it is finished. The folder must exist. A path with
    /// something other than a regular file is refused: a folder, a FIFO, a socket or a device, even behind a link.
    pub fn file(path: &Path) -> Result<Self> {
        Sink::file_in(Arc::new(Disk), path)
    }

    /// As [`Sink::file`], in a file system.
    pub fn file_in(fs: Arc<dyn Fs>, path: &Path) -> Result<Self> {
        Ok(Sink(To::File(TemporaryFile::new(fs, path)?)))
    }

    /// Creates a sink in memory.
    #[must_use]
    pub fn memory() -> Self {
        Sink(To::Memory(Vec::new(), 0))
    }

    /// Writes at the current position.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.0 {
            To::File(file) => {
                file.run("write", |file, at| file.write_at(at, bytes))?;
                file.at += bytes.len() as u64;
                Ok(())
            }
            To::Memory(memory, at) => {
                let end = *at + bytes.len();
                if end > memory.len() {
                    let missing = end - memory.len();
                    memory.try_reserve(missing).map_err(|_| out_of_memory(missing))?;
                    memory.resize(end, 0);
                }
                memory[*at..end].copy_from_slice(bytes);
                *at = end;
                Ok(())
            }
        }
    }

    /// Moves to a byte that was written, or to the end.
    pub(crate) fn go(&mut self, at: u64) {
        match &mut self.0 {
            To::File(file) => file.at = at,
            To::Memory(_, place) => *place = at as usize,
        }
    }

    /// Reads written bytes from the current position.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> Result<()> {
        match &mut self.0 {
            To::File(file) => {
                file.run("read", |file, at| file.read_at(at, out))?;
                file.at += out.len() as u64;
                Ok(())
            }
            To::Memory(memory, at) => {
                out.copy_from_slice(&memory[*at..*at + out.len()]);
                *at += out.len();
                Ok(())
            }
        }
    }

    /// Cuts the file off at a byte.
    pub(crate) fn cut(&mut self, at: u64) -> Result<()> {
        match &mut self.0 {
            To::File(file) => file.run("write", |file, _| file.cut(at)),
            To::Memory(memory, _) => {
                memory.truncate(at as usize);
                Ok(())
            }
        }
    }

    /// Moves the file to its final path; returns the bytes if the sink is memory.
    pub(crate) fn finish(self) -> Result<Vec<u8>> {
        match self.0 {
            To::Memory(memory, _) => Ok(memory),
            To::File(file) => file.finish().map(|()| Vec::new()),
        }
    }
}

fn out_of_memory(bytes: usize) -> Error {
    let (requested_bytes, used_bytes) = (bytes as u64, 0);
    kvtide_tensor::Error::OutOfMemory { requested_bytes, used_bytes, limit_bytes: u64::MAX }.into()
}

/// A file before it gets its final path. If it is dropped unfinished, it is removed.
#[derive(Debug)]
struct TemporaryFile {
    fs: Arc<dyn Fs>,
    /// None once the file has its final path.
    file: Option<Box<dyn FsFile>>,
    /// The current position.
    at: u64,
    temporary: PathBuf,
    path: PathBuf,
}

impl TemporaryFile {
    fn new(fs: Arc<dyn Fs>, path: &Path) -> Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let Some(name) = path.file_name() else {
            return Err(Error::io("write", path, std::io::Error::other("it names no file")));
        };
        fs.check_target(path).map_err(|reason| Error::io("write", path, reason))?;
        sweep_in(&*fs, path);
        // A unique name: the process id, the clock, and a count within the process.
        let clock = fs.now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
        let own = (u64::from(std::process::id()) << 32) ^ u64::from(clock) ^ MADE.fetch_add(1, Ordering::Relaxed) << 48;
        let mut temporary = name.to_owned();
        temporary.push(format!(".{own:016x}.tmp"));
        let temporary = path.with_file_name(temporary);
        let file = fs.create(&temporary).map_err(|reason| Error::io("create", &temporary, reason))?;
        Ok(TemporaryFile { fs, file: Some(file), at: 0, temporary, path: path.to_owned() })
    }

    /// Passes the file and the current position to `work`.
    fn run<T>(&self, operation: &'static str, work: impl FnOnce(&dyn FsFile, u64) -> std::io::Result<T>) -> Result<T> {
        let file = self.file.as_deref().expect("a file that is not finished");
        work(file, self.at).map_err(|reason| Error::io(operation, &self.temporary, reason))
    }

    fn finish(mut self) -> Result<()> {
        self.run("flush", |file, _| file.flush())?;
        self.fs.check_target(&self.path).map_err(|reason| Error::io("write", &self.path, reason))?;
        self.file = None;
        self.fs.rename(&self.temporary, &self.path).map_err(|reason| {
            let _ = self.fs.remove(&self.temporary);
            Error::io("rename", &self.path, reason)
        })?;
        let folder = folder_of(&self.path);
        self.fs.flush_folder(folder).map_err(|reason| Error::io("flush", folder, reason))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            // A file that cannot be removed now is swept by a later save.
            let _ = self.fs.remove(&self.temporary);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Removes temporary files that earlier saves of a path left behind. Those that cannot be removed stay.
pub fn sweep(path: &Path) {
    sweep_in(&Disk, path);
}

fn sweep_in(fs: &dyn Fs, path: &Path) {
    let (Some(name), folder) = (path.file_name().and_then(|name| name.to_str()), folder_of(path)) else { return };
    for file in fs.names(folder).unwrap_or_default() {
        let own = file.to_str().and_then(|file| file.strip_prefix(name)?.strip_prefix('.')?.strip_suffix(".tmp"));
        let is_ours = own.is_some_and(|own| own.len() == 16 && own.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let age = || fs.now().duration_since(fs.modified(&folder.join(&file)).ok()?).ok();
        if is_ours && age().is_some_and(|age| age > STALE) {
            let _ = fs.remove(&folder.join(&file));
        }
    }
}
