//! All kernels compared with plain loops, on random shapes: sizes that no vector length divides, empty runs, sources with
//! any strides, moves that overlap upwards and downwards.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use kvtide_core::{Run, Runs, SlotMove, SlotWrite};
use proptest::prelude::*;

use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::memory::Budget;
use crate::device::edit::download;
use crate::device::form::{Kernels, with_kernels};
use crate::tensor::buffer::{Buffer, RowShape};
use crate::tensor::host::{HostTensor, SequenceLayout};
use crate::tensor::rows::{copy_rows, move_rows, write};
use crate::tensor::source::Source;
use crate::tensor::view::View;

#[path = "../../../kvtide-core/tests/support/mod.rs"]
mod support;

type Done = Result<(), TestCaseError>;

/// The memory layout of new tokens.
#[derive(Clone, Copy, Debug)]
enum Form {
    Tensor,
    TensorOfMore,
    Transposed,
    Host,
    HostRange,
    HostBshd,
    TwoRuns,
}

const FORMS: [Form; 7] =
    [Form::Tensor, Form::TensorOfMore, Form::Transposed, Form::Host, Form::HostRange, Form::HostBshd, Form::TwoRuns];

/// Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Write(u32, u32, u32, [Form; 2]),
    Move(u32, u32, u32),
    CopyToAnother(u32, u32, u32),
    Read(u32, [u32; 4], Vec<(usize, u32, u32)>),
}

/// A buffer beside its bytes.
struct Pair {
    buffer: Arc<Buffer>,
    bytes: Vec<u8>,
    next: u8,
}

impl Pair {
    fn new(shape: RowShape, slots: u32) -> Result<Pair, TestCaseError> {
        let buffer = Arc::new(Buffer::new(shape, slots, &Budget::process(), None)?);
        let bytes = vec![0; buffer.bytes() as usize];
        Ok(Pair { buffer, bytes, next: 0 })
    }

    fn stretches(&self) -> usize {
        self.buffer.shape.parts * self.buffer.stretch_count()
    }

    /// The bytes of a slot in a stretch.
    fn row(&self, stretch: usize, slot: u32) -> std::ops::Range<usize> {
        let (row, slots) = (self.buffer.row_bytes(), self.buffer.slots as usize);
        let start = (stretch * slots + slot as usize) * row;
        start..start + row
    }

    /// Bytes that were not there before, NaN and infinity among their floats.
    fn fresh(&mut self, count: usize) -> Vec<u8> {
        let byte = |_| {
            self.next = self.next.wrapping_mul(5).wrapping_add(97);
            if self.next.is_multiple_of(4) { 0xff } else { self.next }
        };
        (0..count).map(byte).collect()
    }

    fn check(&self) -> Done {
        let mut bytes = vec![0; self.bytes.len()];
        download(&self.buffer.tensor, 0, &mut bytes)?;
        prop_assert!(bytes == self.bytes, "the buffer's bytes");
        Ok(())
    }

    fn call(&mut self, op: &Op) -> Done {
        let slots = self.buffer.slots;
        match op {
            Op::Write(tokens, skip, slot, forms) => self.write(*tokens, *skip, slot % slots, *forms)?,
            Op::Move(source, len, target) => {
                let len = len % (slots + 1);
                let (source, target) = (source % (slots - len + 1), target % (slots - len + 1));
                let moved = SlotMove { source: Run::new(source, len), target };
                move_rows(&self.buffer, [moved].into_iter())?;
                let before = self.bytes.clone();
                for (stretch, row) in (0..self.stretches()).flat_map(|stretch| (0..len).map(move |row| (stretch, row)))
                {
                    let (to, from) = (self.row(stretch, target + row), self.row(stretch, source + row));
                    self.bytes[to].copy_from_slice(&before[from]);
                }
            }
            Op::CopyToAnother(start, len, slot) => {
                let mut other = Pair::new(self.buffer.shape, slots + 3)?;
                let run = Run::new(start % slots, *len).overlap(Run::new(0, slots));
                let slot = slot % (slots + 4 - run.len);
                copy_rows(&self.buffer, run, &other.buffer, slot)?;
                for (stretch, row) in (0..self.stretches()).flat_map(|at| (0..run.len).map(move |row| (at, row))) {
                    let to = other.row(stretch, slot + row);
                    other.bytes[to].copy_from_slice(&self.bytes[self.row(stretch, run.start + row)]);
                }
                other.check()?;
            }
            Op::Read(part, runs, narrows) => self.read(*part, *runs, narrows)?,
        }
        self.check()
    }

