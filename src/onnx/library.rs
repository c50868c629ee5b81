//! A library of onnxruntime that this process has already loaded: that exact file, its version, and the one environment
//! of the process.
//!
//! onnxruntime-node loads it first (`lib/onnx/runtime.ts`), because another version loaded before would make
//! onnxruntime-node fail. This file only opens libraries that are already loaded. It gets the same mapping and never
//! unloads it, so functions and environment live as long as the process. The main thread and worker threads share them.
//! Platform-specific code is in this file: opening a loaded library, and encoding paths.
#![expect(unsafe_code, reason = "functions of a library are called that is found by its path")]

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
    /// The version, such as `1.30.0`.
    version: String,
    /// True once a session has registered kvtide's operator domain. The library adds the domain to a process-wide list
    /// and does not support two sessions doing so at once.
    knows_domain: Mutex<bool>,
    /// True if sessions can use kvtide's allocator.
    pub has_memory: bool,
}

// SAFETY: the functions may be called from any thread, and the environment was made for all threads.
unsafe impl Send for Library {}
// SAFETY: as above; mutable state is behind a lock.
unsafe impl Sync for Library {}

/// Libraries by their paths. They are never removed.
static LIBRARIES: Mutex<Vec<(PathBuf, &'static Library)>> = Mutex::new(Vec::new());

/// Session option with the folder that contains the weight files of a model that is given as bytes.
const FOLDER_KEY: &CStr = c"session.model_external_initializers_file_folder_path";
/// The first minor version (1.x) that supports this option.
const FOLDER_VERSION: u32 = 21;

/// Facts about a library, known before anything is computed.
#[napi(object, object_from_js = false)]
pub struct NativeOnnxLibrary {
    pub file: String,
    pub version: String,
    /// True if it accepts a folder for the weights of a model that is given as bytes.
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
            "another onnxruntime is loaded in this process: load only one version of onnxruntime-node".into(),
        ))
    })
}

fn unavailable(reason: String) -> Refusal {
    let message = format!("onnxruntime cannot be used: {reason}");
    Refusal { code: Code::RuntimeUnavailable, message, details: details![runtime: "onnxruntime-node", reason: reason] }
}

impl Library {
    /// A library that was found earlier. Returns an error if it is not loaded.
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
        // SAFETY: the library returns a string that it keeps.
        let version = unsafe { CStr::from_ptr((base.version)()) }.to_string_lossy().into_owned();
        let old = || unavailable(format!("its version is {version}, at least 1.17 is needed: update onnxruntime-node"));
        // An older library would print an error about an unknown version, so its version is checked first.
        if minor(&version).is_none_or(|minor| minor < api::VERSION) {
            return Err(old());
        }
        // SAFETY: any number may be requested.
        let table = unsafe { (base.get_api)(api::VERSION) };
        if table.is_null() {
            return Err(old());
        }
        // SAFETY: the table is that of this version.
        let api = unsafe { Api::read(table) }.ok_or_else(old)?;
        let mut library = Library { api, env: null_mut(), version, knows_domain: Mutex::new(false), has_memory: false };
        let mut env = null_mut();
        // The environment logs at onnxruntime-node's level; sessions that kvtide makes are silent.
        // SAFETY: the name is a string, and the output pointer points to a local.
        library.check(unsafe { (library.api.create_env)(number::WARNING, c"kvtide".as_ptr(), &mut env) })?;
        library.env = env;
        library.has_memory = library.register_memory();
        Ok(library)
    }

    /// Registers kvtide's allocator. Without it, sessions use the library's own.
    fn register_memory(&self) -> bool {
        #[cfg(target_os = "linux")]
        return super::allocator::SessionMemory::register(self).is_ok();
        #[cfg(not(target_os = "linux"))]
        false
    }

    pub fn takes_folder(&self) -> bool {
        minor(&self.version).is_some_and(|minor| minor >= FOLDER_VERSION)
    }

    /// The key of the folder option. Returns an error if the library does not support it.
    pub fn folder_key(&self) -> Outcome<&'static CStr> {
        if self.takes_folder() {
            return Ok(FOLDER_KEY);
        }
        let reason = "takes weights from a folder only from 1.21 on: update onnxruntime-node";
        Err(unavailable(format!("version {} {reason}", self.version)))
    }

    /// Makes a session that registers kvtide's operator domain. Until the first session has been made, other threads
    /// wait.
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

    /// Turns an error status into an error.
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

    /// Makes an error status for the library, which copies the text.
    pub fn status(&self, text: &str) -> Status {
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the text is a string.
        unsafe { (self.api.create_status)(number::FAIL, text.as_ptr()) }
    }

    /// Calls a function that creates an object.
    pub fn make<T>(&self, make: impl FnOnce(*mut *mut T) -> Status) -> Outcome<*mut T> {
        let mut made = null_mut();
        self.check(make(&mut made))?;
        Ok(made)
    }

    /// Calls a function that returns a number.
    pub fn ask<T: Default>(&self, ask: impl FnOnce(*mut T) -> Status) -> Outcome<T> {
        let mut answer = T::default();
        self.check(ask(&mut answer))?;
        Ok(answer)
    }
}

