//! The fields of `config.json` that a model's arithmetic needs. `ModelDescription` reads the fields of its layers.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// An object of the file.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub &'a Map<String, Value>);

impl<'a> Fields<'a> {
    /// Returns a value, or `None` if it is missing or `null`.
    pub fn get(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Returns an object inside this one.
    pub fn object(self, name: &str) -> Option<Fields<'a>> {
        self.get(name)?.as_object().map(Fields)
    }

    /// Returns a text, or the first of a list of texts.
    pub fn text(self, name: &str) -> Option<&'a str> {
        let value = self.get(name)?;
        value.as_str().or_else(|| value.as_array()?.first()?.as_str())
    }

    /// Returns a finite number over 0, or `default` if it is missing.
    pub fn number(self, name: &str, default: f64) -> Result<f64> {
        Ok(self.optional_number(name)?.unwrap_or(default))
    }

    /// Returns a finite number over 0, or an error if it is missing.
    pub fn require_number(self, name: &str) -> Result<f64> {
        self.optional_number(name)?.ok_or_else(|| Error::config(name, "missing", "a number over 0"))
    }

    /// Returns a finite number over 0, or `None` if it is missing.
    pub fn optional_number(self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if number > 0. && number.is_finite() => Ok(Some(number)),
            _ => Err(Error::config(name, value, "a finite number over 0")),
        }
    }

    /// Returns a size, or an error if it is missing.
    pub fn size(self, name: &str) -> Result<usize> {
        let Some(value) = self.get(name) else { return Err(Error::config(name, "missing", "a whole number")) };
        match value.as_u64() {
            Some(size) if (1..=u64::from(u32::MAX)).contains(&size) => Ok(size as usize),
            _ => Err(Error::config(name, value, "a whole number of at least 1")),
        }
    }

    /// Returns a boolean, or `default` if it is missing.
    pub fn flag(self, name: &str, default: bool) -> Result<bool> {
        let Some(value) = self.get(name) else { return Ok(default) };
        value.as_bool().ok_or_else(|| Error::config(name, value, "true or false"))
    }
}
