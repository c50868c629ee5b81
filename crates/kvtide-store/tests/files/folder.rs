//! A folder of entries that several processes use at once: what is read is what was written, or nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs, thread};

use kvtide_core::paged::{BlockKey, BlockName, Extras};
use kvtide_store::{Entry, Expected, Folder, FolderUsage, StoreKey, decode, encode};

use crate::world::Random;

const FORM: [u8; 32] = [3; 32];
const PAGE: usize = 4096;
/// Where children work, and until when.
const PLACE: &str = "KVTIDE_TEST_FOLDER";
const MAX: usize = 1 << 20;

fn temporary(name: &str) -> PathBuf {
    let folder = env::temp_dir().join(format!("kvtide-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

/// The block of a number: its key follows from it, and its bytes do.
fn block(number: u32) -> (StoreKey, Vec<u8>) {
    let root = BlockKey([9; 32]);
    let tokens = [number, 2, 3, 4];
    let key = root.child(&tokens, 0, &Extras::default());
    let name = BlockName { key, parent: root, tokens: &tokens, extras: &[] };
    let page: Vec<u8> = (0..PAGE).map(|at| (at as u32 * 7 + number * 13) as u8).collect();
    (StoreKey { block: key, group: 0 }, encode(&Entry { name, form: &FORM, page: &page }).unwrap())
}

fn expected(key: &StoreKey) -> Expected<'_> {
    Expected { key: &key.block, form: &FORM, block_size: 4, page_bytes: PAGE }
}

/// Whether the folder has a block; what it has must be right to the byte.
fn has(folder: &Folder, number: u32) -> bool {
    let (key, bytes) = block(number);
    let Some(found) = folder.get_many(&[key], MAX).pop().unwrap() else { return false };
    let Some(decoded) = decode(&found, &expected(&key)) else { return false };
    assert_eq!(found, bytes, "a wrong page under the name of {number}");
    assert_eq!((decoded.tokens[0], &found[decoded.page..][..PAGE]), (number, &bytes[decoded.page..][..PAGE]));
    true
}

fn put(folder: &Folder, numbers: std::ops::Range<u32>) {
    let blocks: Vec<_> = numbers.map(block).collect();
    folder.put_many(&blocks.iter().map(|(key, bytes)| (*key, &bytes[..])).collect::<Vec<_>>()).unwrap();
}

#[test]
fn an_entry_is_what_was_asked_for_or_nothing() {
    let (key, bytes) = block(5);
    assert!(decode(&bytes, &expected(&key)).is_some());
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(decode(&changed, &expected(&key)), None, "bit {bit}");
    }
    (0..bytes.len()).for_each(|len| assert_eq!(decode(&bytes[..len], &expected(&key)), None, "{len}"));
    assert_eq!(decode(&[&bytes[..], &[0]].concat(), &expected(&key)), None);
    let (other, _) = block(6);
    assert_eq!(decode(&bytes, &expected(&other)), None, "another key");
    assert_eq!(decode(&bytes, &Expected { form: &[4; 32], ..expected(&key) }), None, "another model");
    assert_eq!(decode(&bytes, &Expected { page_bytes: PAGE / 2, ..expected(&key) }), None, "another size");
    // One whose key is not that of its tokens, though its sum is right.
    let name = BlockName { key: key.block, parent: BlockKey([9; 32]), tokens: &[1, 2, 3, 4], extras: &[] };
    let forged = encode(&Entry { name, form: &FORM, page: &[0; PAGE] }).unwrap();
    assert_eq!(decode(&forged, &expected(&key)), None, "other tokens");
}

#[test]
fn what_is_put_is_found_by_others() {
    let place = temporary("put");
    let folder = Folder::open(&place, u64::MAX).unwrap();
    put(&folder, 0..100);
    put(&folder, 50..120);
    let other = Folder::open(&place, u64::MAX).unwrap();
    assert!((0..120).all(|number| has(&other, number)) && !has(&other, 120));
    let keys: Vec<StoreKey> = [3, 119, 120].map(|number| block(number).0).into();
    assert_eq!(other.has_many(&keys), [true, true, false]);
    let bytes = block(0).1.len() as u64;
    assert_eq!(other.usage(), FolderUsage { entries: 120, bytes: 120 * bytes });
    other.remove_many(&keys);
    assert_eq!((has(&folder, 3), folder.usage().entries), (false, 118));
    assert_eq!(folder.get_many(&keys[..1], 10), [None], "longer than may be read");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let (key, _) = block(4);
        let shard = place.join(&key.to_string()[..2]);
        assert_eq!(fs::metadata(&shard).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(shard.join(key.to_string())).unwrap().permissions().mode() & 0o777, 0o600);
    }
    fs::remove_dir_all(place).unwrap();
}

