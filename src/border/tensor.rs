//! Tensors: views that someone looks at, and tensors of one's own.

use std::cell::{Ref, RefCell};
use std::rc::Rc;

use kvtide_core::counted;
use kvtide_tensor::{Budget, View, device, device_name};
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::array::ArrayArg;
use crate::border::budget::budget;
use crate::border::children::Children;
use crate::border::external_array::ExternalArray;
use crate::border::handle::guard;
use crate::border::host_array::{description, host_tensor};
use crate::border::number::{count, whole};
use crate::border::read_task::ReadTask;
use crate::border::refusal::Outcome;
use crate::border::stop::NativeStop;

/// A tensor of one's own, or a view that someone looks at.
#[napi]
pub struct NativeView {
    view: Rc<RefCell<Option<View>>>,
    children: Children,
}

impl NativeView {
    /// A view, known to the cache that it was made from.
    pub(crate) fn of(view: View, children: &Children) -> Self {
        NativeView { view: children.adopt(view), children: children.clone() }
    }

    /// The view, for a call on something else.
    pub(crate) fn get(&self) -> Outcome<Ref<'_, View>> {
        let disposed = |_| kvtide_tensor::Error::Disposed { object: "Tensor" };
        Ok(Ref::filter_map(self.view.borrow(), Option::as_ref).map_err(disposed)?)
    }

    fn read<R>(&self, env: &Env, work: impl FnOnce(&View) -> Outcome<R>) -> Result<R> {
        guard(env, || work(&*self.get()?))
    }
}

/// A copy of a typed array, in native memory of a device.
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

    /// Refuses a view that can no longer be read.
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
                return Err(
                    kvtide_core::Error::argument("out", "an array over this tensor", "memory of its own").into()
                );
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

    /// The elements' bytes in the background, or those of the elements as 32-bit floats.
    #[napi(ts_return_type = "Promise<Uint8Array>")]
    pub fn read_later(&self, env: &Env, as_floats: bool, stop: Option<&NativeStop>) -> Result<AsyncTask<ReadTask>> {
        self.read(env, |view| Ok(AsyncTask::new(ReadTask::of(view, as_floats, stop)?)))
    }

    /// The elements where they lie, as bytes. The array keeps the memory alive, and shows what the cache writes there later.
    #[napi(ts_return_type = "Uint8Array")]
    pub fn data(&self, env: &Env) -> Result<ExternalArray> {
        self.read(env, |view| Ok(ExternalArray::over(view.as_ptr()?, view.bytes(), view.clone())))
    }

    #[napi]
    pub fn equals(&self, env: &Env, other: &NativeView) -> Result<bool> {
        self.read(env, |view| Ok(view.equals(&*other.get()?)?))
    }

    /// Shared as all its calls are: work in the background borrows the object until it ends.
    #[napi]
    pub fn dispose(&self, env: &Env) -> Result<()> {
        guard(env, || {
            self.view.replace(None);
            Ok(())
        })
    }
}
