//! A folder of entries, each under its key: a store without a server, for any number of processes at once.
//!
//! ```text
//! folder/usage             bytes of all entries, and a checksum: counted again if it is missing or damaged
//! folder/3f/3f0a….0.1c…    an entry, by the first byte of its key; 0600, and never a link
//! folder/3f/.….tmp         an entry that is being written: renamed when it is complete
//! ```
//!
//! Each call opens the folder again, and files relative to it, without following links (`directory`). Only files opened
//! in this way are read, written, renamed or removed.
//!
//! An entry never changes, so processes that write the same entry write the same bytes, and readers need no lock. An
//! entry that a crash cut short has a wrong checksum, and is a miss.
//!
//! The limit holds for all processes together. A process that adds entries counts them in `usage`, under a lock of that
//! file. A process that exceeds the limit evicts the least recently used entries, down to nine tenths of the limit, and
//! counts the rest. Reading an entry sets its time. If the lock cannot be taken within 100 ms, because its owner was
//! stopped, the count is updated later. O(1) for each entry; O(entries) for an eviction.

mod directory;
#[cfg(all(test, unix))]
mod failing;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use kvtide_files::{Error, Result};
use twox_hash::XxHash3_64;

use crate::entry::StoreKey;
use crate::store::Store;
use directory::{About, Directory};

/// The longest wait for the lock of the count.
const LOCK_WAIT: Duration = Duration::from_millis(100);

/// The age from which a read sets an entry's time.
const TOUCHED: Duration = Duration::from_secs(1);

/// The age from which a temporary file counts as left behind.
const STALE: Duration = Duration::from_secs(60 * 60);

const USAGE: &str = "usage";

/// The number of digits in the name of a folder of entries.
const SHARD: usize = 2;

/// The most evicted entries to remember until they are asked for.
const EVICTED_MAX: usize = 1 << 16;

/// A store in a folder.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    limit: u64,
    /// Bytes that were added or removed and are not counted in `usage` yet.
    uncounted: AtomicI64,
    made: AtomicU64,
    /// Entries that this process evicted, until they are asked for.
    evicted: Mutex<Vec<StoreKey>>,
}

/// The entries of a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FolderUsage {
    /// The number of entries.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// An entry in the folder: the name of its subfolder, and its own.
struct Found {
    shard: String,
    name: String,
    about: About,
}

impl Folder {
    /// Opens a folder, and creates it if it doesn't exist. Refused if it is a link, if it belongs to another user, or
    /// if others may write to it. O(entries).
    pub fn open(root: &Path, limit: u64) -> Result<Self> {
        let folder = Folder::open_untidied(root, limit)?;
        folder.tidy();
        Ok(folder)
    }

    /// As [`Folder::open`], without reading the entries: call [`Folder::tidy`] later. O(1).
    pub fn open_untidied(root: &Path, limit: u64) -> Result<Self> {
        // A slash at the end would follow a link.
        let root: PathBuf = root.components().collect();
        if let Some(parent) = root.parent() {
            fs::create_dir_all(parent).map_err(|reason| Error::io("create", parent, reason))?;
        }
        Directory::make(&root).map_err(|reason| Error::io("open", &root, reason))?;
        Ok(Folder { root, limit, uncounted: AtomicI64::new(0), made: AtomicU64::new(0), evicted: Mutex::default() })
    }

    /// Removes temporary files that other processes left behind, and counts the entries. O(entries).
    pub fn tidy(&self) {
        self.sweep();
        if let Some(mut file) = self.lock() {
            // A process that was killed during a call has not counted the entries it added.
            let _ = write_count(&mut file, self.make_room());
        }
    }

    /// Returns the bytes of all entries as last counted; counts them again if the count cannot be read.
    #[must_use]
    pub fn counted_bytes(&self) -> u64 {
        let counted = self.lock().and_then(|mut file| read_count(&mut file));
        counted.unwrap_or_else(|| self.usage().bytes)
    }

    fn root(&self) -> Result<Directory> {
        Directory::open(&self.root).map_err(|reason| Error::io("open", &self.root, reason))
    }

    /// Adds entries that do not exist yet. If one cannot be written, returns an error; the others are written all the
    /// same.
    pub fn write(&self, entries: &[(String, &[u8])]) -> Result<()> {
        self.add_all(entries).1
    }

