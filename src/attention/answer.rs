//! What attention answers: an output and, on request, the logarithms of its rows' sums.
//!
//! An output that is not too large is a typed array of JavaScript's own, whose shape is told in numbers; a large one is native
//! memory. Neither costs an object with a finalizer where it would be felt.
//!
//! ```text
//! behind the numbers of a call   rank  dtype  dims ...
//! ```

use kvtide_tensor::{Attended, Budget, DType, HostTensor, Room, View};
use napi::Env;
use napi::bindgen_prelude::{Either, Either3, Unknown};
use napi_derive::napi;

use crate::attention::queries::NUMBERS;
use crate::border::array::{ArrayMemory, NEW_BYTES_MAX, new_array};
use crate::border::budget::budget;
use crate::border::children::Children;
use crate::border::external_array::ExternalArray;
use crate::border::refusal::Outcome;
use crate::border::tensor::NativeView;

/// Where the answer's shape begins, behind the numbers of a call.
const SHAPE: usize = 11;

/// An output with its sums.
#[napi(object, object_from_js = false)]
pub struct NativeAttended<'a> {
    #[napi(ts_type = "unknown")]
    pub out: Option<Either<Unknown<'a>, NativeView>>,
    #[napi(ts_type = "Float32Array")]
    pub lse: Either<Unknown<'a>, ExternalArray>,
}

/// An output alone, or with its sums; nothing for one that is the caller's.
pub(crate) type NativeAnswer<'a> = Option<Either3<Unknown<'a>, NativeView, NativeAttended<'a>>>;

/// The memory of an output.
#[derive(Default)]
pub(crate) enum OutputMemory<'a> {
    /// The caller's.
    #[default]
    Given,
    /// An array that was made for it.
    Array(Unknown<'a>),
    /// Native memory.
    Native(Vec<u8>),
}

/// The memory that an answer is written to.
#[derive(Default)]
pub(crate) struct AnswerMemory<'a> {
    output: OutputMemory<'a>,
    pub lse: Vec<f32>,
    pub room: Option<Room>,
}

impl<'a> AnswerMemory<'a> {
    /// Takes what `room` says: the caller's memory, if there is some.
    pub fn take<'o>(
        &'o mut self,
        env: Option<&'a Env>,
        given: Option<ArrayMemory>,
        room: &Room,
    ) -> kvtide_tensor::Result<(&'o mut [u8], &'o mut [f32])>
    where
        'a: 'o,
    {
        self.room = Some(room.clone());
        let elements: usize = room.shape.iter().product();
        let bytes = elements * room.dtype.bytes();
        zeros(&mut self.lse, room.sums)?;
        let out = match (given, env) {
            (Some(given), _) => given.bytes_mut(),
            (None, Some(env)) if bytes <= NEW_BYTES_MAX => {
                let refused = |_| Budget::process().refusal(bytes as u64);
                let (array, memory) = new_array(env, room.dtype.bytes(), elements).map_err(refused)?;
                self.output = OutputMemory::Array(array);
                memory.bytes_mut()
            }
            _ => {
                let mut native = Vec::new();
                zeros(&mut native, bytes)?;
                self.output = OutputMemory::Native(native);
                let OutputMemory::Native(native) = &mut self.output else { return Ok((&mut [], &mut self.lse)) };
                native.as_mut_slice()
            }
        };
        Ok((out, &mut self.lse))
    }

    /// The answer; its shape goes to `numbers`.
    pub fn answer(self, env: &'a Env, with_lse: bool, numbers: &mut [f64]) -> Outcome<NativeAnswer<'a>> {
        let AnswerMemory { output, lse, room } = self;
        let Some(room) = room else { return Ok(None) };
        tell(&room, numbers);
        let out = match output {
            OutputMemory::Given => None,
            OutputMemory::Array(array) => Some(Either::A(array)),
            OutputMemory::Native(bytes) => {
                let host = HostTensor::new("out", &bytes, room.dtype, &room.shape)?;
                Some(Either::B(NativeView::of(View::from_host(&host, &budget())?, &Children::default())))
            }
        };
        Ok(match (out, with_lse) {
            (out, true) => Some(Either3::C(NativeAttended { out, lse: sums(env, lse)? })),
            (Some(Either::A(array)), false) => Some(Either3::A(array)),
            (Some(Either::B(view)), false) => Some(Either3::B(view)),
            (None, false) => None,
        })
    }
}

/// The answer of a call whose output stays on its device.
pub(crate) fn of_device(env: &Env, attended: Attended, with_lse: bool) -> Outcome<NativeAnswer<'_>> {
    let Attended { out, lse } = attended;
    let out = NativeView::of(out, &Children::default());
    Ok(Some(match with_lse {
        true => Either3::C(NativeAttended { out: Some(Either::B(out)), lse: sums(env, lse)? }),
        false => Either3::B(out),
    }))
}

/// Writes a shape down.
fn tell(room: &Room, numbers: &mut [f64]) {
    let dtype = DType::ALL.iter().position(|&dtype| dtype == room.dtype).unwrap_or(0);
    let told = [room.shape.len(), dtype].into_iter().chain(room.shape.iter().copied());
    for (number, value) in numbers.iter_mut().skip(NUMBERS + SHAPE).zip(told) {
        *number = value as f64;
    }
}

/// Sums as JavaScript gets them.
fn sums<'a>(env: &'a Env, lse: Vec<f32>) -> Outcome<Either<Unknown<'a>, ExternalArray>> {
    if 4 * lse.len() > NEW_BYTES_MAX {
        return Ok(Either::B(ExternalArray::floats(lse)));
    }
    let (array, memory) = new_array(env, 4, lse.len())?;
    memory.bytes_mut().copy_from_slice(bytemuck::cast_slice(&lse));
    Ok(Either::A(array))
}

/// Fills an empty list with zeros, or answers that there is no memory for it.
pub(crate) fn zeros<T: Clone + Default>(list: &mut Vec<T>, count: usize) -> kvtide_tensor::Result<()> {
    let refused = |_| Budget::process().refusal((count * size_of::<T>()) as u64);
    list.try_reserve_exact(count).map_err(refused)?;
    list.resize(count, T::default());
    Ok(())
}
