//! A folder of entries, each under its key: a store without a server, for any number of processes at once.
//!
//! ```text
//! folder/usage             bytes of all entries, and a sum: counted anew by whoever opens the folder, or finds it missing or damaged
//! folder/3f/3f0a….0        an entry, by the first byte of its key; 0600, and never a link
//! folder/3f/.….tmp         one that is being written: renamed when it is whole
//! ```
//!
//! An entry never changes, so processes that write the same one write the same bytes, and a reader needs no lock. What a crash cuts short
//! does not have the sum of its bytes, and counts as a miss.
//!
//! The limit holds for all processes together: who adds says so in `usage`, under a lock of that file, and who goes over the limit removes
//! those entries that were used longest ago, down to nine tenths of it, and counts what is there. Reading an entry sets its time. Where the
//! lock cannot be had within 100 ms, because its owner was stopped, the count is brought up to date another time. O(1) an entry; O(entries)
//! for an eviction.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use twox_hash::XxHash3_64;

use crate::entry::StoreKey;
use crate::error::{Error, Result};

/// How long somebody waits for the lock of the count.
const LOCK_WAIT: Duration = Duration::from_millis(100);

/// Of how old an entry the time is set when it is read.
const TOUCHED: Duration = Duration::from_secs(1);

/// How old a temporary file has to be before it counts as left behind.
const STALE: Duration = Duration::from_secs(60 * 60);

const USAGE: &str = "usage";

/// Entries that made room and were not asked for, at most.
const EVICTED_MAX: usize = 1 << 16;

/// A folder of entries.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    limit: u64,
    /// Bytes that were added or removed and are not in the count yet.
    uncounted: AtomicI64,
    made: AtomicU64,
    /// What made room here and was not asked for yet.
    evicted: Mutex<Vec<StoreKey>>,
}

/// What a folder holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FolderUsage {
    /// Entries.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// An entry that is there.
struct Found {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl Folder {
    /// Opens a folder, and makes it where there is none. Refused where it is a link, or where others may write to it. O(entries).
    pub fn open(root: &Path, limit: u64) -> Result<Self> {
        let folder = Folder::open_untidied(root, limit)?;
        folder.tidy();
        Ok(folder)
    }

    /// The same without looking at the entries: somebody calls [`Folder::tidy`] later. O(1).
    pub fn open_untidied(root: &Path, limit: u64) -> Result<Self> {
        if let Some(parent) = root.parent() {
            fs::create_dir_all(parent).map_err(|reason| Error::io("create", parent, reason))?;
        }
        make_folder(root)?;
        Ok(Folder {
            root: root.to_owned(),
            limit,
            uncounted: AtomicI64::new(0),
            made: AtomicU64::new(0),
            evicted: Mutex::default(),
        })
    }

    /// Removes what was left behind by processes that ended early, and counts what is there. O(entries).
    pub fn tidy(&self) {
        self.sweep();
        if let Some(mut file) = self.lock() {
            // Who was killed in the middle of a call has not counted what it added.
            let _ = write_count(&mut file, self.make_room());
        }
    }

    /// The bytes of all entries as they were counted last; counted anew where that cannot be read.
    #[must_use]
    pub fn counted_bytes(&self) -> u64 {
        let counted = self.lock().and_then(|mut file| read_count(&mut file));
        counted.unwrap_or_else(|| self.usage().bytes)
    }

    /// The entries of keys, none longer than `bytes_max`: nothing where there is none, or where it cannot be read.
    #[must_use]
    pub fn get_many(&self, keys: &[StoreKey], bytes_max: usize) -> Vec<Option<Vec<u8>>> {
        keys.iter().map(|key| self.get(key, bytes_max)).collect()
    }

    fn get(&self, key: &StoreKey, bytes_max: usize) -> Option<Vec<u8>> {
        let mut file = open_entry(&self.path(key)).ok()?;
        let about = file.metadata().ok().filter(|about| about.is_file() && about.len() <= bytes_max as u64)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(about.len() as usize).ok()?;
        // No more than that, also where it grows meanwhile.
        (&mut file).take(about.len()).read_to_end(&mut bytes).ok()?;
        if about.modified().ok().and_then(|used| used.elapsed().ok()).is_some_and(|age| age > TOUCHED) {
            // Where this fails, it makes room sooner.
            let _ = file.set_modified(SystemTime::now());
        }
        Some(bytes)
    }

    /// Whether there are entries of keys.
    #[must_use]
    pub fn has_many(&self, keys: &[StoreKey]) -> Vec<bool> {
        keys.iter().map(|key| fs::symlink_metadata(self.path(key)).is_ok_and(|about| about.is_file())).collect()
    }

    /// Adds entries, unless they are there. What cannot be written is an error; the others are there all the same.
    pub fn put_many(&self, entries: &[(StoreKey, &[u8])]) -> Result<()> {
        let (mut added, mut outcome) = (0, Ok(()));
        for (key, bytes) in entries {
            match self.put(key, bytes) {
                Ok(is_new) => added += if is_new { bytes.len() as i64 } else { 0 },
                Err(error) => outcome = Err(error),
            }
        }
        self.count(added);
        outcome
    }

