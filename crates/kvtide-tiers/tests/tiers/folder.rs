//! A folder of entries that several processes use at once: a read returns what was written, or nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs, thread};

use kvtide_core::Code;
use kvtide_core::paged::{BlockKey, BlockName, Extras};
use kvtide_tiers::{Entry, Expected, Folder, FolderUsage, FormTag, Store, StoreKey, Unfit, decode, encode};

use crate::tiers::later;
use crate::world::Random;

const FORM: [u8; 32] = [3; 32];
const PAGE: usize = 4096;
/// The variable with the folder in which child processes work.
const PLACE: &str = "KVTIDE_TEST_FOLDER";
const MAX: usize = 1 << 20;

fn names(keys: &[StoreKey]) -> Vec<String> {
    keys.iter().map(StoreKey::to_string).collect()
}

fn temporary(name: &str) -> PathBuf {
    let folder = env::temp_dir().join(format!("kvtide-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

/// Returns the block of a number, which determines its key and its bytes.
fn block(number: u32) -> (StoreKey, Vec<u8>) {
    let root = BlockKey([9; 32]);
    let tokens = [number, 2, 3, 4];
    let key = root.child(&tokens, 0, &Extras::default());
    let name = BlockName { key, parent: root, tokens: &tokens, extras: &[] };
    let page: Vec<u8> = (0..PAGE).map(|at| (at as u32 * 7 + number * 13) as u8).collect();
    let entry = Entry { name, group: 0, form: &FORM, page: &page };
    (StoreKey { block: key, group: 0, form: FormTag::of(&FORM) }, encode(&entry).unwrap())
}

fn expected(key: &StoreKey) -> Expected<'_> {
    Expected { key: &key.block, group: key.group, form: &FORM, block_size: 4, page_bytes: PAGE }
}

/// True if the folder has a block, which must be right to the byte.
fn has(folder: &Folder, number: u32) -> bool {
    let (key, bytes) = block(number);
    let Some(found) = folder.get(&names(&[key]), MAX, later()).pop().unwrap() else { return false };
    let Ok(decoded) = decode(&found, &expected(&key)) else { return false };
    assert_eq!(found, bytes, "a wrong page under the name of {number}");
    assert_eq!((decoded.tokens[0], &found[decoded.page..][..PAGE]), (number, &bytes[decoded.page..][..PAGE]));
    true
}

fn put(folder: &Folder, numbers: std::ops::Range<u32>) {
    let blocks: Vec<_> = numbers.map(block).collect();
    folder.write(&blocks.iter().map(|(key, bytes)| (key.to_string(), &bytes[..])).collect::<Vec<_>>()).unwrap();
}

#[test]
fn an_entry_is_what_was_asked_for_or_nothing() {
    let (key, bytes) = block(5);
    let damaged = |bytes: &[u8], expected: &Expected<'_>| assert_eq!(decode(bytes, expected), Err(Unfit::Damaged));
    assert!(decode(&bytes, &expected(&key)).is_ok());
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        damaged(&changed, &expected(&key));
    }
    (0..bytes.len()).for_each(|len| damaged(&bytes[..len], &expected(&key)));
    damaged(&[&bytes[..], &[0]].concat(), &expected(&key));
    let (other, _) = block(6);
    damaged(&bytes, &expected(&other));
    damaged(&bytes, &Expected { group: 1, ..expected(&key) });
    damaged(&bytes, &Expected { page_bytes: PAGE / 2, ..expected(&key) });
    // An entry whose key is not that of its tokens, although its checksum is right.
    let name = BlockName { key: key.block, parent: BlockKey([9; 32]), tokens: &[1, 2, 3, 4], extras: &[] };
    damaged(&encode(&Entry { name, group: 0, form: &FORM, page: &[0; PAGE] }).unwrap(), &expected(&key));
    // An intact entry of another form or version is a miss, and not damaged.
    assert_eq!(decode(&bytes, &Expected { form: &[4; 32], ..expected(&key) }), Err(Unfit::Foreign));
    let older = resummed(&bytes, |bytes| bytes[7] = b'1');
    assert_eq!(decode(&older, &expected(&key)), Err(Unfit::Foreign));
    damaged(&resummed(&bytes, |bytes| bytes[0] = b'K'), &expected(&key));
}

/// Changes an entry by hand, and corrects its checksum.
fn resummed(bytes: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    let body = bytes.len() - 8;
    change(&mut changed[..body]);
    let sum = twox_hash::XxHash3_64::oneshot(&changed[..body]).to_le_bytes();
    changed[body..].copy_from_slice(&sum);
    changed
}

#[test]
fn keys_are_read_as_they_are_written() {
    let (key, _) = block(5);
    let text = key.to_string();
    assert_eq!(StoreKey::parse(&text), Some(key));
    assert_ne!(text, StoreKey { form: FormTag::of(&[4; 32]), ..key }.to_string());
    let zeros = text.replacen(".0.", ".00.", 1);
    assert_ne!(zeros, text);
    let longer = [format!("{text}0"), format!("{text}.tmp")];
    for wrong in ["", ".0", &text[1..], &text[..66], &longer[0], &longer[1], &text.to_uppercase(), &zeros] {
        assert_eq!(StoreKey::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn entries_of_other_forms_and_versions_are_counted_and_make_room() {
    let place = temporary("versions");
    let each = block(0).1.len() as u64;
    let folder = Folder::open(&place, 10 * each).unwrap();
    put(&folder, 0..4);
    for number in 100..104 {
        let (name, bytes) = (block(number).0.block, block(number).1);
        let digits: String = name.0.iter().map(|byte| format!("{byte:02x}")).collect();
        fs::create_dir_all(place.join(&digits[..2])).unwrap();
        make_private(&place.join(&digits[..2]));
        // Names as an earlier version made them, and as a later one might.
        let file = place.join(&digits[..2]).join(format!("{digits}.{}", if number % 2 == 0 { "0" } else { "0.ab-cd" }));
        fs::write(&file, bytes).unwrap();
        let old = SystemTime::now() - Duration::from_secs(1000);
        fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
    }
    let folder = Folder::open(&place, 10 * each).unwrap();
    assert_eq!(folder.usage(), FolderUsage { entries: 8, bytes: 8 * each });
    put(&folder, 4..7);
    assert!((0..7).all(|number| has(&folder, number)), "those that nothing asks for went first");
    assert_eq!(folder.usage().entries, 9);
    fs::remove_dir_all(place).unwrap();
}

fn make_private(folder: &Path) {
    #[cfg(unix)]
    fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
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
    assert_eq!(other.has(&names(&keys), later()), [true, true, false]);
    let bytes = block(0).1.len() as u64;
    assert_eq!(other.usage(), FolderUsage { entries: 120, bytes: 120 * bytes });
    other.remove(&names(&keys), later());
    assert_eq!((has(&folder, 3), folder.usage().entries), (false, 118));
    assert_eq!(other.counted_bytes(), 118 * bytes);
    assert_eq!(folder.get(&names(&keys[..1]), 10, later()), [None], "longer than may be read");
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
    // A count that is damaged or missing is made again from the files.
    for damage in [&b"nonsense"[..], &[0xff; 16], &[]] {
        fs::write(place.join("usage"), damage).unwrap();
        put(&folder, 200..202);
        folder.remove(&names(&[block(200).0, block(201).0]), later());
        assert!(folder.usage().entries >= 80);
    }
    fs::remove_file(place.join("usage")).unwrap();
    for first in [300, 400] {
        put(&folder, first..first + 30);
        assert!(folder.usage().bytes <= 100 * each && has(&folder, first + 29));
        // As if there was nothing in the folder.
        fs::write(place.join("usage"), [0; 16]).unwrap();
    }
    fs::remove_dir_all(place).unwrap();
}

#[test]
fn temporary_files_that_were_left_behind_are_swept() {
    let place = temporary("temporaries");
    put(&Folder::open(&place, u64::MAX).unwrap(), 1..2);
    let key = block(1).0.to_string();
    let shard = place.join(&key[..2]);
    let names = [format!(".{key}.1-1.tmp"), format!(".{key}.2-2.tmp"), ".notes.tmp".to_owned(), format!("{key}.tmp")];
    for name in &names {
        fs::write(shard.join(name), b"left behind").unwrap();
    }
    let old = SystemTime::now() - Duration::from_secs(2 * 60 * 60);
    for name in &names[1..] {
        fs::File::options().write(true).open(shard.join(name)).unwrap().set_modified(old).unwrap();
    }
    let folder = Folder::open(&place, u64::MAX).unwrap();
    let left = names.each_ref().map(|name| shard.join(name).exists());
    assert_eq!(left, [true, false, true, true], "only old ones of entries");
    assert!(has(&folder, 1));
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
    assert!(!has(&folder, 2) && !folder.has(&names(&[key]), later())[0]);
    assert!(folder.write(&[(key.to_string(), &bytes[..])]).is_err());
    assert_eq!(folder.usage().entries, 1);
    fs::write(&elsewhere, b"mine").unwrap();
    // A folder is refused if it is a link, with or without a slash at the end, or if others may write to it.
    let link = temporary("link");
    let _ = fs::remove_file(&link);
    symlink(&place, &link).unwrap();
    for path in [link.clone(), link.join(""), link.join("."), PathBuf::from(format!("{}//./", link.display()))] {
        let refusal = Folder::open(&path, 1).unwrap_err();
        assert_eq!(refusal.code(), Code::IoError);
        assert!(refusal.to_string().contains("it is a link, or no folder"), "{refusal}");
    }
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(Folder::open(&place, 1).unwrap_err().to_string().contains("others may write to it"));
    assert!(!has(&folder, 1), "nor is it used any more");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(has(&folder, 1));
    for path in [link, elsewhere] {
        fs::remove_file(path).unwrap();
    }
    fs::remove_dir_all(place).unwrap();
}

/// If anything in a folder becomes a link between calls, the link's target stays unchanged.
#[cfg(unix)]
#[test]
fn what_lies_outside_of_a_folder_is_never_touched() {
    use std::os::unix::fs::symlink;
    let (place, elsewhere) = (temporary("swapped"), temporary("outside"));
    let mut random = Random(5);
    let each = block(0).1.len() as u64;
    for round in 0..30 {
        fs::create_dir_all(&elsewhere).unwrap();
        let folder = Folder::open(&place, 20 * each).unwrap();
        put(&folder, 0..12);
        // The outside has complete entries, damaged ones, and temporary files that were left behind.
        for number in 0..40 {
            let (key, bytes) = block(number);
            fs::write(elsewhere.join(key.to_string()), if number % 2 == 0 { &bytes[..] } else { b"mine" }).unwrap();
            fs::write(elsewhere.join(format!(".{key}.1-1.tmp")), b"mine").unwrap();
        }
        make_private(&elsewhere);
        for file in fs::read_dir(&elsewhere).unwrap() {
            let old = SystemTime::now() - Duration::from_secs(100_000);
            fs::File::options().write(true).open(file.unwrap().path()).unwrap().set_modified(old).unwrap();
        }
        let shown = || {
            let file = |file: std::io::Result<fs::DirEntry>| {
                let file = file.unwrap();
                let about = file.metadata().unwrap();
                (file.file_name(), fs::read(file.path()).unwrap(), about.modified().unwrap())
            };
            let mut files: Vec<_> = fs::read_dir(&elsewhere).unwrap().map(file).collect();
            files.sort();
            files
        };
        let before = shown();
        let mut linked = 0;
        for number in 0..40 {
            let name = block(number).0.to_string();
            let (shard, away) = (place.join(&name[..2]), place.join(format!("away-{number}")));
            match random.below(3) {
                // Replaces the folder of the entry, or the entry itself, with a link.
                0 => {
                    let _ = fs::rename(&shard, away);
                    linked += u32::from(symlink(&elsewhere, &shard).is_ok());
                }
                1 if shard.is_dir() && !shard.is_symlink() => {
                    let _ = fs::rename(shard.join(&name), away);
                    linked += u32::from(symlink(elsewhere.join(&name), shard.join(&name)).is_ok());
                }
                _ => {}
            }
        }
        assert!(linked > 0);
        if round % 3 == 0 {
            let _ = fs::remove_file(place.join("usage"));
            symlink(elsewhere.join(block(0).0.to_string()), place.join("usage")).unwrap();
        }
        let keys: Vec<StoreKey> = (0..40).map(|number| block(number).0).collect();
        let found = folder.get(&names(&keys), MAX, later()).iter().flatten().count();
        assert!(found <= 12, "what is found was put there");
        let _ = folder.has(&names(&keys), later());
        folder.remove(&names(&keys[..6]), later());
        let blocks: Vec<_> = (0..40).map(block).collect();
        let _ = folder.write(&blocks.iter().map(|(key, bytes)| (key.to_string(), &bytes[..])).collect::<Vec<_>>());
        folder.tidy();
        let _ = (folder.usage(), folder.counted_bytes());
        assert_eq!(before, shown(), "round {round}");
        for path in [&place, &elsewhere] {
            fs::remove_dir_all(path).unwrap();
        }
    }
}

/// The child process; as a test of its own it does nothing. It writes and reads like its neighbour until it is killed.
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
        // No call waits for a stopped process, even if that process holds the lock.
        let start = Instant::now();
        put(&folder, 0..4);
        seen += (0..108).filter(|&number| has(&folder, number)).count();
        assert!(start.elapsed() < Duration::from_secs(60));
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
    // Each of three processes may be in the middle of one call.
    assert!(folder.usage().bytes <= (60 + 3 * 8) * each, "{:?}", folder.usage());
    fs::remove_dir_all(place).unwrap();
}

#[test]
fn a_name_that_is_no_key_leads_nowhere() {
    let place = temporary("names");
    let folder = Folder::open(&place.join("entries").join("here"), u64::MAX).unwrap();
    fs::write(place.join("outside"), b"mine").unwrap();
    let key = block(1).0.to_string();
    let wrong = ["", "a", "../outside", &key[1..], &format!("{key}/../x"), &format!("{key}\\x")].map(str::to_owned);
    assert_eq!(folder.has(&wrong, later()), [false; 6]);
    assert_eq!(folder.get(&wrong, MAX, later()), vec![None; 6]);
    wrong.iter().for_each(|name| assert!(folder.write(&[(name.clone(), b"bytes")]).is_err(), "{name}"));
    folder.remove(&wrong, later());
    assert_eq!(fs::read(place.join("outside")).unwrap(), b"mine");
    let marked = format!("{key}-z4-s01234567");
    assert_eq!(folder.put(&[(marked.clone(), b"bytes")], later()), 1);
    assert_eq!(folder.get(&[marked], MAX, later()), [Some(b"bytes".to_vec())]);
    assert_eq!(folder.usage(), FolderUsage { entries: 1, bytes: 5 });
    fs::remove_dir_all(place).unwrap();
}
