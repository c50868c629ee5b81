//! A folder whose calls of the system fail, each alone and with another one after it: nothing wrong is read, an entry
//! that was reported as stored exists, and the next calls work.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use kvtide_core::paged::BlockKey;

use super::Folder;
use super::directory::fails;
use crate::entry::{FormTag, StoreKey};
use crate::store::Store;

const BYTES: usize = 100;
const LIMIT: u64 = 8 * BYTES as u64;

fn name(number: u8) -> String {
    StoreKey { block: BlockKey([number; 32]), group: 0, form: FormTag::default() }.to_string()
}

fn value(number: u8) -> Vec<u8> {
    (0..BYTES).map(|at| at as u8 ^ number).collect()
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn put(folder: &Folder, numbers: std::ops::Range<u8>) -> usize {
    let entries: Vec<(String, Vec<u8>)> = numbers.map(|number| (name(number), value(number))).collect();
    let entries: Vec<(String, &[u8])> = entries.iter().map(|(name, value)| (name.clone(), &value[..])).collect();
    folder.put(&entries, later())
}

/// Returns the numbers of the entries that are read, which must be right.
fn read(folder: &Folder, numbers: std::ops::Range<u8>) -> Vec<u8> {
    let names: Vec<String> = numbers.clone().map(name).collect();
    let values = folder.get(&names, 2 * BYTES, later());
    let found = numbers.zip(values).filter_map(|(number, found)| Some((number, found?)));
    // An entry that was torn before is damaged, which its checksum shows.
    found
        .filter(|(number, found)| *number != TORN || found.len() == BYTES)
        .map(|(number, found)| {
            assert_eq!(found, value(number), "entry {number}");
            number
        })
        .collect()
}

/// The number of an entry that a crash has torn.
const TORN: u8 = 4;

/// Returns a folder with entries 0 to 3, the first of which is the least recently used one, and a torn entry.
fn made() -> (Folder, std::path::PathBuf) {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let own = MADE.fetch_add(1, Ordering::Relaxed);
    let place = std::env::temp_dir().join(format!("kvtide-failing-{}-{own}", std::process::id()));
    let _ = fs::remove_dir_all(&place);
    let folder = Folder::open(&place, LIMIT).unwrap();
    assert_eq!(put(&folder, 0..TORN + 1), 5);
    let file = |number: u8| place.join(&name(number)[..2]).join(name(number));
    fs::write(file(TORN), &value(TORN)[..BYTES / 2]).unwrap();
    for number in 0..4 {
        let old = SystemTime::now() - Duration::from_secs(1000 - u64::from(number));
        fs::File::options().write(true).open(file(number)).unwrap().set_modified(old).unwrap();
    }
    (folder, place)
}

/// Runs all calls of a folder, with these points failing. Returns the points that it passed.
fn run(failing: &[usize]) -> Vec<&'static str> {
    let (folder, place) = made();
    let (stored, mut points) = fails::during(failing, || {
        read(&folder, 0..4);
        folder.has(&[name(1), name(9)], later());
        // One of these replaces the torn entry, and together they exceed the limit.
        let stored = put(&folder, TORN..TORN + 6);
        folder.remove(&[name(2)], later());
        stored
    });
    let what = format!("{failing:?}: {:?}", failing.iter().filter_map(|at| points.get(*at)).collect::<Vec<_>>());
    let found = read(&folder, TORN..TORN + 6);
    // Entries 0 to 3 are evicted first. If two of them cannot be removed, a new one is evicted instead.
    let evicted = failing.len().saturating_sub(1);
    assert!(found.len() + evicted >= stored, "{what}: {stored} were stored, {found:?} are read");
    // The temporary file of a write that fails is removed, unless that fails as well.
    let is_temporary = |file: &std::path::PathBuf| file.extension().is_some_and(|extension| extension == "tmp");
    assert!(failing.len() > 1 || !files(&place).iter().any(is_temporary), "{what}: {:?}", files(&place));
    let (_, rest) =
        fails::during(&failing.iter().map(|at| at.saturating_sub(points.len())).collect::<Vec<_>>(), || {
            folder.tidy();
            let _ = (folder.usage(), folder.counted_bytes());
        });
    points.extend(rest);
    is_right_afterwards(folder, &place, &what);
    fs::remove_dir_all(place).unwrap();
    points
}

fn is_right_afterwards(folder: Folder, place: &Path, what: &str) {
    drop(folder);
    // Temporary files that could not be removed are swept once they are old.
    for file in files(place).iter().filter(|file| file.extension().is_some_and(|extension| extension == "tmp")) {
        let old = SystemTime::now() - Duration::from_secs(2 * 60 * 60);
        fs::File::options().write(true).open(file).unwrap().set_modified(old).unwrap();
    }
    let folder = Folder::open(place, LIMIT).unwrap();
    let left = files(place);
    assert!(left.iter().all(|file| file.extension().is_none_or(|extension| extension != "tmp")), "{what}: {left:?}");
    let usage = folder.usage();
    assert_eq!(folder.counted_bytes(), usage.bytes, "{what}");
    assert!(usage.bytes <= LIMIT, "{what}: {usage:?}");
    assert_eq!((put(&folder, 20..23), read(&folder, 20..23)), (3, vec![20, 21, 22]), "{what}");
}

fn files(place: &Path) -> Vec<std::path::PathBuf> {
    let inside = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    inside(place).into_iter().flat_map(|path| if path.is_dir() { inside(&path) } else { vec![path] }).collect()
}

#[test]
fn a_call_of_the_system_that_fails_costs_entries_and_nothing_else() {
    let points = run(&[]).len();
    assert!(points > 50, "{points}");
    (0..points).for_each(|at| drop(run(&[at])));
}

#[test]
fn two_that_fail_cost_no_more() {
    let points = run(&[]).len();
    let cases = std::env::var("KVTIDE_CASES").map_or(0, |text| text.parse::<usize>().expect("a whole number"));
    let far = (cases / 50).max(2);
    for one in 0..points {
        (one + 1..points.min(one + far)).for_each(|other| drop(run(&[one, other])));
    }
}