    /// Whether an entry is new.
    fn put(&self, key: &StoreKey, bytes: &[u8]) -> Result<bool> {
        let path = self.path(key);
        if let Ok(about) = fs::symlink_metadata(&path) {
            // A link is never followed, and nothing takes its place.
            if !about.is_file() {
                return Err(Error::io("write", &path, std::io::Error::other("it is no file")));
            }
            if about.len() == bytes.len() as u64 {
                return Ok(false);
            }
        }
        let shard = path.parent().unwrap_or(&self.root);
        make_folder(shard)?;
        let own = self.made.fetch_add(1, Ordering::Relaxed);
        let temporary = shard.join(format!(".{key}.{}-{own}.tmp", std::process::id()));
        let written = private(OpenOptions::new().write(true).create_new(true))
            .open(&temporary)
            .and_then(|mut file| file.write_all(bytes))
            .and_then(|()| fs::rename(&temporary, &path));
        written.map(|()| true).map_err(|reason| {
            let _ = fs::remove_file(&temporary);
            Error::io("write", &path, reason)
        })
    }

    /// Removes entries, which were found to be damaged.
    pub fn remove_many(&self, keys: &[StoreKey]) {
        let mut removed = 0;
        for path in keys.iter().map(|key| self.path(key)) {
            let bytes = fs::symlink_metadata(&path).map_or(0, |about| about.len() as i64);
            if fs::remove_file(&path).is_ok() {
                removed += bytes;
            }
        }
        self.count(-removed);
    }

    /// What is there, counted from the files. O(entries).
    #[must_use]
    pub fn usage(&self) -> FolderUsage {
        let found = self.entries();
        FolderUsage { entries: found.len() as u64, bytes: found.iter().map(|entry| entry.bytes).sum() }
    }

    fn path(&self, key: &StoreKey) -> PathBuf {
        let name = key.to_string();
        self.root.join(&name[..2]).join(name)
    }

    /// All entries, in no order; what is none of ours is passed over.
    fn entries(&self) -> Vec<Found> {
        let mut found = Vec::new();
        self.each_file(|path, about| {
            let is_entry =
                path.file_name().and_then(|name| name.to_str()).is_some_and(|name| StoreKey::parse(name).is_some());
            if is_entry {
                let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                found.push(Found { path, bytes: about.len(), used });
            }
        });
        found
    }

    fn each_file(&self, mut see: impl FnMut(PathBuf, fs::Metadata)) {
        for shard in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            // Links are no folders here.
            if !shard.file_type().is_ok_and(|kind| kind.is_dir()) || shard.file_name().len() != 2 {
                continue;
            }
            for file in fs::read_dir(shard.path()).into_iter().flatten().flatten() {
                if let Ok(about) = fs::symlink_metadata(file.path())
                    && about.is_file()
                {
                    see(file.path(), about);
                }
            }
        }
    }

    /// Removes temporary files that were left behind.
    fn sweep(&self) {
        self.each_file(|path, about| {
            let is_temporary = path.extension().is_some_and(|extension| extension == "tmp");
            if is_temporary && about.modified().ok().and_then(|made| made.elapsed().ok()).is_some_and(|age| age > STALE)
            {
                let _ = fs::remove_file(path);
            }
        });
    }

    /// Adds to the count of all processes, and makes room where that goes over the limit.
    fn count(&self, added: i64) {
        let all = self.uncounted.fetch_add(added, Ordering::AcqRel) + added;
        let Some(mut file) = self.lock() else { return };
        self.uncounted.fetch_sub(all, Ordering::AcqRel);
        let counted = read_count(&mut file).map(|bytes| bytes.saturating_add_signed(all));
        let bytes = match counted {
            Some(bytes) if bytes <= self.limit => bytes,
            _ => self.make_room(),
        };
        // Where it cannot be written, it is counted anew the next time.
        let _ = write_count(&mut file, bytes);
    }

    /// Counts what is there, and removes what was used longest ago while that is over the limit. Answers the bytes that are left.
    fn make_room(&self) -> u64 {
        let mut found = self.entries();
        let mut bytes: u64 = found.iter().map(|entry| entry.bytes).sum();
        if bytes <= self.limit {
            return bytes;
        }
        found.sort_by_key(|entry| entry.used);
        for entry in found {
            if bytes <= self.limit / 10 * 9 {
                break;
            }
            if fs::remove_file(&entry.path).is_ok() {
                bytes -= entry.bytes;
                self.note_evicted(&entry.path);
            }
        }
        bytes
    }

    fn note_evicted(&self, path: &Path) {
        let mut evicted = self.evicted.lock().unwrap_or_else(PoisonError::into_inner);
        if evicted.len() < EVICTED_MAX {
            evicted.extend(path.file_name().and_then(|name| name.to_str()).and_then(StoreKey::parse));
        }
    }

    /// What made room in this process since the last call; of much, a part.
    pub(crate) fn take_evicted(&self) -> Vec<StoreKey> {
        std::mem::take(&mut self.evicted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The file of the count, locked until it is dropped; none where that takes too long.
    fn lock(&self) -> Option<File> {
        let mut options = OpenOptions::new();
        let file =
            private(options.read(true).write(true).create(true).truncate(false)).open(self.root.join(USAGE)).ok()?;
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
    file.write_all(&[count, sum].concat())
}

/// Files that their owner alone reads, and that are no links.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW);
    }
    options
}

/// An entry's file, to be read; where its time can be set, to that end as well.
fn open_entry(path: &Path) -> std::io::Result<File> {
    private(OpenOptions::new().read(true).write(true)).open(path)
}

/// Makes a folder that its owner alone uses. One that is there must be no link, and no other may write to it.
fn make_folder(path: &Path) -> Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(reason) if reason.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(Error::io("create", path, reason));
        }
        _ => {}
    }
    let about = fs::symlink_metadata(path).map_err(|reason| Error::io("open", path, reason))?;
    if !about.is_dir() {
        return Err(Error::io("open", path, std::io::Error::other("it is no folder, or a link to one")));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if about.permissions().mode() & 0o022 != 0 {
            return Err(Error::io("open", path, std::io::Error::other("others may write to it")));
        }
    }
    Ok(())
}
