//! Saves on a disk that fails or loses power, at each call: the path has the old file or the new one, complete, and a
//! save that was acknowledged is never lost.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvtide_core::Code;
use kvtide_files::{
    CacheFile, LoadOptions, Result, Save, Sink, Source, Watch, load_sequence, save_cache_bytes, save_sequence_bytes,
};
use kvtide_tensor::{PagedKvCache, PromptOptions};

use crate::disk::{Fault, SimDisk};
use crate::world::{Form, KEY, append, forms, found, seed, shown};

const PATH: &str = "/caches/chat.kv";
const HOURS: Duration = Duration::from_secs(2 * 60 * 60);

/// The kinds of saves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Cache,
    /// A cache that evicts blocks during the save, so that rows are moved in the file.
    Shrinking,
    Sequence,
}

fn form() -> Form {
    // A row has 2 KiB, so several sectors.
    Form { blocks: 6, block_size: 16, ..forms().swap_remove(0).1 }
}

fn tokens(generation: u32) -> Vec<u32> {
    (0..49).map(|at| at + generation * 1000).collect()
}

/// Saves a generation: a prompt of its own, in a new cache.
fn save(disk: &Arc<SimDisk>, kind: Kind, generation: u32) -> Result<()> {
    let mut cache = form().cache();
    let sequence = cache.create_sequence().unwrap();
    if kind == Kind::Shrinking {
        append(&mut cache, sequence, &[9; 32], true).unwrap();
        cache.drop_sequence(sequence).unwrap();
    }
    let sequence = cache.create_sequence().unwrap();
    append(&mut cache, sequence, &tokens(generation)[..48], true).unwrap();
    let mut save = match kind {
        Kind::Sequence => Save::sequence(&mut cache, sequence, None)?,
        _ => Save::cache(&mut cache)?,
    };
    save.write(Sink::file_in(disk.clone(), Path::new(PATH))?, &Watch::default())?;
    if kind == Kind::Shrinking {
        // Evicts the oldest block.
        let other = cache.create_sequence().unwrap();
        append(&mut cache, other, &[8; 20], true).unwrap();
    }
    save.leave_out(&cache)?;
    save.finish().map(drop)
}

fn load(disk: &Arc<SimDisk>, kind: Kind) -> Result<PagedKvCache> {
    let source = Source::file_in(&**disk, Path::new(PATH))?;
    if kind == Kind::Sequence {
        let mut cache = form().cache();
        load_sequence(&mut cache, source, PromptOptions::default(), &Watch::default())?;
        return Ok(cache);
    }
    CacheFile::open(source)?.load(LoadOptions { prefix_key: Some(KEY), ..LoadOptions::default() }, &Watch::default())
}

/// Returns the generation of the file, after checking all of its content; `None` if there is no file.
fn generation(disk: &Arc<SimDisk>, kind: Kind) -> Option<u32> {
    if !disk.files().iter().any(|path| path == Path::new(PATH)) {
        return None;
    }
    let mut cache = load(disk, kind).unwrap_or_else(|error| panic!("{kind:?}: a broken file has the path: {error}"));
    cache.check_invariants().unwrap();
    let is_found = |generation: &u32| found(&mut cache, &tokens(*generation), b"") == 48;
    let generation = (1..4).find(is_found).expect("one generation, all of it");
    let prefix = cache.find_prefix(&tokens(generation), PromptOptions::default(), false).unwrap();
    let loaded = cache.create_sequence_from(prefix).unwrap();
    let mut apart = form().cache();
    let computed = apart.create_sequence().unwrap();
    append(&mut apart, computed, &tokens(generation)[..48], true).unwrap();
    assert_eq!(shown(&mut cache, loaded), shown(&mut apart, computed), "{kind:?}");
    Some(generation)
}

