//! Access to the bytes of tensors. All access goes through this module.
//!
//! candle keeps storage behind a lock, which an operation holds from start to end. A writer logs its slots in the buffer's
//! log *before* it takes the lock, and a reader checks the log *after* it has taken the lock. So a view that is read while
//! another thread writes gives what it saw or is stale, and never a mixture.

use std::cell::RefCell;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, Device, InplaceOp1, InplaceOp2, InplaceOp3, Layout, Storage, Tensor};
use kvtide_cuda::Span;

#[cfg(feature = "cuda")]
use crate::base::dtype::cuda_span;
use crate::base::dtype::{DType, bytes, bytes_mut};
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::device::form::{Form, is_seen};
use crate::device::memory::zeroed;

/// Runs `work` on the bytes of `target` and of `sources`, which must not share storage with it. Does nothing for an empty
/// target: candle takes its strides of zero for overlapping elements.
pub(crate) fn edit(target: &Tensor, sources: &[&Tensor], work: impl Fn(&mut [u8], &[&[u8]])) -> Result<()> {
    if target.elem_count() > 0 {
        check_bytes(target.device())?;
    }
    change(target, sources, |storages| {
        match storages {
            Storages::Cpu(target, sources) => {
                let mut found = [&[][..]; SOURCES_MAX];
                for (slot, source) in found.iter_mut().zip(sources) {
                    *slot = bytes(source)?;
                }
                work(bytes_mut(target)?, &found[..sources.len()]);
            }
            #[cfg(feature = "cuda")]
            Storages::Cuda(..) => unreachable!("a target on the CPU"),
        }
        Ok(())
    })
}

/// Runs `work` on the bytes of `target` and returns its result. A panic is passed on after candle's lock was released, which
/// would be unusable otherwise. Fails for an empty target.
pub(crate) fn edit_once<T>(target: &Tensor, work: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
    check_bytes(target.device())?;
    let (work, outcome) = (RefCell::new(Some(work)), RefCell::new(None));
    change(target, &[], |storages| {
        match (storages, work.take()) {
            (Storages::Cpu(target, _), Some(work)) => {
                let bytes = bytes_mut(target)?;
                outcome.replace(Some(catch_unwind(AssertUnwindSafe(|| work(bytes)))));
            }
            _ => unreachable!("a target on the CPU, changed once"),
        }
        Ok(())
    })?;
    match outcome.into_inner() {
        Some(Ok(result)) => Ok(result),
        Some(Err(panic)) => resume_unwind(panic),
        None => Err(elsewhere()),
    }
}

/// Runs `work`, which launches kernels, on the memory of `target` and of `sources`, which must not share storage with it.
pub(crate) fn launch(
    target: &Tensor,
    sources: &[&Tensor],
    work: impl Fn(Span<'_>, &[Span<'_>]) -> Result<()>,
) -> Result<()> {
    if target.elem_count() > 0 {
        check_launched(target.device())?;
    }
    let outcome = RefCell::new(Ok(()));
    change(target, sources, |storages| {
        let mut found = [Span::of(&[]); SOURCES_MAX];
        match storages {
            Storages::Cpu(target, sources) => {
                for (slot, source) in found.iter_mut().zip(sources) {
                    *slot = Span::of(bytes(source)?);
                }
                *outcome.borrow_mut() = work(Span::of_mut(bytes_mut(target)?), &found[..sources.len()]);
            }
            #[cfg(feature = "cuda")]
            Storages::Cuda(target, sources) => {
                for (slot, source) in found.iter_mut().zip(sources) {
                    *slot = cuda_span(source, false)?;
                }
                *outcome.borrow_mut() = work(cuda_span(target, true)?, &found[..sources.len()]);
            }
        }
        Ok(())
    })?;
    outcome.into_inner()
}

/// Runs `work` on the bytes of a whole storage.
pub(crate) fn inspect<T>(tensor: &Tensor, work: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
    check_bytes(tensor.device())?;
    look(tensor, work)
}

fn look<T>(tensor: &Tensor, work: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => work(bytes(storage)?),
        _ => Err(elsewhere()),
    }
}

/// Uploads bytes as a tensor, in memory that `budget` does not count: for tensors that live as long as one call.
pub(crate) fn upload(bytes: &[u8], dtype: DType, shape: &[usize], device: &Device) -> Result<Tensor> {
    let Form::Launched(stream) = Form::of(device)? else {
        return Ok(dtype.upload(bytes, shape, device)?);
    };
    let tensor = zeroed(dtype, shape, &Budget::of(device))?;
    launch(&tensor, &[], |memory, _| Ok(stream.upload(bytes, memory)?))?;
    Ok(tensor)
}

/// Copies bytes of a whole storage, from `start` on, to host memory. On a device without kernels, the tensor must cover the
/// whole storage.
pub(crate) fn download(tensor: &Tensor, start: usize, out: &mut [u8]) -> Result<()> {
    let range = start..start + out.len();
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) if is_seen(tensor.device()) => out.copy_from_slice(&bytes(storage)?[range]),
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => {
            let stream = kvtide_cuda::Stream::gpu(&storage.device);
            stream.download(cuda_span(storage, false)?.from(start), out)?;
        }
        _ => {
            let dtype = crate::base::dtype::tensor_dtype("tensor", tensor)?;
            out.copy_from_slice(&dtype.download(tensor)?[range]);
        }
    }
    Ok(())
}

