//! A disk in memory that fails when a test says so, and loses power: content that was not flushed is dropped, kept or
//! torn, and renames that were not flushed happen in any order or not at all.
//!
//! ```text
//! file      durable bytes, then the writes since the last flush        flush: all of them are durable
//! folder    durable names, then the changes since the last flush       flush_folder: all of them are durable
//! ```
//!
//! A flush of a file does not make its name durable. A flush that fails drops what it should have written: a later
//! flush that succeeds does not bring it back.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use kvtide_files::{Fs, FsFile};

use crate::world::Random;

/// The bytes that a disk writes as a whole.
const SECTOR: usize = 512;

/// The behaviour of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call fails; a write, after half of its bytes.
    Fails(ErrorKind),
    /// The power fails before the call: it and all later ones fail, and change nothing.
    PowerFails,
}

#[derive(Debug, Default)]
pub struct SimDisk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    files: Vec<Content>,
    names: BTreeMap<PathBuf, usize>,
    durable: BTreeMap<PathBuf, usize>,
    /// The changes of names that are not durable: each is made as a whole.
    changes: Vec<Vec<(PathBuf, Option<usize>)>>,
    clock: Duration,
    /// The calls so far, and the ones that misbehave.
    calls: Vec<&'static str>,
    faults: BTreeMap<usize, Fault>,
    is_down: bool,
}

#[derive(Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    writes: Vec<Write>,
    modified: Duration,
}

#[derive(Clone, Debug)]
enum Write {
    At(usize, Vec<u8>),
    Cut(usize),
}

impl Write {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Write::At(at, new) => {
                bytes.resize(bytes.len().max(at + new.len()), 0);
                bytes[*at..at + new.len()].copy_from_slice(new);
            }
            Write::Cut(len) => bytes.resize(*len, 0),
        }
    }

    /// Applies some of the sectors.
    fn tear(&self, bytes: &mut Vec<u8>, random: &mut Random) {
        let Write::At(at, new) = self else { return };
        for (piece, part) in new.chunks(SECTOR).enumerate() {
            if random.below(2) == 0 {
                Write::At(at + piece * SECTOR, part.to_vec()).apply(bytes);
            }
        }
    }
}

impl State {
    /// Counts a call. Returns its error, if it is to fail.
    fn call(&mut self, name: &'static str) -> Result<()> {
        let fault = self.faults.get(&self.calls.len()).copied();
        self.calls.push(name);
        self.is_down |= fault == Some(Fault::PowerFails);
        match fault {
            _ if self.is_down => Err(Error::other("the machine is down")),
            Some(Fault::Fails(kind)) => Err(kind.into()),
            _ => Ok(()),
        }
    }

    fn change(&mut self, change: Vec<(PathBuf, Option<usize>)>) {
        apply(&mut self.names, &change);
        self.changes.push(change);
    }

    fn number(&self, path: &Path) -> Result<usize> {
        self.names.get(path).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn write(&mut self, file: usize, write: Write) {
        let now = self.clock;
        let content = &mut self.files[file];
        write.apply(&mut content.bytes);
        content.writes.push(write);
        content.modified = now;
    }
}

fn apply(names: &mut BTreeMap<PathBuf, usize>, change: &[(PathBuf, Option<usize>)]) {
    for (path, file) in change {
        match file {
            Some(file) => drop(names.insert(path.clone(), *file)),
            None => drop(names.remove(path)),
        }
    }
}

impl SimDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the names of all calls since the last time, and forgets them.
    pub fn take_calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.state().calls)
    }

    /// Sets the calls that misbehave, counted from the next one on.
    pub fn set_faults(&self, faults: &[(usize, Fault)]) {
        let mut state = self.state();
        state.calls.clear();
        state.faults = faults.iter().copied().collect();
    }

    /// Makes all calls fail: those of a process that was killed.
    pub fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    pub fn advance(&self, by: Duration) {
        self.state().clock += by;
    }

    /// Sets the time back, as a clock that is corrected does.
    pub fn set_clock(&self, to: Duration) {
        self.state().clock = to;
    }

    /// Returns the content of a file.
    pub fn bytes(&self, path: &Path) -> Vec<u8> {
        let state = self.state();
        state.files[state.names[path]].bytes.clone()
    }

    pub fn files(&self) -> Vec<PathBuf> {
        self.state().names.keys().cloned().collect()
    }

    /// Cuts the power, and starts the machine again: returns nothing that was not flushed, all of it, or any part.
    pub fn lose_power(&self, seed: u64) {
        let random = &mut Random(seed);
        // Everything is kept, nothing is, or each write and change has its own fate.
        let fate = random.below(4);
        let fate = |random: &mut Random| if fate < 2 { fate } else { random.below(3) };
        let mut state = self.state();
        for content in &mut state.files {
            let mut bytes = std::mem::take(&mut content.durable);
            for write in std::mem::take(&mut content.writes) {
                match fate(random) {
                    0 => {}
                    1 => write.apply(&mut bytes),
                    _ => write.tear(&mut bytes, random),
                }
            }
            (content.bytes, content.durable) = (bytes.clone(), bytes);
        }
        for change in std::mem::take(&mut state.changes) {
            if fate(random) > 0 {
                apply(&mut state.durable, &change);
            }
        }
        state.names = state.durable.clone();
        state.faults.clear();
        state.is_down = false;
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    file: usize,
}

