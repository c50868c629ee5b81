//! One step of a model: token ids and positions in, rows of logits out. Kernels find the step's pages in the session's
//! shared state.
#![expect(
    unsafe_code,
    reason = "our tensors are lent to a C library for the length of a call, and its tensors are read"
)]

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use kvtide_core::Error;
use kvtide_tensor::StepRun;
use kvtide_tensor::runtime::Budget;

use super::api::{Value, number};
use super::embeddings::GivenRows;
use super::library::{Library, NONE};
use super::session::{POSITIONS, Port, ROWS, Session, failed};
use super::tensor::{dims, element, memory};
use crate::border::argument::ArrayArg;
use crate::border::refusal::Outcome;
use crate::sampling::logits::Logits;

/// The inputs of one step.
pub struct StepInputs {
    ids: Vec<i64>,
    /// One row for all tokens, or three: time, height and width.
    positions: Vec<i64>,
    /// The rows whose logits are needed, if not all.
    rows: Option<Vec<i64>>,
    /// Rows of embeddings that replace those of their ids.
    given: GivenRows,
}

impl StepInputs {
    pub fn read(
        ids: ArrayArg,
        positions: ArrayArg,
        rows: Option<ArrayArg>,
        [places, embeds]: [Option<ArrayArg>; 2],
    ) -> Outcome<Self> {
        let ids: Vec<i64> = ids.elements::<u32>("ids")?.unwrap_or(&[]).iter().map(|&id| id.into()).collect();
        let positions =
            positions.elements::<i32>("positions")?.unwrap_or(&[]).iter().map(|&at| at.into()).collect::<Vec<_>>();
        let rows = rows.map(|rows| rows.elements::<i32>("rows")).transpose()?;
        let rows = rows.map(|rows| rows.unwrap_or(&[]).iter().map(|&row| row.into()).collect::<Vec<i64>>());
        if positions.len() != ids.len() && positions.len() != 3 * ids.len() {
            let expected = format!("{}, one or three per token id", ids.len());
            return Err(Error::argument("positions", format!("{} positions", positions.len()), expected).into());
        }
        let past = rows.iter().flatten().find(|&&row| row < 0 || row >= ids.len() as i64);
        if let Some(&row) = past {
            return Err(Error::argument("rows", row as f64, format!("a row from 0 to less than {}", ids.len())).into());
        }
        let given = GivenRows::read(places, embeds, ids.len())?;
        Ok(StepInputs { ids, positions, rows, given })
    }

    pub fn check(&self, run: &StepRun) -> Outcome<()> {
        let tokens = run.tokens() as usize;
        if self.ids.len() == tokens {
            return Ok(());
        }
        let expected = format!("{tokens}, one per token of the step");
        Err(Error::argument("ids", format!("{} token ids", self.ids.len()), expected).into())
    }

    /// The number of rows of logits that are returned.
    fn count(&self) -> usize {
        self.rows.as_ref().map_or(self.ids.len(), Vec::len)
    }
}

/// An input tensor over our own memory, for the length of one call: integers of the type that the graph takes.
pub(super) struct Fed<'a> {
    session: &'a Session,
    pub value: *mut Value,
    _numbers: Box<[i64]>,
}

impl Drop for Fed<'_> {
    fn drop(&mut self) {
        // SAFETY: it was made for this call.
        unsafe { (self.session.library.api.release_value)(self.value) };
    }
}

impl<'a> Fed<'a> {
    pub fn new(session: &'a Session, port: &Port, numbers: &[i64], dims: &[i64]) -> Outcome<Self> {
        let (library, api) = (session.library, &session.library.api);
        let mut own: Box<[i64]> = numbers.into();
        let mut bytes = 8 * own.len();
        if port.element == number::INT32 {
            // The 32-bit numbers reuse this memory and fill half of it.
            bytes = 4 * own.len();
            let narrow: &mut [i32] = bytemuck::cast_slice_mut(&mut own);
            for (place, &value) in numbers.iter().enumerate() {
                narrow[place] =
                    i32::try_from(value).map_err(|_| failed(format!("{value} is too large for {}", port.text())))?;
            }
        }
        let data = own.as_mut_ptr().cast();
        // SAFETY: the numbers live as long as the tensor, and have this many bytes.
        let value = library.make(|out| unsafe {
            (api.create_tensor)(session.memory, data, bytes, dims.as_ptr(), dims.len(), port.element, out)
        })?;
        Ok(Fed { session, value, _numbers: own })
    }
}

/// A tensor that the library made.
pub(super) struct Made<'a> {
    pub library: &'a Library,
    pub value: *mut Value,
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // SAFETY: the library transferred ownership, or the pointer is null.
        unsafe { (self.library.api.release_value)(self.value) };
    }
}

