//! A whole number of a file: the field that gives it, and the value if the field is missing.

use super::fields::{Fields, Given};
use crate::count::COUNT_MAX;
use crate::error::{Error, Result};

/// A whole number of at least 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count {
    pub field: &'static str,
    /// An older name, which goes first if the file has it.
    pub older: Option<&'static str>,
    pub default: u32,
}

impl Count {
    pub const fn new(field: &'static str, default: u32) -> Self {
        Count { field, older: None, default }
    }

    pub const fn or(self, older: &'static str) -> Self {
        Count { older: Some(older), ..self }
    }

    /// The name by which a file gives it.
    pub fn name(self, fields: &Fields<'_>) -> &'static str {
        self.older.filter(|older| fields.has(older)).unwrap_or(self.field)
    }

    /// The number in a file. The newer name is checked even if the older one goes first.
    pub fn of(self, fields: &Fields<'_>) -> Result<u32> {
        let newer = fields.count_or(self.field, self.default)?;
        fields.count_or(self.name(fields), newer)
    }
}

/// A number of heads' elements: a number, or the rest of a width if it is `auto`.
#[derive(Clone, Copy, Debug)]
pub(super) enum HeadDim {
    /// A number.
    Given(Count),
    /// `auto` by default.
    Auto(&'static str),
}

impl HeadDim {
    pub fn field(self) -> &'static str {
        match self {
            HeadDim::Given(count) => count.field,
            HeadDim::Auto(field) => field,
        }
    }

    /// The number in a file; [`None`] if it is `auto`.
    pub fn of(self, fields: &Fields<'_>) -> Result<Option<u32>> {
        match self {
            HeadDim::Given(count) => count.of(fields).map(Some),
            HeadDim::Auto(field) if fields.is_text(field, "auto") => Ok(None),
            HeadDim::Auto(field) => match fields.count(field)? {
                Given::Value(count) => Ok(Some(count)),
                Given::Missing => Ok(None),
                Given::Null => Err(fields.null(field, "a whole number of at least 1, or auto")),
            },
        }
    }
}

/// Returns a size that follows from a field; an error names the field if the size is too large.
pub(super) fn size(fields: &Fields<'_>, field: &str, size: u64) -> Result<u32> {
    match u32::try_from(size) {
        Ok(size) if size <= COUNT_MAX => Ok(size),
        _ => {
            let expected = format!("a smaller one: a state would have a dimension of {size}, more than {COUNT_MAX}");
            Err(Error::model(fields.path(field), "too large", expected))
        }
    }
}