/// The minor version: `30` of `1.30.0`.
fn minor(version: &str) -> Option<u32> {
    let (major, rest) = version.split_once('.')?;
    let minor = rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()?;
    // Every major version after 1 counts as newer than any 1.x.
    if major.parse::<u32>().ok()? > 1 { Some(u32::MAX) } else { Some(minor) }
}

/// The node that a message names: `.. while running Gather node. Name:'/embed' Status ..`, `.. for Gather(1) node with
/// name '/embed'`.
fn node_in(message: &str) -> Option<&str> {
    let (_, rest) = ["Name:'", "with name '"].iter().find_map(|before| message.split_once(before))?;
    rest.split_once('\'').map(|(name, _)| name).filter(|name| !name.is_empty())
}

/// The function table of a loaded library; `None` if this file is not loaded.
fn base(path: &Path) -> Outcome<Option<&'static ApiBase>> {
    let Some(library) = loaded(path) else { return Ok(None) };
    // SAFETY: onnxruntime exports a function of this name and type; other libraries have no function of this name.
    let base = unsafe {
        let get = library.get::<unsafe extern "system" fn() -> *const ApiBase>(b"OrtGetApiBase\0");
        get.ok().and_then(|get| get().as_ref())
    };
    let refused = || unavailable(format!("{} is not a library of onnxruntime", path.display()));
    let base = base.ok_or_else(refused)?;
    // The library stays open, because its functions are used from here on.
    std::mem::forget(library);
    Ok(Some(base))
}

/// The file as a library, if this process has loaded it.
#[cfg(unix)]
fn loaded(path: &Path) -> Option<libloading::os::unix::Library> {
    // SAFETY: this runs no code, because it never loads a library that is not loaded yet.
    unsafe { libloading::os::unix::Library::open(Some(path), libc::RTLD_NOW | libc::RTLD_NOLOAD) }.ok()
}

/// The file as a library, if this process has loaded it.
#[cfg(windows)]
fn loaded(path: &Path) -> Option<libloading::os::windows::Library> {
    libloading::os::windows::Library::open_already_loaded(path).ok()
}

/// Encodes a path as the library expects it, with a terminating zero.
pub(super) fn encoded(path: &Path) -> Outcome<Vec<PathChar>> {
    let bytes = letters(path);
    if bytes.contains(&0) {
        return Err(kvtide_core::Error::argument(
            "model",
            path.display().to_string(),
            "a path without a zero character",
        )
        .into());
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

/// Converts a thread count or another small number.
pub(super) fn small(value: usize) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// Null, for a missing optional object.
pub(super) const NONE: *const c_void = std::ptr::null();
