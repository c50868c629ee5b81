//! The fields of `config.json` that a model's arithmetic needs. Those of its layers are read by `ModelDescription`.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// An object of the file.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub &'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// A value that is not `null`.
    pub fn get(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// An object within it.
    pub fn object(self, name: &str) -> Option<Fields<'a>> {
        self.get(name)?.as_object().map(Fields)
    }

    /// A text, or the first of a list of texts.
    pub fn text(self, name: &str) -> Option<&'a str> {
        let value = self.get(name)?;
        value.as_str().or_else(|| value.as_array()?.first()?.as_str())
    }

    /// A finite number over 0, or `default` where there is none.
    pub fn number(self, name: &str, default: f64) -> Result<f64> {
        Ok(self.optional_number(name)?.unwrap_or(default))
    }

    /// A finite number over 0 that has to be there.
    pub fn require_number(self, name: &str) -> Result<f64> {
        self.optional_number(name)?.ok_or_else(|| Error::config(name, "missing", "a number over 0"))
    }

    /// A finite number over 0, where there is one.
    pub fn optional_number(self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if number > 0. && number.is_finite() => Ok(Some(number)),
            _ => Err(Error::config(name, value, "a finite number over 0")),
        }
    }

    /// A size that has to be there.
    pub fn size(self, name: &str) -> Result<usize> {
        let Some(value) = self.get(name) else { return Err(Error::config(name, "missing", "a whole number")) };
        match value.as_u64() {
            Some(size) if (1..=u64::from(u32::MAX)).contains(&size) => Ok(size as usize),
            _ => Err(Error::config(name, value, "a whole number of at least 1")),
        }
    }

    /// True or false, or `default` where nothing is said.
    pub fn flag(self, name: &str, default: bool) -> Result<bool> {
        let Some(value) = self.get(name) else { return Ok(default) };
        value.as_bool().ok_or_else(|| Error::config(name, value, "true or false"))
    }
}
