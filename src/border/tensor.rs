//! Tensors: results of caches, native views, and tensors as arguments.
//!
//! An object with a finalizer costs V8 microseconds. A decode loop would pay for one at each append and rarely read it.
//! So a call returns numbers that describe its view, and JavaScript makes a native view from them only when the view is
//! read. Only buffers are objects: a cache returns its buffer once, and again after it has allocated a new one.
//!
//! ```text
//! meta[2 * META ..]   kind   run 0: start  len   run 1: start  len   end   sweep (-1: none)   head
//!                     window (0: none)  sinks  1 if the last tokens are a tree
//! ```
//!
//! JavaScript passes a tensor as a native view, as a typed array with its description, or as a buffer with the
//! description of a view: the index of the tensor in the buffer, and the numbers above without the kind.
//!
//! A cache holds weak references to the buffers and views made from it, so that disposing of the cache frees their
//! memory at once.
#![expect(unsafe_code, reason = "the conversion of arguments is an unsafe trait function of napi")]

use std::cell::{OnceCell, Ref, RefCell};
use std::rc::{Rc, Weak};

use kvtide_core::paged::Window;
use kvtide_core::{Run, Stamp, counted};
use kvtide_tensor::buffers::{BufferHandle, CacheWindow, Shown, ShownNumbers, Source};
use kvtide_tensor::runtime::{Budget, device, device_name};
use kvtide_tensor::{Error, View};
use napi::bindgen_prelude::{AsyncTask, FromNapiRef, FromNapiValue, TypeName, ValidateNapiValue};
use napi::{Env, Result, ValueType, sys};
use napi_derive::napi;

use crate::border::argument::{ArrayArg, META, count, description, host_tensor, whole};
use crate::border::external_array::ExternalArray;
use crate::border::handle::{budget, guard};
use crate::border::read_task::ReadTask;
use crate::border::refusal::{Outcome, Refusal};
use crate::border::stop::NativeStop;

/// An object whose memory is freed when its cache is disposed of.
trait Release {
    fn release(&self);
}

impl<T> Release for RefCell<Option<T>> {
    fn release(&self) {
        self.replace(None);
    }
}

/// Weak references to the objects that were made from one cache.
#[derive(Clone, Default)]
pub(crate) struct Children(Rc<RefCell<Vec<Weak<dyn Release>>>>);

impl Children {
    /// Keeps `value` until the cache is disposed of or its own object is dropped.
    pub fn adopt<T: 'static>(&self, value: T) -> Rc<RefCell<Option<T>>> {
        let child = Rc::new(RefCell::new(Some(value)));
        let mut children = self.0.borrow_mut();
        if children.len() == children.capacity() {
            children.retain(|child| child.strong_count() > 0);
        }
        let known: Rc<dyn Release> = child.clone();
        children.push(Rc::downgrade(&known));
        child
    }

    pub fn release(&self) {
        for child in self.0.take().iter().filter_map(Weak::upgrade) {
            child.release();
        }
    }
}

/// JavaScript already has the buffer.
const SAME: f64 = 0.0;
/// The cache's current buffer, for JavaScript to keep.
const KEEP: f64 = 1.0;
/// A buffer for this result only.
const ONCE: f64 = 2.0;
const NOTHING: f64 = 3.0;

/// JavaScript's references into one cache: the buffer that it keeps, and the objects made from the cache.
#[derive(Default)]
pub(crate) struct CacheViews {
    /// The id of the buffer that JavaScript keeps.
    kept: Option<u64>,
    pub children: Children,
}

impl CacheViews {
    /// Like [`CacheViews::show`], for a call that may return no view.
    pub fn show_optional(&mut self, shown: Option<&Shown>, meta: &mut [f64]) -> Outcome<Option<NativeBuffer>> {
        match shown {
            Some(shown) => self.show(shown, meta),
            None => {
                if let Some(kind) = meta.get_mut(2 * META) {
                    *kind = NOTHING;
                }
                Ok(None)
            }
        }
    }

    /// True if JavaScript keeps another buffer than `buffer`, the cache's current one. JavaScript then drops its
    /// buffer.
    pub fn let_go(&mut self, buffer: Option<u64>) -> bool {
        self.kept.take_if(|kept| buffer != Some(*kept)).is_some()
    }

