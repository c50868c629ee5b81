//! The one door to a tensor's bytes.
//!
//! candle keeps storage behind a lock, taken here for a whole operation. A writer notes its slots in the buffer's log
//! *before* it takes the lock, and a reader looks at the log *after*: so a view that is read while another thread writes gives
//! what it saw or is stale, and never a mixture.

use std::cell::RefCell;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, Device, InplaceOp1, InplaceOp2, InplaceOp3, Layout, Storage, Tensor};
use kvtide_cuda::Span;

#[cfg(feature = "cuda")]
use crate::base::dtype::cuda_span;
use crate::base::dtype::{DType, bytes, bytes_mut};
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::device::form::Form;

/// Runs `work` on the bytes of `target` and of `sources`, which must not share storage with it. Nothing is done to a target
/// without bytes: candle takes its strides of zero for elements that overlap.
pub(crate) fn edit(target: &Tensor, sources: &[&Tensor], work: impl Fn(&mut [u8], &[&[u8]])) -> Result<()> {
    if target.elem_count() == 0 {
        return Ok(());
    }
    if !target.device().is_cpu() {
        return Err(elsewhere());
    }
    Edit { bytes: work, spans: |_: Span<'_>, _: &[Span<'_>]| {} }.carry_out(target, sources)
}

/// Runs `work`, which launches kernels, on the memory of `target` and of `sources`, which must not share storage with it.
pub(crate) fn launch(
    target: &Tensor,
    sources: &[&Tensor],
    work: impl Fn(Span<'_>, &[Span<'_>]) -> Result<()>,
) -> Result<()> {
    if target.elem_count() == 0 {
        return Ok(());
    }
    let outcome = RefCell::new(Ok(()));
    let spans = |target: Span<'_>, sources: &[Span<'_>]| *outcome.borrow_mut() = work(target, sources);
    let bytes = |target: &mut [u8], sources: &[&[u8]]| {
        let sources: Vec<_> = sources.iter().map(|bytes| Span::of(bytes)).collect();
        spans(Span::of_mut(target), &sources);
    };
    Edit { bytes, spans }.carry_out(target, sources)?;
    outcome.into_inner()
}

/// Runs `work` on the bytes of a whole storage.
pub(crate) fn inspect<T>(tensor: &Tensor, work: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => work(bytes(storage)?),
        _ => Err(elsewhere()),
    }
}

/// A tensor on a device with these bytes' elements, in memory that `budget` does not count: it lives as long as a call.
pub(crate) fn upload(bytes: &[u8], dtype: DType, shape: &[usize], device: &Device) -> Result<Tensor> {
    let Form::Launched(stream) = Form::of(device)? else { return Ok(dtype.upload(bytes, shape, device)?) };
    let refused = || Budget::of(device).refusal(bytes.len() as u64);
    let tensor = dtype.zeroed(shape, device).ok_or_else(refused)?;
    launch(&tensor, &[], |memory, _| Ok(stream.upload(bytes, memory)?))?;
    Ok(tensor)
}