/// Fails if memory of this device is not accessed as bytes. Such a call is a bug in this library; the CPU that stands in for
/// a device detects it too.
fn check_bytes(device: &Device) -> Result<()> {
    if matches!(Form::of(device)?, Form::Bytes(_)) { Ok(()) } else { Err(elsewhere()) }
}

/// Fails if memory of this device is not accessed by launches.
fn check_launched(device: &Device) -> Result<()> {
    if matches!(Form::of(device)?, Form::Launched(_)) { Ok(()) } else { Err(elsewhere()) }
}

fn elsewhere() -> Error {
    Error::Candle(candle_core::Error::Msg("bytes were requested of memory that the host cannot address".to_owned()))
}

/// Runs `work` on the bytes of several whole storages at once. A storage that is named twice is locked once.
pub(crate) fn inspect_all<T>(tensors: &[&Tensor], work: impl FnOnce(&[&[u8]]) -> Result<T>) -> Result<T> {
    tensors.iter().try_for_each(|tensor| check_bytes(tensor.device()))?;
    let (places, guards) = locked(tensors);
    let of = |&place: &usize| match guards[place].as_deref() {
        Some(Storage::Cpu(storage)) => Ok(bytes(storage)?),
        _ => Err(elsewhere()),
    };
    work(&places.iter().map(of).collect::<Result<Vec<_>>>()?)
}

/// Like [`inspect_all`], with spans, for devices whose operations are launches.
pub(crate) fn inspect_spans<T>(tensors: &[&Tensor], work: impl FnOnce(&[Span<'_>]) -> Result<T>) -> Result<T> {
    tensors.iter().try_for_each(|tensor| check_launched(tensor.device()))?;
    let (places, guards) = locked(tensors);
    let of = |&place: &usize| match guards[place].as_deref() {
        Some(Storage::Cpu(storage)) => Ok(Span::of(bytes(storage)?)),
        #[cfg(feature = "cuda")]
        Some(Storage::Cuda(storage)) => Ok(cuda_span(storage, false)?),
        _ => Err(elsewhere()),
    };
    work(&places.iter().map(of).collect::<Result<Vec<_>>>()?)
}

/// Takes the lock of each storage once. Returns the index of each tensor's guard, and the guards.
fn locked<'t>(tensors: &[&'t Tensor]) -> (Vec<usize>, Vec<Option<impl Deref<Target = Storage> + use<'t>>>) {
    let mut places: Vec<usize> = tensors.iter().map(|tensor| identity(tensor)).collect();
    for index in (0..places.len()).rev() {
        // The entries before it are still identities.
        places[index] = places[..index].iter().position(|&other| other == places[index]).unwrap_or(index);
    }
    let lock = |(index, tensor): (usize, &&'t Tensor)| (places[index] == index).then(|| tensor.storage_and_layout().0);
    let guards = tensors.iter().enumerate().map(lock).collect();
    (places, guards)
}

/// A number that tells two live storages apart, on any device. Views of one storage have the same number.
pub(crate) fn identity(tensor: &Tensor) -> usize {
    std::ptr::from_ref(&*tensor.storage_and_layout().0).addr()
}

/// The address of the first byte of a storage that the host can address.
pub(crate) fn first_byte(tensor: &Tensor) -> Result<*const u8> {
    if is_seen(tensor.device()) { look(tensor, |bytes| Ok(bytes.as_ptr())) } else { Err(elsewhere()) }
}

/// At most one tensor for K and one for V.
const SOURCES_MAX: usize = 2;

/// The storages of a target and its sources, by device.
enum Storages<'a> {
    Cpu(&'a mut CpuStorage, &'a [&'a CpuStorage]),
    #[cfg(feature = "cuda")]
    Cuda(&'a mut CudaStorage, &'a [&'a CudaStorage]),
}

/// Runs `work` on the storages of a target and its sources. Does nothing for an empty target.
fn change(target: &Tensor, sources: &[&Tensor], work: impl Fn(Storages<'_>) -> candle_core::Result<()>) -> Result<()> {
    let change = Change(work);
    match sources {
        _ if target.elem_count() == 0 => {}
        [] => target.inplace_op1(&change)?,
        [one] => target.inplace_op2(one, &change)?,
        [one, other] => target.inplace_op3(one, other, &change)?,
        _ => unreachable!("an operation has one tensor for K and one for V"),
    }
    Ok(())
}

/// Work that candle runs under its lock.
struct Change<Work>(Work);

macro_rules! change_with {
    ($operation:ident: $($source:ident)*) => {
        impl<Work: Fn(Storages<'_>) -> candle_core::Result<()>> $operation for Change<Work> {
            fn name(&self) -> &'static str {
                "kvtide-edit"
            }

            fn cpu_fwd(
                &self,
                target: &mut CpuStorage,
                _: &Layout,
                $($source: &CpuStorage, _: &Layout,)*
            ) -> candle_core::Result<()> {
                (self.0)(Storages::Cpu(target, &[$($source),*]))
            }

            #[cfg(feature = "cuda")]
            fn cuda_fwd(
                &self,
                target: &mut CudaStorage,
                _: &Layout,
                $($source: &CudaStorage, _: &Layout,)*
            ) -> candle_core::Result<()> {
                (self.0)(Storages::Cuda(target, &[$($source),*]))
            }
        }
    };
}

change_with!(InplaceOp1:);
change_with!(InplaceOp2: one);
change_with!(InplaceOp3: one other);
