//! The one door to a tensor's bytes.
//!
//! candle keeps storage behind a lock, taken here for a whole operation. A writer notes its slots in the buffer's log
//! *before* it takes the lock, and a reader looks at the log *after*: so a view that is read while another thread writes gives
//! what it saw or is stale, and never a mixture.

use candle_core::{CpuStorage, InplaceOp1, InplaceOp2, InplaceOp3, Layout, Storage, Tensor};

use crate::dtype::{bytes, bytes_mut};
use crate::error::{Error, Result};

/// Runs `work` on the bytes of `target` and of `sources`, which must not share storage with it. Nothing is done to a target
/// without bytes: candle takes its strides of zero for elements that overlap.
pub(crate) fn edit(target: &Tensor, sources: &[&Tensor], work: impl Fn(&mut [u8], &[&[u8]])) -> Result<()> {
    if target.elem_count() == 0 {
        return Ok(());
    }
    let edit = Edit(work);
    match sources {
        [] => target.inplace_op1(&edit)?,
        [one] => target.inplace_op2(one, &edit)?,
        [one, other] => target.inplace_op3(one, other, &edit)?,
        _ => unreachable!("an operation has one tensor for K and one for V"),
    }
    Ok(())
}

/// Runs `work` on the bytes of a whole storage.
pub(crate) fn inspect<T>(tensor: &Tensor, work: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => work(bytes(storage)?),
        _ => Err(elsewhere()),
    }
}

fn elsewhere() -> Error {
    Error::DeviceUnavailable {
        device: "cuda or metal".to_owned(),
        reason: "this build reads tensors on the CPU alone".to_owned(),
    }
}

/// Runs `work` on the bytes of several whole storages at once. One that is named twice is locked once.
pub(crate) fn inspect_all<T>(tensors: &[&Tensor], work: impl FnOnce(&[&[u8]]) -> Result<T>) -> Result<T> {
    let addresses = tensors.iter().map(|tensor| address(tensor)).collect::<Result<Vec<_>>>()?;
    let first = |index: usize| addresses.iter().position(|&other| other == addresses[index]).unwrap_or(index);
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

/// The address of a storage's first byte, which tells two storages apart while both live.
pub(crate) fn address(tensor: &Tensor) -> Result<usize> {
    inspect(tensor, |bytes| Ok(bytes.as_ptr().addr()))
}

struct Edit<F>(F);

impl<F: Fn(&mut [u8], &[&[u8]])> InplaceOp1 for Edit<F> {
    fn name(&self) -> &'static str {
        "kvtide-edit"
    }

    fn cpu_fwd(&self, target: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        (self.0)(bytes_mut(target)?, &[]);
        Ok(())
    }
}

impl<F: Fn(&mut [u8], &[&[u8]])> InplaceOp2 for Edit<F> {
    fn name(&self) -> &'static str {
        "kvtide-edit"
    }

    fn cpu_fwd(&self, target: &mut CpuStorage, _: &Layout, one: &CpuStorage, _: &Layout) -> candle_core::Result<()> {
        (self.0)(bytes_mut(target)?, &[bytes(one)?]);
        Ok(())
    }
}

impl<F: Fn(&mut [u8], &[&[u8]])> InplaceOp3 for Edit<F> {
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
        (self.0)(bytes_mut(target)?, &[bytes(one)?, bytes(other)?]);
        Ok(())
    }
}