impl Session {
    /// Runs one step. Kernels find it in the shared state. `embeddings` is the model of its embeddings.
    pub fn run(&self, embeddings: Option<&Session>, inputs: &StepInputs, budget: &Arc<Budget>) -> Outcome<Arc<Logits>> {
        let tokens = inputs.ids.len() as i64;
        let embedded = embeddings.map(|model| model.embed(&inputs.ids, &inputs.given, self)).transpose()?;
        let embedded = |place: usize| embedded.as_ref().and_then(|made| made[place].as_ref());
        let own = |place: &usize| embedded(*place).is_none();
        let fed = (0..self.inputs.len()).filter(own).map(|place| {
            let port = &self.inputs[place];
            if port.is(POSITIONS) {
                let rows: &[i64] =
                    if inputs.positions.len() == inputs.ids.len() { &[1, tokens] } else { &[3, 1, tokens] };
                return Fed::new(self, port, &inputs.positions, rows);
            }
            if !port.is(ROWS) {
                return Fed::new(self, port, &inputs.ids, &[1, tokens]);
            }
            match &inputs.rows {
                Some(rows) => Fed::new(self, port, rows, &[rows.len() as i64]),
                None => Fed::new(self, port, &(0..tokens).collect::<Vec<_>>(), &[tokens]),
            }
        });
        let fed = fed.collect::<Outcome<Vec<_>>>()?;
        let mut own = fed.iter().map(|fed| fed.value.cast_const());
        let value = |place| embedded(place).map(|made| made.value.cast_const()).or_else(|| own.next());
        let values: Vec<_> = (0..self.inputs.len()).filter_map(value).collect();
        let made = self.call(&values, &[self.logits()])?;
        self.read(&made[0], inputs, budget)
    }

    /// Calls the library with a tensor for each input, in their order. Returns the tensors of the ports that are asked
    /// for.
    pub(super) fn call(&self, values: &[*const Value], asked: &[&Port]) -> Outcome<Vec<Made<'_>>> {
        let library = self.library;
        let names: Vec<_> = self.inputs.iter().map(|port| port.name.as_ptr()).collect();
        let asked: Vec<_> = asked.iter().map(|port| port.name.as_ptr()).collect();
        let mut outputs = vec![null_mut(); asked.len()];
        // SAFETY: names and tensors live until the call is over, and there is a place for each output.
        let ran = library.check(unsafe {
            let (run, values, outputs) = (library.api.run, values.as_ptr(), outputs.as_mut_ptr());
            run(self.session, NONE, names.as_ptr(), values, names.len(), asked.as_ptr(), asked.len(), outputs)
        });
        // If the call has failed, these are null.
        let made = outputs.into_iter().map(|value| Made { library, value }).collect();
        ran.map(|()| made)
    }

    /// Reads the requested rows as floats.
    fn read(&self, made: &Made<'_>, inputs: &StepInputs, budget: &Arc<Budget>) -> Outcome<Arc<Logits>> {
        let library = self.library;
        let dims = dims(library, made.value)?;
        let rows = if self.has_rows() { inputs.count() } else { inputs.ids.len() };
        let vocab = match dims.as_slice() {
            &[1, found, vocab] if found as usize == rows => vocab as usize,
            _ => return Err(failed(format!("logits have the dimensions {dims:?}, expected [1, {rows}, vocabulary]"))),
        };
        let element = element(library, made.value)?;
        let width = match element {
            number::FLOAT => 4,
            number::FLOAT16 | number::BFLOAT16 => 2,
            other => return Err(failed(format!("logits are of element type {other}, expected floats"))),
        };
        // SAFETY: the tensor has these dimensions and this element type, and nothing writes to it.
        let bytes: &[u8] = unsafe { memory(library, made.value, rows * vocab * width)? };
        let count = inputs.count();
        let lease = budget.take(4 * (count * vocab) as u64)?;
        let mut values = Vec::new();
        values.try_reserve_exact(count * vocab).map_err(|_| Budget::process().refusal(4 * (count * vocab) as u64))?;
        let row = |place: usize| &bytes[place * vocab * width..(place + 1) * vocab * width];
        match &inputs.rows {
            Some(chosen) if !self.has_rows() => {
                chosen.iter().for_each(|&place| widen(row(place as usize), element, &mut values))
            }
            _ => widen(bytes, element, &mut values),
        }
        Ok(Arc::new(Logits::leased(values, count as u32, vocab as u32, lease)?.with_peaks()?))
    }
}

/// Appends elements, converted to floats.
fn widen(bytes: &[u8], element: c_int, to: &mut Vec<f32>) {
    if element == number::FLOAT {
        return to.extend_from_slice(bytemuck::cast_slice(bytes));
    }
    let bits: &[u16] = bytemuck::cast_slice(bytes);
    let start = to.len();
    to.resize(start + bits.len(), 0.);
    match element {
        number::FLOAT16 => bits.reinterpret_cast::<f16>().convert_to_f32_slice(&mut to[start..]),
        _ => bits.reinterpret_cast::<bf16>().convert_to_f32_slice(&mut to[start..]),
    }
}