    /// Writes the numbers of a view to `meta`. Returns the buffer if JavaScript does not have it yet.
    pub fn show(&mut self, shown: &Shown, meta: &mut [f64]) -> Outcome<Option<NativeBuffer>> {
        let missing = || kvtide_core::Error::argument("meta", "too few numbers", "room for the numbers of a view");
        let ShownNumbers { runs: [first, second], end, stamp, window } = shown.numbers();
        let (sweep, head) = stamp.map_or((-1.0, 0), |stamp| (stamp.to_raw().0 as f64, stamp.to_raw().1));
        let same = self.kept == Some(shown.buffer_id());
        let kind = match stamp {
            _ if same => SAME,
            Some(_) => KEEP,
            None => ONCE,
        };
        let out = meta.get_mut(2 * META..=2 * META + NUMBERS).ok_or_else(missing)?;
        let numbers = [first.start, first.len, second.start, second.len].map(f64::from);
        out[0] = kind;
        out[1..5].copy_from_slice(&numbers);
        out[5..8].copy_from_slice(&[end as f64, sweep, head.into()]);
        let none = [0.0; 3];
        out[8..].copy_from_slice(&window.map_or(none, |CacheWindow { window, is_tree }| {
            [window.tokens().into(), window.sinks().into(), f64::from(u8::from(is_tree))]
        }));
        if same {
            return Ok(None);
        }
        if kind == KEEP {
            self.kept = Some(shown.buffer_id());
        }
        let children = if shown.stands_alone() { Children::default() } else { self.children.clone() };
        Ok(Some(NativeBuffer { buffer: children.adopt(shown.buffer()), children }))
    }
}

/// The memory of views that exist only as numbers.
#[napi]
pub struct NativeBuffer {
    buffer: Rc<RefCell<Option<BufferHandle>>>,
    children: Children,
}

/// Length of the description of a view, in numbers.
pub(crate) const NUMBERS: usize = 10;

impl NativeBuffer {
    /// The memory. Returns an error if its cache was disposed of.
    pub(crate) fn handle(&self) -> Outcome<BufferHandle> {
        Ok(self.buffer.borrow().clone().ok_or(Error::Disposed { object: "cache of this view" })?)
    }
}

/// Makes a view of one tensor in `buffer` from the numbers that a call on the cache returned.
pub(crate) fn view_of(buffer: &BufferHandle, part: f64, numbers: &[f64]) -> Outcome<View> {
    let &[start, len, next_start, next_len, end, sweep, head, window, sinks, tree] = numbers else {
        return Err(kvtide_core::Error::argument("numbers", numbers.len(), format!("{NUMBERS} numbers")).into());
    };
    let run = |start, len| Ok::<_, Refusal>(Run::new(count("start", start)?, count("len", len)?));
    let stamp = if sweep < 0.0 { None } else { Some(Stamp::from_raw(whole("sweep", sweep)?, count("head", head)?)) };
    let window = match count("window", window)? {
        0 => None,
        window => Some(CacheWindow { window: Window::new(window, count("sinks", sinks)?)?, is_tree: tree != 0.0 }),
    };
    let runs = [run(start, len)?, run(next_start, next_len)?];
    let numbers = ShownNumbers { runs, end: whole("end", end)?, stamp, window };
    Ok(buffer.shown(numbers)?.view(count("part", part)? as usize))
}

#[napi]
impl NativeBuffer {
    /// Makes a view of one tensor in this buffer from the numbers that a call on the cache returned.
    #[napi]
    pub fn view(&self, env: &Env, part: f64, numbers: &[f64]) -> Result<NativeView> {
        guard(env, || Ok(NativeView::of(view_of(&self.handle()?, part, numbers)?, &self.children)))
    }

    /// Releases the buffer. Existing views keep their memory.
    #[napi]
    pub fn dispose(&self, env: &Env) -> Result<()> {
        guard(env, || {
            self.buffer.replace(None);
            Ok(())
        })
    }
}

/// A native tensor: one with its own memory, or a view into a cache.
#[napi]
pub struct NativeView {
    view: Rc<RefCell<Option<View>>>,
    children: Children,
}

impl NativeView {
    /// Makes a view and registers it with the cache that it was made from.
    pub(crate) fn of(view: View, children: &Children) -> Self {
        NativeView { view: children.adopt(view), children: children.clone() }
    }

