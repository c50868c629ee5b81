//! Views: what every cache returns, one part or K and V together.

use kvtide_tensor::{Kv, View};
use napi::bindgen_prelude::Uint8Array;
use napi::{Env, Result};
use napi_derive::napi;

use crate::bytes::{ArrayArg, external};
use crate::guard::{Handle, Outcome, guard};
use crate::memory::budget;
use crate::number::{count, whole};
use crate::source::host_tensor;

/// One view, or K and V. Calls name the part that they mean.
#[napi]
pub struct NativeView {
    parts: [Option<Handle<View>>; 2],
}

impl From<View> for NativeView {
    fn from(view: View) -> Self {
        NativeView { parts: [Some(handle(view)), None] }
    }
}

impl From<Kv> for NativeView {
    fn from(Kv { k, v }: Kv) -> Self {
        NativeView { parts: [Some(handle(k)), Some(handle(v))] }
    }
}

fn handle(view: View) -> Handle<View> {
    Handle::new("Tensor", view)
}

impl NativeView {
    /// The view of one part, for a call on something else.
    pub(crate) fn part(&self, part: f64) -> Outcome<&View> {
        self.handle(part)?.get()
    }

    fn handle(&self, part: f64) -> Outcome<&Handle<View>> {
        let found = self.parts.get(part as usize).and_then(Option::as_ref);
        found.ok_or_else(|| kvtide_core::Error::argument("part", part, "a part of the view").into())
    }

    fn read<R>(&self, env: &Env, part: f64, work: impl FnOnce(&View) -> Outcome<R>) -> Result<R> {
        guard(env, || work(self.part(part)?))
    }
}

/// A copy of a typed array, in native memory.
#[napi]
pub fn tensor_from_host(env: &Env, data: ArrayArg, meta: &[f64]) -> Result<NativeView> {
    guard(env, || Ok(View::from_host(&host_tensor("data", data, meta)?, &budget())?.into()))
}

#[napi]
impl NativeView {
    #[napi]
    pub fn shape(&self, env: &Env, part: f64) -> Result<Vec<f64>> {
        self.read(env, part, |view| Ok(view.shape().iter().map(|&size| size as f64).collect()))
    }

    #[napi]
    pub fn strides(&self, env: &Env, part: f64) -> Result<Vec<f64>> {
        self.read(env, part, |view| Ok(view.strides().iter().map(|&stride| stride as f64).collect()))
    }

    #[napi]
    pub fn dtype(&self, env: &Env, part: f64) -> Result<&'static str> {
        self.read(env, part, |view| Ok(view.dtype().name()))
    }

    #[napi]
    pub fn key_positions(&self, env: &Env, part: f64) -> Result<Vec<f64>> {
        self.read(env, part, |view| Ok(view.key_positions().iter().map(|&position| position as f64).collect()))
    }

    /// Refuses a view that can no longer be read.
    #[napi]
    pub fn check(&self, env: &Env, part: f64) -> Result<()> {
        self.read(env, part, |view| Ok(view.check()?))
    }

    #[napi]
    pub fn is_stale(&self, env: &Env, part: f64) -> Result<bool> {
        self.read(env, part, |view| Ok(view.is_stale()))
    }

    #[napi]
    pub fn is_contiguous(&self, env: &Env, part: f64) -> Result<bool> {
        self.read(env, part, |view| Ok(view.is_contiguous()))
    }

    #[napi]
    pub fn narrow(&self, env: &Env, part: f64, dim: f64, start: f64, length: f64) -> Result<NativeView> {
        self.read(env, part, |view| {
            let (dim, start) = (count("dim", dim)? as usize, whole("start", start)? as usize);
            Ok(view.narrow(dim, start, whole("length", length)? as usize)?.into())
        })
    }

    #[napi]
    pub fn reshape(&self, env: &Env, part: f64, shape: &[f64]) -> Result<NativeView> {
        self.read(env, part, |view| {
            let shape: Vec<usize> =
                shape.iter().map(|&size| Ok(whole("shape", size)? as usize)).collect::<Outcome<_>>()?;
            Ok(view.reshape(&shape, &budget())?.into())
        })
    }

    /// Copies the elements into the caller's array, bit for bit.
    #[napi]
    pub fn read_into(&self, env: &Env, part: f64, out: ArrayArg) -> Result<()> {
        self.read(env, part, |view| {
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
    pub fn read_floats_into(&self, env: &Env, part: f64, out: ArrayArg) -> Result<()> {
        self.read(env, part, |view| {
            let floats = view.to_f32()?;
            let out = out.memory("out")?.bytes_mut();
            if out.len() != floats.len() * 4 {
                let expected = format!("{} elements", floats.len());
                return Err(kvtide_core::Error::argument("out", format!("{} bytes", out.len()), expected).into());
            }
            for (bytes, value) in out.chunks_exact_mut(4).zip(floats) {
                bytes.copy_from_slice(&value.to_ne_bytes());
            }
            Ok(())
        })
    }

    /// The elements where they lie, as bytes. The array keeps the memory alive, and shows what the cache writes there later.
    #[napi]
    pub fn data(&self, env: &Env, part: f64) -> Result<Uint8Array> {
        self.read(env, part, |view| Ok(external(view.as_ptr()?, view.bytes(), view.clone())))
    }

    #[napi]
    pub fn equals(&self, env: &Env, part: f64, other: &NativeView, other_part: f64) -> Result<bool> {
        self.read(env, part, |view| Ok(view.equals(other.part(other_part)?)?))
    }

    #[napi]
    pub fn dispose(&mut self, env: &Env, part: f64) {
        if let Some(Some(handle)) = self.parts.get_mut(part as usize) {
            handle.dispose(env, |_| ());
        }
    }
}
