//! A library of onnxruntime that somebody else has loaded: the very file, its version, and the one environment of the process.
//!
//! onnxruntime-node loads it first (`lib/onnx/runtime.ts`), since another version in the process before it would make it fail. Here only
//! what is loaded already is opened once more: the same mapping, never unloaded, so functions and environment live as long as the process.
//! Main thread and workers share them. What depends on the system is in this file: how a loaded file is opened, and how paths are written.
#![expect(unsafe_code, reason = "functions of a library that was found by its path are called")]

use std::ffi::{CStr, CString, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use kvtide_core::{Code, details};
use napi_derive::napi;

use super::api::{self, Api, ApiBase, Env, PathChar, Status, number};
use crate::border::handle::guard;
use crate::border::refusal::{Outcome, Refusal};

/// A library in use.
pub(super) struct Library {
    pub api: Api,
    pub env: *mut Env,
    /// `1.30.0`.
    version: String,
    /// Whether a session has made kvtide's domain of operators known. The library adds it to a list of the whole process, and does not
    /// expect two sessions to do so at once.
    knows_domain: Mutex<bool>,
}

// SAFETY: the functions may be called from any thread, and the environment is made for all of them.
unsafe impl Send for Library {}
// SAFETY: as above; what changes in it is behind a lock.
unsafe impl Sync for Library {}

/// Libraries by their files. They stay.
static LIBRARIES: Mutex<Vec<(PathBuf, &'static Library)>> = Mutex::new(Vec::new());

/// Where weights in files of their own are looked for, of a model that is given as bytes, by this key.
const FOLDER_KEY: &CStr = c"session.model_external_initializers_file_folder_path";
/// The first version that knows it, 1.x.
const FOLDER_VERSION: u32 = 21;

/// What can be said of a library before anything is computed.
#[napi(object, object_from_js = false)]
pub struct NativeOnnxLibrary {
    pub file: String,
    pub version: String,
    /// Whether it takes a folder for the weights of a model that is given as bytes.
    pub takes_folder: bool,
}

/// The first of these files that is loaded in this process.
#[napi]
pub fn onnx_library(env: &napi::Env, files: Vec<String>) -> napi::Result<NativeOnnxLibrary> {
    guard(env, || {
        for file in &files {
            if let Some(library) = Library::find(Path::new(file))? {
                let version = library.version.clone();
                return Ok(NativeOnnxLibrary { file: file.clone(), version, takes_folder: library.takes_folder() });
            }
        }
        Err(unavailable(
            "another onnxruntime is loaded in this process: load one version of onnxruntime-node alone".into(),
        ))
    })
}

fn unavailable(reason: String) -> Refusal {
    let message = format!("onnxruntime cannot be used: {reason}");
    Refusal { code: Code::RuntimeUnavailable, message, details: details![runtime: "onnxruntime-node", reason: reason] }
}

impl Library {
    /// A library that was found before; refused if it is not loaded.
    pub fn open(path: &Path) -> Outcome<&'static Library> {
        let gone = || unavailable(format!("{} is not loaded in this process", path.display()));
        Library::find(path)?.ok_or_else(gone)
    }

    /// The library in this file, if it is loaded.
    fn find(path: &Path) -> Outcome<Option<&'static Library>> {
        let mut all = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, library)) = all.iter().find(|(known, _)| known == path) {
            return Ok(Some(library));
        }
        let Some(base) = base(path)? else { return Ok(None) };
        let library: &'static Library = Box::leak(Box::new(Library::of(base)?));
        all.push((path.to_owned(), library));
        Ok(Some(library))
    }

    fn of(base: &ApiBase) -> Outcome<Library> {
        // SAFETY: the library answers a string that it keeps.
        let version = unsafe { CStr::from_ptr((base.version)()) }.to_string_lossy().into_owned();
        let old = || unavailable(format!("its version is {version}, at least 1.17 is needed: update onnxruntime-node"));
        // An older library would print that it has no such version, so its own is looked at first.
        if minor(&version).is_none_or(|minor| minor < api::VERSION) {
            return Err(old());
        }
        // SAFETY: any number may be asked for.
        let table = unsafe { (base.get_api)(api::VERSION) };
        if table.is_null() {
            return Err(old());
        }
        // SAFETY: the table is that of this version.
        let api = unsafe { Api::read(table) }.ok_or_else(old)?;
        let mut library = Library { api, env: null_mut(), version, knows_domain: Mutex::new(false) };
        let mut env = null_mut();
        // Its messages are as loud as onnxruntime-node has them; sessions of ours are silent.
        // SAFETY: the name is a string, and the place to write to a local.
        library.check(unsafe { (library.api.create_env)(number::WARNING, c"kvtide".as_ptr(), &mut env) })?;
        library.env = env;
        Ok(library)
    }

    pub fn takes_folder(&self) -> bool {
        minor(&self.version).is_some_and(|minor| minor >= FOLDER_VERSION)
    }

    /// The key of the folder; refused by a library that does not know it.
    pub fn folder_key(&self) -> Outcome<&'static CStr> {
        if self.takes_folder() {
            return Ok(FOLDER_KEY);
        }
        let reason = "takes weights from a folder only from 1.21 on: update onnxruntime-node";
        Err(unavailable(format!("version {} {reason}", self.version)))
    }

    /// Makes a session that brings kvtide's domain. Until one has been made, others wait for their turn.
    pub fn with_domain<R>(&self, make: impl FnOnce() -> Outcome<R>) -> Outcome<R> {
        let mut knows_domain = self.knows_domain.lock().unwrap_or_else(PoisonError::into_inner);
        if *knows_domain {
            drop(knows_domain);
            return make();
        }
        let made = make()?;
        *knows_domain = true;
        Ok(made)
    }

    /// A refusal for a status that is one.
    pub fn check(&self, status: Status) -> Outcome<()> {
        if status.is_null() {
            return Ok(());
        }
        // SAFETY: the status is the library's, and is released once.
        let reason = unsafe {
            let text = CStr::from_ptr((self.api.error_message)(status)).to_string_lossy().into_owned();
            (self.api.release_status)(status);
            text
        };
        let message = format!("onnxruntime failed: {reason}");
        let details = match node_in(&reason).map(str::to_owned) {
            Some(node) => details![reason: reason, node: node],
            None => details![reason: reason],
        };
        Err(Refusal { code: Code::RuntimeFailed, message, details })
    }

    /// A status for the library, which keeps a copy of the text.
    pub fn status(&self, text: &str) -> Status {
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the text is a string.
        unsafe { (self.api.create_status)(number::FAIL, text.as_ptr()) }
    }

    /// An object that the library makes.
    pub fn make<T>(&self, make: impl FnOnce(*mut *mut T) -> Status) -> Outcome<*mut T> {
        let mut made = null_mut();
        self.check(make(&mut made))?;
        Ok(made)
    }

    /// A number that the library answers.
    pub fn ask<T: Default>(&self, ask: impl FnOnce(*mut T) -> Status) -> Outcome<T> {
        let mut answer = T::default();
        self.check(ask(&mut answer))?;
        Ok(answer)
    }
}