    /// Adds entries. Returns the number of those that exist now, and an error if that is not all of them.
    fn add_all(&self, entries: &[(String, &[u8])]) -> (usize, Result<()>) {
        let root = match self.root() {
            Ok(root) => root,
            Err(error) => return (0, Err(error)),
        };
        let (mut exist, mut added, mut outcome) = (0, 0, Ok(()));
        for (name, bytes) in entries {
            match self.add(&root, name, bytes) {
                Ok(is_new) => {
                    exist += 1;
                    added += if is_new { bytes.len() as i64 } else { 0 };
                }
                Err(reason) => {
                    let shard = name.get(..SHARD).unwrap_or_default();
                    outcome = Err(Error::io("write", &self.root.join(shard).join(name), reason));
                }
            }
        }
        self.count(added);
        (exist, outcome)
    }

    /// Adds an entry. Returns true if it is new.
    fn add(&self, root: &Directory, name: &str, bytes: &[u8]) -> std::io::Result<bool> {
        if !StoreKey::is_key(name) {
            return Err(std::io::ErrorKind::InvalidFilename.into());
        }
        let shard = root.make_folder(shard_of(name))?;
        match shard.about(name) {
            Ok(about) if about.bytes == bytes.len() as u64 => return Ok(false),
            // A link is neither followed nor replaced.
            Err(reason) if reason.kind() != std::io::ErrorKind::NotFound => return Err(reason),
            _ => {}
        }
        let own = self.made.fetch_add(1, Ordering::Relaxed);
        let temporary = format!(".{name}.{}-{own}.tmp", std::process::id());
        let mut file = shard.create(&temporary)?;
        let written = directory::write(&mut file, bytes).and_then(|()| {
            touch(&file);
            shard.rename(&temporary, name)
        });
        if written.is_err() {
            let _ = shard.remove(&temporary);
        }
        written.map(|()| true)
    }

    /// Counts the entries from the files. O(entries).
    #[must_use]
    pub fn usage(&self) -> FolderUsage {
        let found = self.entries();
        FolderUsage { entries: found.len() as u64, bytes: found.iter().map(|entry| entry.about.bytes).sum() }
    }

    /// Returns all entries, unsorted, including those of other forms and versions. Other files are skipped.
    fn entries(&self) -> Vec<Found> {
        let mut found = Vec::new();
        self.each_file(|_, shard, name, about| {
            if StoreKey::is_key(&name) {
                found.push(Found { shard: shard.to_owned(), name, about });
            }
        });
        found
    }

    /// Calls `see` for each regular file, with its folder and that folder's name.
    fn each_file(&self, mut see: impl FnMut(&Directory, &str, String, About)) {
        let Ok(root) = self.root() else { return };
        for shard in root.names().into_iter().flatten().filter(|name| name.len() == SHARD) {
            let Ok(folder) = root.folder(&shard) else { continue };
            for name in folder.names().into_iter().flatten() {
                if let Ok(about) = folder.about(&name) {
                    see(&folder, &shard, name, about);
                }
            }
        }
    }

    /// Removes temporary files that were left behind.
    fn sweep(&self) {
        self.each_file(|folder, _, name, about| {
            let own = name.strip_prefix('.').and_then(|rest| rest.strip_suffix(".tmp"));
            if own.is_some_and(StoreKey::is_key) && about.modified.elapsed().is_ok_and(|age| age > STALE) {
                let _ = folder.remove(&name);
            }
        });
    }

    /// Adds to the shared count, and evicts entries if they exceed the limit.
    fn count(&self, added: i64) {
        let all = self.uncounted.fetch_add(added, Ordering::AcqRel) + added;
        let Some(mut file) = self.lock() else { return };
        self.uncounted.fetch_sub(all, Ordering::AcqRel);
        let counted = read_count(&mut file).map(|bytes| bytes.saturating_add_signed(all));
        let bytes = match counted {
            Some(bytes) if bytes <= self.limit => bytes,
            _ => self.make_room(),
        };
        // If the count cannot be written, the next call counts again.
        let _ = write_count(&mut file, bytes);
    }

    /// Counts the entries, and evicts the least recently used ones if they exceed the limit. Returns the bytes that are
    /// left.
    fn make_room(&self) -> u64 {
        let mut found = self.entries();
        let mut bytes: u64 = found.iter().map(|entry| entry.about.bytes).sum();
        let Ok(root) = self.root() else { return bytes };
        if bytes <= self.limit {
            return bytes;
        }
        found.sort_by_key(|entry| entry.about.modified);
        for entry in found {
            if bytes <= self.limit / 10 * 9 {
                break;
            }
            if remove(&root, &entry.shard, &entry.name).is_some() {
                bytes -= entry.about.bytes;
                self.note_evicted(&entry.name);
            }
        }
        bytes
    }

