//! Numbers of weights and constants, as far as an evaluation needs them.

use std::cell::RefCell;
use std::collections::HashMap;

use super::Known;
use super::band::Band;
use crate::error::Result;
use crate::proto::{AttributeValue, ElementType, Node, Tensor};
use crate::source::Source;

/// Float weights with more elements get no numbers.
const FLOATS_MAX: u64 = 256;
/// Tables with one row of numbers for each head may have slopes of ALiBi.
const TABLES_MAX: u64 = 1 << 21;
/// Integers and booleans with more elements get no numbers.
const INTS_MAX: u64 = 1 << 14;

/// The source of a model's weights, and the tables that were read.
pub(crate) struct Constants<'a> {
    source: &'a dyn Source,
    /// The bands of tables, by the offset of their message: a table is read once for all evaluations.
    bands: RefCell<HashMap<u64, Option<Band>>>,
}

impl<'a> Constants<'a> {
    pub fn new(source: &'a dyn Source) -> Self {
        Self { source, bands: RefCell::default() }
    }

    pub fn tensor(&self, tensor: &Tensor) -> Result<Known> {
        let is_table = matches!(tensor.dims.as_slice(), [.., _, 1, _]);
        let max = match (tensor.element.is_float(), is_table) {
            (true, true) => TABLES_MAX,
            (true, false) => FLOATS_MAX,
            (false, _) => INTS_MAX,
        };
        let data = tensor.load(self.source, max)?;
        let band = if data.is_none() { self.band(tensor)? } else { None };
        let dims = tensor.dims.iter().map(|&dim| dim as usize).collect();
        Ok(Known { element: Some(tensor.element), dims: Some(dims), data: data.map(Into::into), band })
    }

    fn band(&self, tensor: &Tensor) -> Result<Option<Band>> {
        let Some(offset) = tensor.offset() else { return Ok(None) };
        if let Some(&band) = self.bands.borrow().get(&offset) {
            return Ok(band);
        }
        let band = Band::of(tensor, self.source)?;
        self.bands.borrow_mut().insert(offset, band);
        Ok(band)
    }

    /// The value of a `Constant`; [`None`] for another node.
    pub(super) fn node(&self, node: &Node) -> Result<Option<Known>> {
        if !node.is("", "Constant") {
            return Ok(None);
        }
        let Some(attribute) = node.attributes.first() else { return Ok(Some(Known::default())) };
        Ok(Some(match &attribute.value {
            AttributeValue::Tensor(tensor) => self.tensor(tensor)?,
            AttributeValue::Int(value) => Known::scalar(ElementType::I64, *value as f64),
            AttributeValue::Float(value) => Known::scalar(ElementType::F32, f64::from(*value)),
            AttributeValue::Ints(values) => {
                Known::list(ElementType::I64, values.iter().map(|&value| value as f64).collect())
            }
            _ => Known::default(),
        }))
    }

    /// A number repeated in a known shape.
    pub(super) fn repeated(&self, node: &Node, inputs: &[&Known]) -> Result<Option<Vec<Known>>> {
        let shape = inputs.first().and_then(|value| value.ints());
        let dims: Option<Vec<usize>> =
            shape.and_then(|dims| dims.iter().map(|&dim| usize::try_from(dim).ok()).collect());
        let Some(dims) = dims else { return Ok(None) };
        let value = match node.attribute("value") {
            Some(AttributeValue::Tensor(tensor)) => self.tensor(tensor)?,
            _ => Known::scalar(ElementType::F32, 0.),
        };
        let number = value.data.as_ref().and_then(|data| data.first().copied());
        Ok(Some(vec![match number {
            Some(number) => Known::filled(value.element, dims, |_| number),
            None => Known::sized(value.element, dims),
        }]))
    }
}
