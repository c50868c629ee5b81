//! The same tokens in every form of input that a cache accepts.

use candle_core::Tensor;
use kvtide_tensor::buffers::{SequenceLayout, Source};
use kvtide_tensor::runtime::Budget;
use kvtide_tensor::{DType, HostTensor, View};

use crate::tokens::{Id, Rows, bytes_of};

/// The content around the tokens, if a source is a part of something larger.
const JUNK: Id = 0;

/// The memory layout of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Contiguous,
    /// A part of a longer sequence.
    NarrowTokens,
    /// A part of wider rows: the last dimension is contiguous, the rows have gaps.
    NarrowRows,
    /// The last dimension has strides.
    Transposed,
    Host,
    HostBshd,
    HostRange,
    HostBshdRange,
    View,
}

impl Form {
    pub const ALL: [Form; 9] = [
        Form::Contiguous,
        Form::NarrowTokens,
        Form::NarrowRows,
        Form::Transposed,
        Form::Host,
        Form::HostBshd,
        Form::HostRange,
        Form::HostBshdRange,
        Form::View,
    ];
}

/// Tokens in memory, to be appended.
#[derive(Debug)]
pub enum Fed {
    Tensor(Tensor),
    View(Box<View>),
    Host { bytes: Vec<u8>, dtype: DType, shape: Vec<usize>, layout: SequenceLayout, range: Option<(usize, usize)> },
}

impl Fed {
    /// These tokens in this form; where a rank has no such form, in a plain one.
    pub fn new(form: Form, rows: &Rows, part: usize, ids: &[Id]) -> Fed {
        let padded: Vec<Id> = [JUNK].into_iter().chain(ids.iter().copied()).chain([JUNK; 2]).collect();
        let last = rows.dims.len() - 1;
        match form {
            Form::NarrowTokens => Fed::Tensor(narrow(&rows.tensor(part, &padded), rows.axis, 1, ids.len())),
            Form::NarrowRows if rows.axis != last => {
                let tensor = rows.tensor(part, ids);
                let wide = Tensor::cat(&[&tensor, &tensor, &tensor], last).expect("tensors of one shape");
                Fed::Tensor(narrow(&wide, last, rows.dims[last], rows.dims[last]))
            }
            Form::Transposed if last > 0 => {
                let other = if rows.axis == last { 0 } else { last };
                Fed::Tensor(swapped(&swapped(&rows.tensor(part, ids), rows.axis, other), rows.axis, other))
            }
            Form::Host => Fed::host(rows, part, ids, false, None),
            Form::HostBshd => Fed::host(rows, part, ids, true, None),
            Form::HostRange => Fed::host(rows, part, &padded, false, Some((1, 1 + ids.len()))),
            Form::HostBshdRange => Fed::host(rows, part, &padded, true, Some((1, 1 + ids.len()))),
            Form::View => match Fed::host(rows, part, ids, false, None).source() {
                Source::Host(host) => {
                    Fed::View(Box::new(View::from_host(&host, &Budget::process()).expect("a small copy")))
                }
                _ => unreachable!("a host tensor was made"),
            },
            Form::Contiguous | Form::NarrowRows | Form::Transposed => Fed::Tensor(rows.tensor(part, ids)),
        }
    }

    fn host(rows: &Rows, part: usize, ids: &[Id], bshd: bool, range: Option<(usize, usize)>) -> Fed {
        let tensor = rows.tensor(part, ids);
        let (tensor, layout) = if bshd && rows.dims.len() == 4 && rows.axis == 2 {
            (tensor.transpose(1, 2).expect("four dimensions"), SequenceLayout::Bshd)
        } else {
            (tensor, SequenceLayout::Bhsd)
        };
        Fed::Host { bytes: bytes_of(&tensor), dtype: rows.dtype, shape: tensor.dims().to_vec(), layout, range }
    }

    pub fn source(&self) -> Source<'_> {
        match self {
            Fed::Tensor(tensor) => tensor.into(),
            Fed::View(view) => (&**view).into(),
            Fed::Host { bytes, dtype, shape, layout, range } => {
                let host =
                    HostTensor::new("src", bytes, *dtype, shape).and_then(|host| host.with_layout("src", *layout));
                let host = host.expect("a shape of as many bytes");
                match *range {
                    Some((start, end)) => host.with_range(start, end).into(),
                    None => host.into(),
                }
            }
        }
    }
}

fn narrow(tensor: &Tensor, axis: usize, start: usize, len: usize) -> Tensor {
    tensor.narrow(axis, start, len).expect("a part of the tensor")
}

/// Two axes exchanged: the elements move when it is done once, the strides when it is done twice.
fn swapped(tensor: &Tensor, one: usize, other: usize) -> Tensor {
    let swapped = tensor.transpose(one, other).expect("two axes");
    if tensor.is_contiguous() && tensor.rank() > 1 { swapped.contiguous().expect("a copy") } else { swapped }
}