/// `30` of `1.30.0`.
fn minor(version: &str) -> Option<u32> {
    let (major, rest) = version.split_once('.')?;
    let minor = rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()?;
    // Whatever comes after 1 has more than any 1.x.
    if major.parse::<u32>().ok()? > 1 { Some(u32::MAX) } else { Some(minor) }
}

/// The node that a message names: `.. while running Gather node. Name:'/embed' Status ..`, `.. for Gather(1) node with name '/embed'`.
fn node_in(message: &str) -> Option<&str> {
    let (_, rest) = ["Name:'", "with name '"].iter().find_map(|before| message.split_once(before))?;
    rest.split_once('\'').map(|(name, _)| name).filter(|name| !name.is_empty())
}

/// Where a loaded library has its functions; nothing if this file is not loaded.
fn base(path: &Path) -> Outcome<Option<&'static ApiBase>> {
    let Some(library) = loaded(path) else { return Ok(None) };
    // SAFETY: onnxruntime exports a function of this name and type, and a file that is none has no function of this name.
    let base = unsafe {
        let get = library.get::<unsafe extern "system" fn() -> *const ApiBase>(b"OrtGetApiBase\0");
        get.ok().and_then(|get| get().as_ref())
    };
    let refused = || unavailable(format!("{} is no library of onnxruntime", path.display()));
    let base = base.ok_or_else(refused)?;
    // What is open stays open: its functions are used from here on.
    std::mem::forget(library);
    Ok(Some(base))
}

/// The file as a library, if this process has loaded it.
#[cfg(unix)]
fn loaded(path: &Path) -> Option<libloading::os::unix::Library> {
    // SAFETY: it runs no code: what is not loaded yet is not loaded.
    unsafe { libloading::os::unix::Library::open(Some(path), libc::RTLD_NOW | libc::RTLD_NOLOAD) }.ok()
}

/// The file as a library, if this process has loaded it.
#[cfg(windows)]
fn loaded(path: &Path) -> Option<libloading::os::windows::Library> {
    libloading::os::windows::Library::open_already_loaded(path).ok()
}

/// A path as the library wants it, with its end.
pub(super) fn encoded(path: &Path) -> Outcome<Vec<PathChar>> {
    let bytes = letters(path);
    if bytes.contains(&0) {
        return Err(
            kvtide_core::Error::argument("model", path.display().to_string(), "a path without a zero in it").into()
        );
    }
    Ok(bytes.into_iter().chain([0]).collect())
}

#[cfg(unix)]
fn letters(path: &Path) -> Vec<PathChar> {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).iter().map(|&byte| byte as PathChar).collect()
}

#[cfg(windows)]
fn letters(path: &Path) -> Vec<PathChar> {
    std::os::windows::ffi::OsStrExt::encode_wide(path.as_os_str()).collect()
}

/// For a count of threads, and other small numbers.
pub(super) fn small(value: usize) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// Nothing: for functions that take an object of which there is none.
pub(super) const NONE: *const c_void = std::ptr::null();