impl Fs for SimDisk {
    fn open(&self, path: &Path) -> Result<(Box<dyn FsFile>, u64)> {
        let mut state = self.state();
        state.call("open")?;
        let file = state.number(path)?;
        let len = state.files[file].bytes.len() as u64;
        Ok((Box::new(SimFile { disk: SimDisk(self.0.clone()), file }), len))
    }

    fn create(&self, path: &Path) -> Result<Box<dyn FsFile>> {
        let mut state = self.state();
        state.call("create")?;
        if state.names.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let (file, modified) = (state.files.len(), state.clock);
        state.files.push(Content { modified, ..Content::default() });
        state.change(vec![(path.to_owned(), Some(file))]);
        Ok(Box::new(SimFile { disk: SimDisk(self.0.clone()), file }))
    }

    fn check_target(&self, _: &Path) -> Result<()> {
        self.state().call("check_target")
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let mut state = self.state();
        state.call("rename")?;
        let file = state.number(from)?;
        state.change(vec![(from.to_owned(), None), (to.to_owned(), Some(file))]);
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<()> {
        let mut state = self.state();
        state.call("remove")?;
        state.number(path)?;
        state.change(vec![(path.to_owned(), None)]);
        Ok(())
    }

    fn flush_folder(&self, _: &Path) -> Result<()> {
        let mut state = self.state();
        state.call("flush_folder")?;
        state.changes.clear();
        state.durable = state.names.clone();
        Ok(())
    }

    fn names(&self, folder: &Path) -> Result<Vec<OsString>> {
        let mut state = self.state();
        state.call("names")?;
        let inside = state.names.keys().filter(|path| path.parent() == Some(folder));
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_owned())).collect())
    }

    fn modified(&self, path: &Path) -> Result<SystemTime> {
        let mut state = self.state();
        state.call("modified")?;
        let file = state.number(path)?;
        Ok(SystemTime::UNIX_EPOCH + state.files[file].modified)
    }

    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.state().clock
    }
}

impl FsFile for SimFile {
    fn read_at(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let mut state = self.disk.state();
        state.call("read_at")?;
        let bytes = &state.files[self.file].bytes;
        let found = bytes.get(at as usize..at as usize + out.len());
        out.copy_from_slice(found.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.disk.state();
        let called = state.call("write_at");
        if state.is_down {
            return called;
        }
        let written = if called.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        state.write(self.file, Write::At(at as usize, written.to_vec()));
        called
    }

    fn cut(&self, len: u64) -> Result<()> {
        let mut state = self.disk.state();
        state.call("cut")?;
        state.write(self.file, Write::Cut(len as usize));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.disk.state();
        let called = state.call("flush");
        if state.is_down {
            return called;
        }
        let content = &mut state.files[self.file];
        for write in std::mem::take(&mut content.writes).iter().filter(|_| called.is_ok()) {
            write.apply(&mut content.durable);
        }
        called
    }
}