    /// Borrows the view for a call on another object.
    pub(crate) fn get(&self) -> Outcome<Ref<'_, View>> {
        let disposed = |_| kvtide_tensor::Error::Disposed { object: "Tensor" };
        Ok(Ref::filter_map(self.view.borrow(), Option::as_ref).map_err(disposed)?)
    }

    fn read<R>(&self, env: &Env, work: impl FnOnce(&View) -> Outcome<R>) -> Result<R> {
        guard(env, || work(&*self.get()?))
    }
}

/// Copies a typed array to native memory of a device.
#[napi]
pub fn tensor_from_host(env: &Env, data: ArrayArg, meta: &[f64], on: String) -> Result<NativeView> {
    guard(env, || {
        let budget = Budget::within(&device(&on)?, Some(&budget()), None);
        let host = host_tensor("data", data, description("data", meta, 0)?)?;
        Ok(NativeView::of(View::from_host(&host, &budget)?, &Children::default()))
    })
}

#[napi]
impl NativeView {
    #[napi]
    pub fn shape(&self, env: &Env) -> Result<Vec<f64>> {
        self.read(env, |view| Ok(view.shape().iter().map(|&size| size as f64).collect()))
    }

    #[napi]
    pub fn strides(&self, env: &Env) -> Result<Vec<f64>> {
        self.read(env, |view| Ok(view.strides().iter().map(|&stride| stride as f64).collect()))
    }

    #[napi]
    pub fn device(&self, env: &Env) -> Result<String> {
        self.read(env, |view| Ok(device_name(view.device())))
    }

    #[napi]
    pub fn dtype(&self, env: &Env) -> Result<&'static str> {
        self.read(env, |view| Ok(view.dtype().name()))
    }

    #[napi]
    pub fn key_positions(&self, env: &Env) -> Result<Vec<f64>> {
        self.read(env, |view| Ok(view.key_positions().iter().map(|&position| position as f64).collect()))
    }

    /// Returns an error if the view can no longer be read.
    #[napi]
    pub fn check(&self, env: &Env) -> Result<()> {
        self.read(env, |view| Ok(view.check()?))
    }

    #[napi]
    pub fn is_stale(&self, env: &Env) -> Result<bool> {
        self.read(env, |view| Ok(view.is_stale()))
    }

    #[napi]
    pub fn is_contiguous(&self, env: &Env) -> Result<bool> {
        self.read(env, |view| Ok(view.is_contiguous()))
    }

    #[napi]
    pub fn narrow(&self, env: &Env, dim: f64, start: f64, length: f64) -> Result<NativeView> {
        self.read(env, |view| {
            let (dim, start) = (count("dim", dim)? as usize, whole("start", start)? as usize);
            let narrowed = view.narrow(dim, start, whole("length", length)? as usize)?;
            Ok(NativeView::of(narrowed, &self.children))
        })
    }

    #[napi]
    pub fn reshape(&self, env: &Env, shape: &[f64]) -> Result<NativeView> {
        self.read(env, |view| {
            let shape: Vec<usize> =
                shape.iter().map(|&size| Ok(whole("shape", size)? as usize)).collect::<Outcome<_>>()?;
            Ok(NativeView::of(view.reshape(&shape, &budget())?, &self.children))
        })
    }

    /// Copies the elements into the caller's array, bit for bit.
    #[napi]
    pub fn read_into(&self, env: &Env, out: ArrayArg) -> Result<()> {
        self.read(env, |view| {
            let out = out.memory("out")?;
            if view.overlaps(out.address(), out.len()) {
                return Err(kvtide_core::Error::argument("out", "the tensor's own memory", "other memory").into());
            }
            Ok(view.read_into(out.bytes_mut())?)
        })
    }

    /// Copies the elements into the caller's array, as 32-bit floats.
    #[napi]
    pub fn read_floats_into(&self, env: &Env, out: ArrayArg) -> Result<()> {
        self.read(env, |view| {
            let floats = view.to_f32()?;
            let out = out.memory("out")?.bytes_mut();
            if out.len() != floats.len() * 4 {
                let expected = counted(floats.len() as u64, "element");
                return Err(kvtide_core::Error::argument("out", counted(out.len() as u64, "byte"), expected).into());
            }
            for (bytes, value) in out.chunks_exact_mut(4).zip(floats) {
                bytes.copy_from_slice(&value.to_ne_bytes());
            }
            Ok(())
        })
    }

    /// Reads the elements in the background, as they are or as 32-bit floats. Returns their bytes.
    #[napi(ts_return_type = "Promise<Uint8Array>")]
    pub fn read_later(&self, env: &Env, as_floats: bool, stop: Option<&NativeStop>) -> Result<AsyncTask<ReadTask>> {
        self.read(env, |view| Ok(AsyncTask::new(ReadTask::of(view, as_floats, stop)?)))
    }

    /// The elements as bytes, without a copy. The array keeps the memory alive and shows later writes of the cache.
    #[napi(ts_return_type = "Uint8Array")]
    pub fn data(&self, env: &Env) -> Result<ExternalArray> {
        self.read(env, |view| Ok(ExternalArray::over(view.as_ptr()?, view.bytes(), view.clone())))
    }

    #[napi]
    pub fn equals(&self, env: &Env, other: &NativeView) -> Result<bool> {
        self.read(env, |view| Ok(view.equals(&*other.get()?)?))
    }

    /// Takes `&self` like all other methods, because background work borrows the object until it ends.
    #[napi]
    pub fn dispose(&self, env: &Env) -> Result<()> {
        guard(env, || {
            self.view.replace(None);
            Ok(())
        })
    }
}