    /// Writes `tokens` new ones but the first `skip`, from `slot` on, as far as there is room.
    fn write(&mut self, tokens: u32, skip: u32, slot: u32, forms: [Form; 2]) -> Done {
        let skip = skip % (tokens + 1);
        let target = Run::new(slot, (tokens - skip).min(self.buffer.slots - slot));
        let shape = self.buffer.shape;
        let sources: Vec<(Vec<u8>, Fed)> = (0..shape.parts)
            .map(|part| {
                let bytes = self.fresh(shape.part_elements(tokens) * shape.dtype.bytes());
                Fed::new(forms[part], &shape, tokens, &bytes).map(|fed| (bytes, fed))
            })
            .collect::<Result<_, TestCaseError>>()?;
        let mut resolved = Vec::new();
        let given: Vec<Source<'_>> =
            sources.iter().map(|(_, fed)| fed.source(&shape, tokens)).collect::<Result<_, TestCaseError>>()?;
        for source in &given {
            resolved.push(source.resolve("source", shape.axis)?);
        }
        write(&self.buffer, std::iter::empty(), &resolved, [Some(SlotWrite { token: skip, target }), None])?;
        let (stretches, row) = (self.buffer.stretch_count(), self.buffer.row_bytes());
        for (part, (bytes, _)) in sources.iter().enumerate() {
            for (stretch, token) in (0..stretches).flat_map(|at| (0..target.len).map(move |token| (at, token))) {
                let from = (stretch * tokens as usize + (skip + token) as usize) * row;
                let to = self.row(part * stretches + stretch, slot + token);
                self.bytes[to].copy_from_slice(&bytes[from..from + row]);
            }
        }
        Ok(())
    }

    /// Reads a part of one or two runs, to the host and to memory of its own.
    fn read(&self, part: u32, [a, b, c, d]: [u32; 4], narrows: &[(usize, u32, u32)]) -> Done {
        let (shape, slots) = (self.buffer.shape, self.buffer.slots);
        let part = part as usize % shape.parts;
        let first = Run::new(a % (slots + 1), b).overlap(Run::new(0, slots));
        let second = Run::new(c % (slots + 1), d).overlap(Run::new(0, slots));
        let runs = Runs::two(first, second);
        let tokens: Vec<u32> = runs.iter().flat_map(|run| run.start..run.end()).collect();
        let mut view = View::of(self.buffer.clone(), part, runs, runs.len().into(), None);
        let mut axes: Vec<Vec<usize>> = shape.dims.iter().map(|&size| (0..size).collect()).collect();
        axes[shape.axis] = tokens.iter().map(|&slot| slot as usize).collect();
        for &(axis, start, len) in narrows {
            let axis = axis % axes.len();
            let start = start as usize % (axes[axis].len() + 1);
            let len = len as usize % (axes[axis].len() - start + 1);
            view = view.narrow(axis, start, len)?;
            axes[axis] = axes[axis][start..start + len].to_vec();
        }
        let (element, strides) = (shape.dtype.bytes(), shape.part(slots).contiguous_strides());
        let mut elements = vec![part * shape.part_elements(slots)];
        for (axis, indexes) in axes.iter().enumerate() {
            let next = |&at: &usize| indexes.iter().map(move |index| at + index * strides[axis]);
            elements = elements.iter().flat_map(next).collect();
        }
        let expected: Vec<u8> =
            elements.iter().flat_map(|at| self.bytes[at * element..(at + 1) * element].iter().copied()).collect();
        prop_assert_eq!(&view.to_bytes()?, &expected);
        prop_assert_eq!(&view.copied(&Budget::process())?.to_bytes()?, &expected);
        Ok(())
    }
}

/// Tokens in memory.
enum Fed {
    Tensor(Tensor),
    View(Box<View>),
    /// From the second byte on, so that no element is aligned.
    Host(Vec<u8>, Form),
}

impl Fed {
    fn new(form: Form, shape: &RowShape, tokens: u32, bytes: &[u8]) -> Result<Fed, TestCaseError> {
        let tensor = shape.dtype.upload(bytes, &shape.part(tokens), &candle_core::Device::Cpu)?;
        let (axis, rank) = (shape.axis, shape.dims.len());
        let host = |bytes: &[u8]| Fed::Host([&[0], bytes].concat(), form);
        Ok(match form {
            Form::Tensor => Fed::Tensor(tensor),
            Form::TensorOfMore => {
                let more = Tensor::cat(&[&tensor, &tensor, &tensor], rank - 1)?;
                Fed::Tensor(more.narrow(rank - 1, tensor.dims()[rank - 1], tensor.dims()[rank - 1])?)
            }
            Form::Transposed => Fed::Tensor(tensor.transpose(axis, rank - 1)?.contiguous()?.transpose(axis, rank - 1)?),
            Form::Host => host(bytes),
            Form::HostRange => host(&shape.dtype.download(&Tensor::cat(&[&tensor, &tensor], axis)?)?),
            Form::HostBshd if rank == 4 => host(&shape.dtype.download(&tensor.transpose(1, 2)?.contiguous()?)?),
            Form::HostBshd => host(bytes),
            Form::TwoRuns => {
                let cut = tokens / 2;
                let buffer = Buffer::new(RowShape { parts: 1, ..*shape }, tokens + 2, &Budget::process(), None)?;
                let (row, stretches) = (buffer.row_bytes(), buffer.stretch_count());
                let rows = |range: std::ops::Range<u32>| range.start as usize * row..range.end as usize * row;
                let mut target = vec![0; buffer.bytes() as usize];
                for stretch in 0..stretches {
                    let to = &mut target[stretch * (tokens as usize + 2) * row..];
                    let from = &bytes[stretch * tokens as usize * row..];
                    to[rows(1..1 + tokens - cut)].copy_from_slice(&from[rows(cut..tokens)]);
                    to[rows(2 + tokens - cut..2 + tokens)].copy_from_slice(&from[rows(0..cut)]);
                }
                if !target.is_empty() {
                    buffer.tensor.slice_set(&shape.dtype.upload(&target, buffer.tensor.dims(), &Device::Cpu)?, 0, 0)?;
                }
                let runs = Runs::two(Run::new(2 + tokens - cut, cut), Run::new(1, tokens - cut));
                Fed::View(Box::new(View::of(Arc::new(buffer), 0, runs, tokens.into(), None)))
            }
        })
    }

