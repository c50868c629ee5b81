//! Copies between the blocks of a slab and host memory, piece by piece, so that each holds the lock of the slab only briefly.
//! O(bytes).

use super::portable;
use super::slabs::Slab;
use crate::base::error::Result;
use crate::device::edit::download;
use crate::device::form::Form;

/// The most bytes that are accessed under one lock.
const MOST: usize = 1 << 20;

/// The bytes of a piece that is appended to others.
const ADDED: usize = 256 << 10;

impl Slab {
    /// Copies bytes of its blocks, from the byte `at` on, to host memory: whole elements.
    pub(super) fn fetch(&self, at: usize, out: &mut [u8]) -> Result<()> {
        match self.form()? {
            Form::Portable => portable::read(self, at, out),
            Form::Launched(_) | Form::Bytes(_) => download(self.storage(), self.base + at, out),
        }
    }

    /// Copies bytes of host memory to its blocks, from the byte `at` on: whole elements.
    pub(super) fn store(&self, at: usize, bytes: &[u8]) -> Result<()> {
        match self.form()? {
            Form::Portable => portable::put(self, at, bytes),
            Form::Launched(stream) => self.launch(&[], |pages, _| Ok(stream.upload(bytes, pages.from(at))?)),
            Form::Bytes(_) => self.edit(&[], |pages, _| pages[at..at + bytes.len()].copy_from_slice(bytes)),
        }
    }

    /// Like [`Slab::fetch`], piece by piece.
    pub(super) fn fetch_bytes(&self, start: usize, out: &mut [u8]) -> Result<()> {
        let pieces = out.chunks_mut(MOST).enumerate();
        pieces.into_iter().try_for_each(|(piece, out)| self.fetch(start + piece * MOST, out))
    }

    /// Like [`Slab::store`], piece by piece.
    pub(super) fn store_bytes(&self, start: usize, bytes: &[u8]) -> Result<()> {
        let pieces = bytes.chunks(MOST).enumerate();
        pieces.into_iter().try_for_each(|(piece, bytes)| self.store(start + piece * MOST, bytes))
    }

    /// Copies a block, all layers, piece by piece.
    pub(super) fn fetch_block(&self, block: u32, out: &mut [u8]) -> Result<()> {
        self.fetch_bytes(block as usize * self.layout.block_bytes(), out)
    }

    /// Like [`Slab::fetch_block`], appended to `out`. On the host, pieces are small because each is passed over twice, the
    /// second time from the CPU cache.
    pub(super) fn add_block(&self, block: u32, out: &mut Vec<u8>) -> Result<()> {
        let (bytes, begin) = (self.layout.block_bytes(), out.len());
        let start = block as usize * bytes;
        let most = if matches!(self.form()?, Form::Bytes(_)) { ADDED } else { MOST };
        for at in (0..bytes).step_by(most) {
            out.resize(begin + bytes.min(at + most), 0);
            self.fetch(start + at, &mut out[begin + at..])?;
        }
        Ok(())
    }

    /// Overwrites a block, all layers, piece by piece.
    pub(super) fn store_block(&self, block: u32, bytes: &[u8]) -> Result<()> {
        self.store_bytes(block as usize * self.layout.block_bytes(), bytes)
    }
}