/// Returns a disk with a durable file of generation 1, or none, and the calls of the save that comes next.
fn disk(kind: Kind, has_old: bool) -> (Arc<SimDisk>, Vec<&'static str>) {
    let made = || {
        let disk = Arc::new(SimDisk::default());
        disk.advance(HOURS);
        if has_old {
            save(&disk, kind, 1).unwrap();
        }
        disk.take_calls();
        disk
    };
    let trial = made();
    save(&trial, kind, 2).unwrap();
    (made(), trial.take_calls())
}

/// Checks that saves go on, and that no temporary file stays longer than an hour.
fn goes_on(disk: &Arc<SimDisk>, kind: Kind, what: &str) {
    disk.set_faults(&[]);
    disk.advance(HOURS);
    save(disk, kind, 3).unwrap();
    assert_eq!(generation(disk, kind), Some(3), "{what}");
    assert_eq!(disk.files(), [Path::new(PATH)], "{what}: temporary files are left");
    // What was acknowledged is durable.
    disk.lose_power(0);
    assert_eq!(generation(disk, kind), Some(3), "{what}");
}

const KINDS: [Kind; 3] = [Kind::Cache, Kind::Shrinking, Kind::Sequence];

/// Returns the number of repetitions of each point: `KVTIDE_CASES`, or a few.
fn rounds(few: u64) -> u64 {
    std::env::var("KVTIDE_CASES").map_or(few, |text| text.parse::<u64>().expect("a whole number").div_ceil(50))
}

#[test]
fn power_that_fails_at_any_call_leaves_the_old_file_or_the_new_one() {
    let begin = seed();
    println!("seed {begin}");
    let mut outcomes = [0; 3];
    for (kind, has_old) in KINDS.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
        let points = disk(kind, has_old).1.len();
        // At the last point, the save has ended.
        for (point, round) in (0..=points).flat_map(|point| (0..rounds(10)).map(move |round| (point, round))) {
            let (disk, _) = disk(kind, has_old);
            disk.set_faults(&[(point, Fault::PowerFails)]);
            let is_saved = save(&disk, kind, 2).is_ok();
            let own = begin.wrapping_add(round * 1000 + point as u64);
            disk.lose_power(own);
            let what = format!("{kind:?}, call {point}, seed {own}");
            let left = generation(&disk, kind);
            let old = has_old.then_some(1);
            assert!(left == Some(2) || left == old && !is_saved, "{what}: {left:?}, saved {is_saved}");
            assert_eq!(is_saved, point == points, "{what}");
            outcomes[left.unwrap_or(0) as usize] += 1;
            goes_on(&disk, kind, &what);
        }
    }
    println!("{outcomes:?} had no file, the old one, the new one");
    assert!(outcomes.iter().all(|&seen| seen > 0), "{outcomes:?}");
}