/// Copies bytes of a whole storage from `start` on to the host's memory.
pub(crate) fn download(tensor: &Tensor, start: usize, out: &mut [u8]) -> Result<()> {
    let range = start..start + out.len();
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => out.copy_from_slice(&bytes(storage)?[range]),
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

fn elsewhere() -> Error {
    Error::DeviceUnavailable {
        device: "cuda or metal".to_owned(),
        reason: "this build reads tensors on the CPU alone".to_owned(),
    }
}

/// Runs `work` on the bytes of several whole storages at once. One that is named twice is locked once.
pub(crate) fn inspect_all<T>(tensors: &[&Tensor], work: impl FnOnce(&[&[u8]]) -> Result<T>) -> Result<T> {
    let identities: Vec<_> = tensors.iter().map(|tensor| identity(tensor)).collect();
    let first = |index: usize| identities.iter().position(|&other| other == identities[index]).unwrap_or(index);
    let guards: Vec<_> = (0..tensors.len())
        .map(|index| (first(index) == index).then(|| tensors[index].storage_and_layout().0))
        .collect();
    let mut memory: Vec<&[u8]> = Vec::with_capacity(tensors.len());
    for (index, guard) in guards.iter().enumerate() {
        memory.push(match guard.as_deref() {
            Some(Storage::Cpu(storage)) => bytes(storage)?,
            Some(_) => return Err(elsewhere()),
            None => memory[first(index)],
        });
    }
    work(&memory)
}

/// What tells two storages apart while both live, on any device: views of one share it.
pub(crate) fn identity(tensor: &Tensor) -> usize {
    std::ptr::from_ref(&*tensor.storage_and_layout().0).addr()
}

/// Runs `work` on the memory of several whole storages at once, wherever it is. One that is named twice is locked once.
pub(crate) fn inspect_spans<T>(tensors: &[&Tensor], work: impl FnOnce(&[Span<'_>]) -> Result<T>) -> Result<T> {
    let identities: Vec<_> = tensors.iter().map(|tensor| identity(tensor)).collect();
    let first = |index: usize| identities.iter().position(|&other| other == identities[index]).unwrap_or(index);
    let guards: Vec<_> = (0..tensors.len())
        .map(|index| (first(index) == index).then(|| tensors[index].storage_and_layout().0))
        .collect();
    let mut spans: Vec<Span<'_>> = Vec::with_capacity(tensors.len());
    for (index, guard) in guards.iter().enumerate() {
        spans.push(match guard.as_deref() {
            Some(storage) => span(storage)?,
            None => spans[first(index)],
        });
    }
    work(&spans)
}

/// The memory of a storage.
fn span(storage: &Storage) -> Result<Span<'_>> {
    match storage {
        Storage::Cpu(storage) => Ok(Span::of(bytes(storage)?)),
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => Ok(cuda_span(storage, false)?),
        _ => Err(elsewhere()),
    }
}

/// The address of a storage's first byte.
pub(crate) fn address(tensor: &Tensor) -> Result<usize> {
    inspect(tensor, |bytes| Ok(bytes.as_ptr().addr()))
}

/// Work on a target and its sources: on bytes where they lie in the host's memory, on spans where a device has them.
struct Edit<Bytes, Spans> {
    bytes: Bytes,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only a device asks for spans"))]
    spans: Spans,
}

impl<Bytes, Spans> Edit<Bytes, Spans>
where
    Bytes: Fn(&mut [u8], &[&[u8]]),
    Spans: Fn(Span<'_>, &[Span<'_>]),
{
    fn carry_out(&self, target: &Tensor, sources: &[&Tensor]) -> Result<()> {
        match sources {
            [] => target.inplace_op1(self)?,
            [one] => target.inplace_op2(one, self)?,
            [one, other] => target.inplace_op3(one, other, self)?,
            _ => unreachable!("an operation has one tensor for K and one for V"),
        }
        Ok(())
    }
}

impl<Bytes, Spans> InplaceOp1 for Edit<Bytes, Spans>
where
    Bytes: Fn(&mut [u8], &[&[u8]]),
    Spans: Fn(Span<'_>, &[Span<'_>]),
{
    fn name(&self) -> &'static str {
        "kvtide-edit"
    }

    fn cpu_fwd(&self, target: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        (self.bytes)(bytes_mut(target)?, &[]);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, target: &mut CudaStorage, _: &Layout) -> candle_core::Result<()> {
        (self.spans)(cuda_span(target, true)?, &[]);
        Ok(())
    }
}

impl<Bytes, Spans> InplaceOp2 for Edit<Bytes, Spans>
where
    Bytes: Fn(&mut [u8], &[&[u8]]),
    Spans: Fn(Span<'_>, &[Span<'_>]),
{
    fn name(&self) -> &'static str {
        "kvtide-edit"
    }

    fn cpu_fwd(&self, target: &mut CpuStorage, _: &Layout, one: &CpuStorage, _: &Layout) -> candle_core::Result<()> {
        (self.bytes)(bytes_mut(target)?, &[bytes(one)?]);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, target: &mut CudaStorage, _: &Layout, one: &CudaStorage, _: &Layout) -> candle_core::Result<()> {
        (self.spans)(cuda_span(target, true)?, &[cuda_span(one, false)?]);
        Ok(())
    }
}

impl<Bytes, Spans> InplaceOp3 for Edit<Bytes, Spans>
where
    Bytes: Fn(&mut [u8], &[&[u8]]),
    Spans: Fn(Span<'_>, &[Span<'_>]),
{
    fn name(&self) -> &'static str {
        "kvtide-edit"
    }

    fn cpu_fwd(
        &self,
        target: &mut CpuStorage,
        _: &Layout,
        one: &CpuStorage,
        _: &Layout,
        other: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<()> {
        (self.bytes)(bytes_mut(target)?, &[bytes(one)?, bytes(other)?]);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        target: &mut CudaStorage,
        _: &Layout,
        one: &CudaStorage,
        _: &Layout,
        other: &CudaStorage,
        _: &Layout,
    ) -> candle_core::Result<()> {
        (self.spans)(cuda_span(target, true)?, &[cuda_span(one, false)?, cuda_span(other, false)?]);
        Ok(())
    }
}