    fn note_evicted(&self, name: &str) {
        let mut evicted = self.evicted.lock().unwrap_or_else(PoisonError::into_inner);
        if evicted.len() < EVICTED_MAX {
            evicted.extend(StoreKey::parse(name));
        }
    }

    /// Returns the file of the count, locked until it is dropped; `None` if that takes too long.
    fn lock(&self) -> Option<File> {
        let file = self.root().ok()?.open_or_make(USAGE).ok()?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Some(file),
                Err(fs::TryLockError::WouldBlock) if start.elapsed() < LOCK_WAIT => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return None,
            }
        }
    }
}

impl Store for Folder {
    fn get(&self, keys: &[String], bytes_max: usize, deadline: Instant) -> Vec<Option<Vec<u8>>> {
        let Ok(root) = self.root() else { return vec![None; keys.len()] };
        let get = |key: &String| if Instant::now() < deadline { read(&root, key, bytes_max) } else { None };
        keys.iter().map(get).collect()
    }

    fn has(&self, keys: &[String], _: Instant) -> Vec<bool> {
        let Ok(root) = self.root() else { return vec![false; keys.len()] };
        let has = |name: &String| {
            StoreKey::is_key(name) && root.folder(shard_of(name)).and_then(|shard| shard.about(name)).is_ok()
        };
        keys.iter().map(has).collect()
    }

    fn put(&self, entries: &[(String, &[u8])], _: Instant) -> usize {
        // If the disk is full or the folder was removed, an entry that does not exist is a miss.
        self.add_all(entries).0
    }

    fn remove(&self, keys: &[String], _: Instant) {
        let Ok(root) = self.root() else { return };
        let keys = keys.iter().filter(|name| StoreKey::is_key(name));
        let removed: u64 = keys.filter_map(|name| remove(&root, shard_of(name), name)).sum();
        self.count(-(removed as i64));
    }

    fn begin(&self) {
        self.tidy();
    }

    fn take_removed(&self) -> Vec<StoreKey> {
        std::mem::take(&mut self.evicted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.counted_bytes())
    }
}

fn read_count(file: &mut File) -> Option<u64> {
    let mut bytes = [0; 16];
    file.seek(SeekFrom::Start(0)).ok()?;
    file.read_exact(&mut bytes).ok()?;
    let (count, sum) = bytes.split_first_chunk::<8>()?;
    (XxHash3_64::oneshot(count).to_le_bytes() == *sum).then(|| u64::from_le_bytes(*count))
}

fn write_count(file: &mut File, bytes: u64) -> std::io::Result<()> {
    let count = bytes.to_le_bytes();
    let sum = XxHash3_64::oneshot(&count).to_le_bytes();
    file.seek(SeekFrom::Start(0))?;
    directory::write(file, &[count, sum].concat())
}

/// Returns the name of the folder of an entry.
fn shard_of(name: &str) -> &str {
    &name[..SHARD]
}

fn read(root: &Directory, name: &str, bytes_max: usize) -> Option<Vec<u8>> {
    if !StoreKey::is_key(name) {
        return None;
    }
    let mut file = root.folder(shard_of(name)).and_then(|shard| shard.read(name)).ok()?;
    let about = file.metadata().ok().filter(|about| about.len() <= bytes_max as u64)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(about.len() as usize).ok()?;
    // Reads no more than that, even if the file grows meanwhile.
    (&mut file).take(about.len()).read_to_end(&mut bytes).ok()?;
    if about.modified().ok().and_then(|used| used.elapsed().ok()).is_some_and(|age| age > TOUCHED) {
        touch(&file);
    }
    Some(bytes)
}

/// Makes an entry the most recently used one, by the clock of this machine: the times that a file system sets itself may be
/// some milliseconds older, so that a new entry would be evicted before one that was read before it. If this fails, the entry
/// is evicted sooner.
fn touch(file: &File) {
    let _ = file.set_modified(SystemTime::now());
}

/// Removes an entry. Returns its length in bytes.
fn remove(root: &Directory, shard: &str, name: &str) -> Option<u64> {
    let shard = root.folder(shard).ok()?;
    let about = shard.about(name).ok()?;
    shard.remove(name).ok().map(|()| about.bytes)
}