    fn source(&self, shape: &RowShape, tokens: u32) -> Result<Source<'_>, TestCaseError> {
        let part = shape.part(tokens);
        Ok(match self {
            Fed::Tensor(tensor) => tensor.into(),
            Fed::View(view) => (&**view).into(),
            Fed::Host(bytes, Form::HostRange) => {
                let twice = part.with(shape.axis, 2 * tokens as usize);
                let host = HostTensor::new("source", &bytes[1..], shape.dtype, &twice)?;
                host.with_range(tokens as usize, 2 * tokens as usize).into()
            }
            Fed::Host(bytes, Form::HostBshd) if part.len() == 4 => {
                let host = HostTensor::new("source", &bytes[1..], shape.dtype, &part.swapped(1, 2))?;
                host.with_layout("source", SequenceLayout::Bshd)?.into()
            }
            Fed::Host(bytes, _) => HostTensor::new("source", &bytes[1..], shape.dtype, &part)?.into(),
        })
    }
}

fn forms_agree((shape, slots, ops): (RowShape, u32, Vec<Op>)) -> Done {
    for kernels in Kernels::supported() {
        let mut pair = Pair::new(shape, slots)?;
        let outcome = with_kernels(kernels, || ops.iter().try_for_each(|op| pair.call(op)))?;
        outcome.map_err(|why| TestCaseError::fail(format!("{kernels}: {why}")))?;
    }
    Ok(())
}

fn shape() -> impl Strategy<Value = RowShape> {
    let behind = prop_oneof![Just(vec![]), prop::collection::vec(1..20usize, 1..3)];
    let dtypes = prop::sample::select(DType::ALL);
    let loose = (prop::collection::vec(1..4usize, 0..3), behind, 1..3usize, dtypes.clone());
    let loose = loose.prop_map(|(before, behind, parts, dtype)| (before, behind, parts, dtype));
    let pair = (1..3usize, 1..4usize, 1..70usize, dtypes);
    let pair = pair.prop_map(|(batch, heads, dim, dtype)| (vec![batch, heads], vec![dim], 2, dtype));
    prop_oneof![loose, pair].prop_map(|(before, behind, parts, dtype)| {
        let sizes = [&before[..], &[1], &behind[..]].concat();
        RowShape { parts, dims: Dims::new("dims", &sizes).expect("few dimensions"), axis: before.len(), dtype }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let form = || prop::sample::select(&FORMS[..]);
    let any = || any::<u32>();
    prop_oneof![
        4 => (0..12u32, any(), any(), form(), form())
            .prop_map(|(tokens, skip, slot, k, v)| Op::Write(tokens, skip, slot, [k, v])),
        2 => (any(), any(), any()).prop_map(|(source, len, target)| Op::Move(source, len, target)),
        1 => (any(), 0..12u32, any()).prop_map(|(start, len, slot)| Op::CopyToAnother(start, len, slot)),
        2 => (any(), [0..40u32, 0..9, 0..40, 0..9], prop::collection::vec((0..4usize, any(), any()), 0..3))
            .prop_map(|(part, runs, narrows)| Op::Read(part, runs, narrows)),
    ]
}

#[test]
fn every_form_agrees_with_plain_loops() {
    let calls = (shape(), 1..40u32, prop::collection::vec(op(), 0..12));
    support::run("kernels", 3_000, calls, forms_agree);
}

#[test]
fn a_number_without_dimensions_goes_in_and_out() {
    for kernels in Kernels::supported() {
        with_kernels(kernels, || {
            let host = HostTensor::new("number", &[1, 2], DType::F16, &[]).unwrap();
            let view = View::from_host(&host, &Budget::process()).unwrap();
            let copy = view.copied(&Budget::process()).unwrap();
            assert_eq!([view.to_bytes().unwrap(), copy.to_bytes().unwrap()], [[1, 2], [1, 2]], "{kernels}");
        })
        .unwrap();
    }
}