/// A tensor argument: a native view, or a buffer or an array to be read as its description says.
pub struct TensorArg {
    object: Option<TensorObject>,
    array: ArrayArg,
    /// The view. For a buffer it is set once its description has been read.
    view: OnceCell<Box<View>>,
}

/// A native object; `None` inside if it was disposed of.
enum TensorObject {
    View,
    Buffer(Option<BufferHandle>),
}

impl TensorArg {
    /// True if a tensor was given.
    pub(crate) fn is_given(&self) -> bool {
        self.object.is_some() || self.array.is_array()
    }
}

impl TypeName for TensorArg {
    fn type_name() -> &'static str {
        "tensor"
    }

    fn value_type() -> ValueType {
        ValueType::Object
    }
}

impl ValidateNapiValue for TensorArg {}

impl FromNapiValue for TensorArg {
    unsafe fn from_napi_value(env: sys::napi_env, value: sys::napi_value) -> Result<Self> {
        // SAFETY: environment and value are those of the call whose arguments are converted.
        let array = unsafe { ArrayArg::from_napi_value(env, value)? };
        let view = OnceCell::new();
        // SAFETY: as above.
        let object = if array.is_array() { None } else { unsafe { object(env, value, &view) } };
        Ok(TensorArg { object, array, view })
    }
}

/// # Safety
///
/// Environment and value are those of the call whose arguments are converted.
unsafe fn object(env: sys::napi_env, value: sys::napi_value, place: &OnceCell<Box<View>>) -> Option<TensorObject> {
    let mut kind = 0;
    // SAFETY: the caller guarantees that both belong to the running call.
    let asked = unsafe { sys::napi_typeof(env, value, &mut kind) };
    if asked != sys::Status::napi_ok || kind != sys::ValueType::napi_object {
        return None;
    }
    // SAFETY: as above; the object's type tag is checked, and JavaScript keeps it alive for the length of the call.
    if let Ok(buffer) = unsafe { NativeBuffer::from_napi_ref(env, value) } {
        return Some(TensorObject::Buffer(buffer.handle().ok()));
    }
    // SAFETY: as above.
    let view = unsafe { NativeView::from_napi_ref(env, value) }.ok()?;
    if let Ok(view) = view.get() {
        place.get_or_init(|| Box::new(view.clone()));
    }
    Some(TensorObject::View)
}

/// Reads the argument `value`, as the description at index `place` in `meta` says.
pub(crate) fn source<'a>(
    argument: &'static str,
    value: &'a TensorArg,
    meta: &[f64],
    place: usize,
) -> Outcome<Source<'a>> {
    match &value.object {
        Some(TensorObject::View) => {
            Ok(Source::View(value.view.get().ok_or(kvtide_tensor::Error::Disposed { object: "Tensor" })?))
        }
        Some(TensorObject::Buffer(Some(buffer))) => {
            let numbers = description(argument, meta, place)?;
            let view = view_of(buffer, numbers[0], &numbers[1..=NUMBERS])?;
            Ok(Source::View(value.view.get_or_init(|| Box::new(view))))
        }
        Some(TensorObject::Buffer(None)) => Err(kvtide_tensor::Error::Disposed { object: "cache of this view" }.into()),
        None => Ok(Source::Host(host_tensor(argument, value.array, description(argument, meta, place)?)?)),
    }
}
