//! Both kinds of access treat the content of a folder alike, and touch nothing behind a link.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;

fn temporary(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("kvtide-directory-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

macro_rules! alike {
    ($name:ident, $module:ident) => {
        #[test]
        fn $name() {
            use super::$module::Directory;
            let place = temporary(stringify!($module));
            assert!(Directory::open(&place).is_err());
            let root = Directory::make(&place).unwrap();
            let inner = Directory::make(&place).unwrap().make_folder("3f").unwrap();
            assert!(root.folder("3e").is_err());
            inner.create("new.tmp").unwrap().write_all(b"four").unwrap();
            assert!(inner.create("new.tmp").is_err());
            inner.rename("new.tmp", "entry").unwrap();
            assert_eq!((inner.names().unwrap(), inner.about("entry").unwrap().bytes), (vec!["entry".to_owned()], 4));
            assert!(inner.about("entry").unwrap().modified.elapsed().unwrap().as_secs() < 60);
            let mut text = String::new();
            inner.read("entry").unwrap().read_to_string(&mut text).unwrap();
            root.open_or_make("usage").unwrap().write_all(b"1").unwrap();
            assert_eq!((text.as_str(), fs::read(place.join("usage")).unwrap()), ("four", b"1".to_vec()));
            // A folder is not a file, and a file is not a folder.
            assert!(root.about("3f").is_err() && root.remove("3f").is_err() && root.read("3f").is_err());
            assert!(inner.folder("entry").is_err());
            inner.remove("entry").unwrap();
            assert!(inner.about("entry").is_err());
            #[cfg(unix)]
            links(&place, &inner);
            fs::remove_dir_all(place).unwrap();

            #[cfg(unix)]
            fn links(place: &std::path::Path, inner: &Directory) {
                use std::os::unix::fs::symlink;
                let root = Directory::open(place).unwrap();
                let elsewhere = temporary(concat!(stringify!($module), "-elsewhere"));
                fs::create_dir(&elsewhere).unwrap();
                fs::write(elsewhere.join("entry"), b"mine").unwrap();
                symlink(&elsewhere, place.join("aa")).unwrap();
                symlink(elsewhere.join("entry"), place.join("3f/entry")).unwrap();
                assert!(root.folder("aa").is_err() && root.make_folder("aa").is_err());
                assert!(Directory::open(&place.join("aa")).is_err() && Directory::make(&place.join("aa")).is_err());
                assert!(
                    inner.read("entry").is_err() && inner.about("entry").is_err() && inner.remove("entry").is_err()
                );
                assert!(inner.create("entry").is_err() && inner.open_or_make("entry").is_err());
                assert!(fs::symlink_metadata(place.join("3f/entry")).unwrap().is_symlink());
                // A renamed file replaces the link itself.
                inner.create("new.tmp").unwrap();
                inner.rename("new.tmp", "entry").unwrap();
                assert_eq!(fs::read(elsewhere.join("entry")).unwrap(), b"mine");
                fs::remove_dir_all(elsewhere).unwrap();
            }
        }
    };
}

#[cfg(unix)]
alike!(by_handle_and_by_path_are_alike_here, by_handle);
alike!(by_path_and_by_handle_are_alike_here, by_path);

#[cfg(unix)]
#[test]
fn a_handle_stays_in_the_folder_that_was_checked() {
    use super::by_handle::Directory;
    use std::os::unix::fs::{PermissionsExt, symlink};
    let (place, elsewhere) = (temporary("swap"), temporary("swap-elsewhere"));
    let inner = Directory::make(&place).unwrap().make_folder("3f").unwrap();
    inner.create("entry").unwrap().write_all(b"ours").unwrap();
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("entry"), b"mine").unwrap();
    fs::rename(place.join("3f"), place.join("moved")).unwrap();
    symlink(&elsewhere, place.join("3f")).unwrap();
    inner.remove("entry").unwrap();
    inner.create("other").unwrap();
    assert_eq!(fs::read(elsewhere.join("entry")).unwrap(), b"mine");
    assert!(!elsewhere.join("other").exists() && place.join("moved/other").exists());
    // A pipe is refused without waiting.
    let made = std::process::Command::new("mkfifo").arg(place.join("moved/pipe")).status().unwrap();
    assert!(made.success());
    assert!(inner.read("pipe").is_err() && inner.open_or_make("pipe").is_err() && inner.remove("pipe").is_err());
    for mode in [0o770, 0o707, 0o1777, 0o720] {
        fs::set_permissions(&place, fs::Permissions::from_mode(mode)).unwrap();
        let refusal = Directory::open(&place).unwrap_err().to_string();
        assert!(refusal.contains("others may write to it"), "{mode:o}: {refusal}");
    }
    for mode in [0o700, 0o750, 0o755] {
        fs::set_permissions(&place, fs::Permissions::from_mode(mode)).unwrap();
        Directory::open(&place).unwrap();
    }
    // Only root may give folders away.
    if std::os::unix::fs::chown(&place, Some(65_534), None).is_ok() {
        let refusal = Directory::open(&place).unwrap_err().to_string();
        assert_eq!(refusal, "it belongs to user 65534, and this process runs as user 0");
    }
    fs::remove_dir_all(place).unwrap();
    fs::remove_dir_all(elsewhere).unwrap();
}
