//! Only regular files are opened and replaced.

#![cfg(unix)]

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvtide_core::Code;
use kvtide_files::{Sink, Source};

/// Creates a file of each other kind in a folder, and returns their paths and kinds. The socket lives as long as its
/// listener.
fn others(folder: &Path) -> (Vec<(PathBuf, &'static str)>, UnixListener) {
    let path = |name: &str| folder.join(name);
    assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
    fs::create_dir(path("folder")).unwrap();
    let listener = UnixListener::bind(path("socket")).unwrap();
    for (link, target) in [("to-null", "/dev/null"), ("to-fifo", "fifo"), ("to-folder", "folder")] {
        symlink(target, path(link)).unwrap();
    }
    let all = [
        ("fifo", "a FIFO"),
        ("folder", "a folder"),
        ("socket", "a socket"),
        ("to-null", "a character device"),
        ("to-fifo", "a FIFO"),
        ("to-folder", "a folder"),
    ];
    (all.map(|(name, kind)| (path(name), kind)).to_vec(), listener)
}

fn in_folder(name: &str, work: impl FnOnce(&Path)) {
    let folder = std::env::temp_dir().join(format!("kvtide-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    work(&folder);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn nothing_else_is_opened() {
    in_folder("opened", |folder| {
        let (others, _listener) = others(folder);
        for (path, kind) in others.into_iter().chain([(PathBuf::from("/dev/zero"), "a character device")]) {
            let refusal = Source::file(&path).unwrap_err();
            assert_eq!(refusal.code(), Code::IoError);
            let said = format!("cannot open {}: it is {kind}, expected a regular file", path.display());
            assert_eq!(refusal.to_string(), said);
        }
        fs::write(folder.join("file"), b"bytes").unwrap();
        symlink("file", folder.join("link")).unwrap();
        assert_eq!(Source::file(&folder.join("link")).unwrap().len(), 5);
    });
}

#[test]
fn nothing_else_is_written_over() {
    in_folder("written", |folder| {
        let (others, _listener) = others(folder);
        for (path, kind) in &others {
            let before = fs::symlink_metadata(path).unwrap().file_type();
            let refusal = Sink::file(path).unwrap_err();
            assert_eq!(refusal.code(), Code::IoError);
            assert!(refusal.to_string().contains(&format!("it is {kind}, expected a regular file")), "{refusal}");
            assert_eq!(fs::symlink_metadata(path).unwrap().file_type(), before);
        }
        assert_eq!(fs::read_dir(folder).unwrap().count(), others.len(), "no temporary file stays");
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    });
}

#[test]
fn a_target_that_becomes_something_else_meanwhile_stays() {
    in_folder("meanwhile", |folder| {
        let path = folder.join("cache.kv");
        let mut cache = kvtide_tensor::RollbackCache::new(Default::default()).unwrap();
        let bytes = [0; 8];
        let row = || kvtide_tensor::HostTensor::new("k", &bytes, kvtide_tensor::DType::F32, &[1, 1, 1, 2]).unwrap();
        cache.append(row(), row(), None).unwrap();
        let mut save = kvtide_files::Save::rollback_cache(&cache).unwrap();
        save.write(Sink::file(&path).unwrap(), &Default::default()).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!(save.finish().unwrap_err().code(), Code::IoError);
        assert!(fs::symlink_metadata(&path).unwrap().file_type().is_fifo());
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "no temporary file stays");
    });
}