/// Runs a save with these faults, and checks the file, the error and the temporary files.
fn fails(kind: Kind, calls: &[&'static str], faults: &[(usize, ErrorKind)]) {
    let (disk, _) = disk(kind, true);
    let all: Vec<_> = faults.iter().map(|&(at, error)| (at, Fault::Fails(error))).collect();
    disk.set_faults(&all);
    let saved = save(&disk, kind, 2);
    let made = disk.take_calls();
    let failed: Vec<&str> = faults.iter().filter_map(|&(at, _)| made.get(at).copied()).collect();
    let what = format!("{kind:?}, {faults:?}: {failed:?} failed");
    disk.set_faults(&[]);
    // A sweep never makes a save fail.
    let is_needed = |name: &&str| !matches!(*name, "names" | "modified" | "remove");
    assert_eq!(saved.is_err(), failed.iter().any(is_needed), "{what}: {saved:?}");
    if let Err(error) = &saved {
        assert_eq!(error.code(), Code::IoError, "{what}: {error}");
    }
    // After the rename, only the durability of the new name is unknown.
    let is_renamed = saved.is_ok() || failed.contains(&"flush_folder");
    assert_eq!(generation(&disk, kind), Some(if is_renamed { 2 } else { 1 }), "{what}");
    let is_removed = !failed.contains(&"remove");
    assert_eq!(disk.files().len(), if is_removed { 1 } else { 2 }, "{what}: {:?}, {calls:?}", disk.files());
    goes_on(&disk, kind, &what);
}

#[test]
fn a_call_that_fails_leaves_the_old_file_and_nothing_else() {
    for kind in KINDS {
        let calls = disk(kind, true).1;
        for at in 0..calls.len() {
            for error in [ErrorKind::StorageFull, ErrorKind::PermissionDenied, ErrorKind::Other] {
                fails(kind, &calls, &[(at, error)]);
            }
        }
    }
}

#[test]
fn two_calls_that_fail_leave_the_old_file_as_well() {
    for kind in KINDS {
        let calls = disk(kind, true).1;
        // After a failed save, its temporary file is removed: one call more.
        let far = usize::try_from(rounds(2)).unwrap();
        // The last one may be a call of the removal itself.
        let others = |one: usize| (one + 1..=(one + far).min(calls.len() + 1)).map(move |other| (one, other));
        for (one, other) in (0..calls.len()).flat_map(others) {
            fails(kind, &calls, &[(one, ErrorKind::StorageFull), (other, ErrorKind::Other)]);
        }
    }
}

#[test]
fn a_clock_that_jumps_removes_no_file_of_another_save() {
    let disk = Arc::new(SimDisk::default());
    disk.set_clock(HOURS * 100);
    // Another save has begun; then the clock is set back, or goes on by less than an hour.
    let _other = Sink::file_in(disk.clone(), Path::new(PATH)).unwrap();
    for clock in [Duration::ZERO, HOURS * 99, HOURS * 100 + HOURS / 2] {
        disk.set_clock(clock);
        save(&disk, Kind::Cache, 1).unwrap();
        assert_eq!(disk.files().len(), 2, "{clock:?}");
    }
}

#[test]
fn a_load_that_cannot_read_changes_nothing() {
    for kind in KINDS {
        let (disk, _) = disk(kind, true);
        drop(load(&disk, kind).unwrap());
        let calls = disk.take_calls();
        assert!(calls.len() > 3);
        for at in 0..calls.len() {
            disk.set_faults(&[(at, Fault::Fails(ErrorKind::Other))]);
            let mut cache = form().cache();
            let sequence = cache.create_sequence().unwrap();
            append(&mut cache, sequence, &[1, 2, 3], true).unwrap();
            let before = (cache.free_count(), shown(&mut cache, sequence));
            let refused = |cache: &mut PagedKvCache| -> Result<()> {
                let source = Source::file_in(&*disk, Path::new(PATH))?;
                if kind == Kind::Sequence {
                    return load_sequence(cache, source, PromptOptions::default(), &Watch::default()).map(drop);
                }
                let file = CacheFile::open(source)?;
                let load = file.begin(cache)?;
                file.read(&load, &Watch::default())?;
                file.end(cache, &load).map(drop)
            };
            assert_eq!(refused(&mut cache).unwrap_err().code(), Code::IoError, "{kind:?}, call {at}");
            cache.check_invariants().unwrap();
            assert_eq!((cache.free_count(), shown(&mut cache, sequence)), before, "{kind:?}, call {at}");
        }
    }
}

/// A file has the same bytes wherever it is saved.
#[test]
fn a_file_is_the_same_on_disk_and_in_memory() {
    let disk = Arc::new(SimDisk::default());
    save(&disk, Kind::Cache, 1).unwrap();
    let mut cache = form().cache();
    let sequence = cache.create_sequence().unwrap();
    append(&mut cache, sequence, &tokens(1)[..48], true).unwrap();
    let bytes = save_cache_bytes(&mut cache, &Watch::default()).unwrap();
    assert_eq!(disk.bytes(Path::new(PATH)), bytes);
    save(&disk, Kind::Sequence, 1).unwrap();
    assert_eq!(disk.bytes(Path::new(PATH)), save_sequence_bytes(&mut cache, sequence, &Watch::default()).unwrap());
}