#[test]
fn over_the_limit_the_longest_unused_go() {
    let place = temporary("limit");
    let each = block(0).1.len() as u64;
    let folder = Folder::open(&place, 100 * each).unwrap();
    put(&folder, 0..100);
    // Of these, 10 to 20 were used lately.
    for number in 0..100 {
        let name = block(number).0.to_string();
        let file = fs::File::options().write(true).open(place.join(&name[..2]).join(&name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(1000 - u64::from(number))).unwrap();
    }
    let other = Folder::open(&place, 100 * each).unwrap();
    assert!((10..20).all(|number| has(&other, number)));
    put(&other, 100..101);
    let left: Vec<u32> = (0..101).filter(|&number| has(&folder, number)).collect();
    assert_eq!(left, (10..20).chain(21..101).collect::<Vec<_>>(), "down to nine tenths");
    assert!(folder.usage().bytes <= 100 * each);
    // A count that is damaged or gone is made from the files.
    for damage in [&b"nonsense"[..], &[0xff; 16], &[]] {
        fs::write(place.join("usage"), damage).unwrap();
        put(&folder, 200..202);
        folder.remove_many(&[block(200).0, block(201).0]);
        assert!(folder.usage().entries >= 80);
    }
    fs::remove_file(place.join("usage")).unwrap();
    put(&folder, 300..330);
    assert!(folder.usage().bytes <= 100 * each && has(&folder, 329));
    fs::remove_dir_all(place).unwrap();
}

#[cfg(unix)]
#[test]
fn links_are_not_followed() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let place = temporary("links");
    let folder = Folder::open(&place, u64::MAX).unwrap();
    put(&folder, 1..2);
    let (key, bytes) = block(2);
    let name = key.to_string();
    fs::create_dir_all(place.join(&name[..2])).unwrap();
    fs::set_permissions(place.join(&name[..2]), fs::Permissions::from_mode(0o700)).unwrap();
    let elsewhere = temporary("elsewhere");
    fs::write(&elsewhere, &bytes).unwrap();
    symlink(&elsewhere, place.join(&name[..2]).join(&name)).unwrap();
    assert!(!has(&folder, 2) && !folder.has_many(&[key])[0]);
    assert!(folder.put_many(&[(key, &bytes)]).is_err());
    assert_eq!(folder.usage().entries, 1);
    fs::write(&elsewhere, b"mine").unwrap();
    // Nor is a folder that is one, or that others may write to.
    let link = temporary("link");
    let _ = fs::remove_file(&link);
    symlink(&place, &link).unwrap();
    assert!(Folder::open(&link, 1).is_err());
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(Folder::open(&place, 1).is_err());
    for path in [link, elsewhere] {
        fs::remove_file(path).unwrap();
    }
    fs::remove_dir_all(place).unwrap();
}

/// A child: no test by itself. It writes and reads what its neighbour does, until it is killed.
#[test]
fn shares_a_folder_until_it_is_killed() {
    let Some(place) = env::var_os(PLACE) else { return };
    let folder = Folder::open(Path::new(&place), 60 * block(0).1.len() as u64).unwrap();
    let mut random = Random(std::process::id().into());
    loop {
        let first = random.below(100);
        put(&folder, first..first + random.below(8));
        for _ in 0..20 {
            has(&folder, random.below(108));
        }
    }
}

fn child(place: &Path) -> std::process::Child {
    Command::new(env::current_exe().unwrap())
        .args(["folder::shares_a_folder_until_it_is_killed", "--exact"])
        .env(PLACE, place)
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

#[cfg(unix)]
#[test]
fn processes_that_are_killed_and_stopped_never_show_a_wrong_page() {
    let place = temporary("shared");
    let each = block(0).1.len() as u64;
    let folder = Folder::open(&place, 60 * each).unwrap();
    let mut random = Random(7);
    let signal = |name: &str, child: &std::process::Child| {
        assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
    };
    let mut steady = child(&place);
    let mut seen = 0;
    for _ in 0..40 {
        let mut other = child(&place);
        thread::sleep(Duration::from_micros(u64::from(random.below(30_000))));
        signal("-STOP", &other);
        // Nobody waits for a process that was stopped, whatever it holds.
        let start = Instant::now();
        put(&folder, 0..4);
        seen += (0..108).filter(|&number| has(&folder, number)).count();
        assert!(start.elapsed() < Duration::from_secs(5));
        if random.below(2) == 0 {
            signal("-CONT", &other);
        }
        other.kill().unwrap();
        other.wait().unwrap();
    }
    assert!(steady.try_wait().unwrap().is_none(), "it met nothing wrong");
    steady.kill().unwrap();
    steady.wait().unwrap();
    assert!(seen > 0);
    put(&folder, 0..1);
    // Three processes, of which each may be in the middle of one call.
    assert!(folder.usage().bytes <= (60 + 3 * 8) * each, "{:?}", folder.usage());
    fs::remove_dir_all(place).unwrap();
}
