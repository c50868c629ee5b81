//! The states of a layer: their forms in the known families, and their tensors by the sizes in a file.
//!
//! | form | `conv` | and |
//! | --- | --- | --- |
//! | short convolution | `[hidden, kernel - 1]` | |
//! | Mamba | `[inner, kernel - 1]` | `ssm [inner, state]` |
//! | Mamba 2 | `[inner + 2 * groups * state, kernel - 1]` | `ssm [heads, head_dim, state]` |
//! | delta rule | `[2 * key + value, kernel - 1]` | `recurrent [value_heads, key_dim, value_dim]` |
//!
//! A convolution needs the `kernel - 1` columns before the next token. The caches of transformers may keep `kernel`
//! columns, the oldest of which has no effect. A graph that declares its states goes before a file, whatever it keeps.

use super::count::{Count, HeadDim, size};
use super::family::ModelFamily;
use super::fields::{Fields, Given};
use crate::error::{Error, Result};
use crate::model::state::{StateDType, StateTensor};

/// The form of a layer's state.
#[derive(Clone, Copy, Debug)]
pub(super) enum StateForm {
    /// A short convolution over `hidden_size` channels.
    ShortConvolution {
        /// The columns of the kernel.
        kernel: Count,
    },
    /// A selective state space for each of `expand * hidden_size` channels.
    Mamba {
        /// The factor of `hidden_size`.
        expand: Count,
        /// Elements of a channel's state.
        state: Count,
        /// The columns of the kernel.
        kernel: Count,
    },
    /// A state space for each head.
    Mamba2(Mamba2),
    /// The gated delta rule: a matrix for each head of values.
    DeltaRule {
        /// Heads of keys.
        key_heads: Count,
        /// Heads of values.
        value_heads: Count,
        /// Elements of a head's key.
        key_dim: Count,
        /// Elements of a head's value.
        value_dim: Count,
        /// The columns of the kernel.
        kernel: Count,
    },
}

/// The sizes of Mamba 2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mamba2 {
    pub width: Width,
    pub heads: Count,
    pub head_dim: HeadDim,
    pub groups: Count,
    /// Elements of a channel's state.
    pub state: Count,
    /// The columns of the kernel.
    pub kernel: Count,
    /// The field with the element type of the state space, if there is one; 32-bit floating point by default.
    pub dtype: Option<&'static str>,
}

/// The number of all heads' channels.
#[derive(Clone, Copy, Debug)]
pub(super) enum Width {
    /// The channels of the heads: heads × dimension.
    OfHeads,
    /// This factor times `hidden_size`.
    Expanded(Count),
    /// A field; if it is `null`, the factor times `hidden_size`.
    Given {
        /// The field.
        field: Count,
        /// The factor.
        expand: Count,
    },
}

/// The tensors of one layer, without a layer's number. Convolutions have the element type `dtype`, everything else has
/// 32 bits, because errors of a recurrence add up.
pub(super) fn tensors(
    form: &StateForm,
    family: &ModelFamily,
    fields: &Fields<'_>,
    dtype: StateDType,
) -> Result<Vec<StateTensor>> {
    let hidden = || fields.count_or("hidden_size", family.hidden);
    let tensor = |name: &str, shape: &[u32], dtype| StateTensor {
        layer: 0,
        name: name.to_owned(),
        shape: shape.to_vec(),
        dtype,
    };
    match form {
        StateForm::ShortConvolution { kernel } => {
            Ok(vec![tensor("conv", &[hidden()?, columns(*kernel, fields)?], dtype)])
        }
        StateForm::Mamba { expand, state, kernel } => {
            let inner = u64::from(expand.of(fields)?) * u64::from(hidden()?);
            let inner = size(fields, expand.name(fields), inner)?;
            let conv = tensor("conv", &[inner, columns(*kernel, fields)?], dtype);
            Ok(vec![conv, tensor("ssm", &[inner, state.of(fields)?], StateDType::F32)])
        }
        StateForm::Mamba2(form) => {
            let (heads, head_dim, inner) = heads(form, fields, hidden()?)?;
            let (groups, state) = (form.groups.of(fields)?, form.state.of(fields)?);
            let channels = u64::from(inner) + 2 * u64::from(groups) * u64::from(state);
            let channels = size(fields, form.groups.name(fields), channels)?;
            let conv = tensor("conv", &[channels, columns(form.kernel, fields)?], dtype);
            let dtype = form.dtype.map_or(Ok(StateDType::F32), |field| dtype_of(fields, field))?;
            Ok(vec![conv, tensor("ssm", &[heads, head_dim, state], dtype)])
        }
        StateForm::DeltaRule { key_heads, value_heads, key_dim, value_dim, kernel } => {
            let [key_heads, value_heads] = [key_heads.of(fields)?, value_heads.of(fields)?];
            let dims = [key_dim.of(fields)?, value_dim.of(fields)?];
            let channels = 2 * u64::from(key_heads) * u64::from(dims[0]) + u64::from(value_heads) * u64::from(dims[1]);
            let channels = size(fields, key_dim.field, channels)?;
            let conv = tensor("conv", &[channels, columns(*kernel, fields)?], dtype);
            Ok(vec![conv, tensor("recurrent", &[value_heads, dims[0], dims[1]], StateDType::F32)])
        }
    }
}

/// The columns that a convolution keeps.
fn columns(kernel: Count, fields: &Fields<'_>) -> Result<u32> {
    match kernel.of(fields)? {
        1 => Err(Error::model(
            fields.path(kernel.name(fields)),
            1,
            "at least 2: a convolution over one token has no state",
        )),
        columns => Ok(columns - 1),
    }
}

/// The heads of Mamba 2, the elements of one, and the channels of all.
fn heads(form: &Mamba2, fields: &Fields<'_>, hidden: u32) -> Result<(u32, u32, u32)> {
    let expanded = |expand: Count| size(fields, expand.name(fields), u64::from(expand.of(fields)?) * u64::from(hidden));
    let (heads, given) = (form.heads.of(fields)?, form.head_dim.of(fields)?);
    let (inner, meaning) = match form.width {
        Width::OfHeads => {
            let dim = given.unwrap_or(1);
            return Ok((heads, dim, size(fields, form.heads.field, u64::from(heads) * u64::from(dim))?));
        }
        Width::Expanded(expand) => (expanded(expand)?, format!("{} times hidden_size", expand.field)),
        Width::Given { field, expand } => match fields.count(field.field)? {
            Given::Null => (expanded(expand)?, format!("{} times hidden_size", expand.field)),
            Given::Missing => (field.default, field.field.to_owned()),
            Given::Value(inner) => (inner, field.field.to_owned()),
        },
    };
    if inner % heads != 0 {
        let expected = format!("a divisor of {inner} ({meaning})");
        return Err(Error::model(fields.path(form.heads.name(fields)), heads, expected));
    }
    match given {
        Some(dim) if u64::from(dim) * u64::from(heads) != u64::from(inner) => {
            let expected = format!("{}, which is {inner} ({meaning}) divided by {heads} heads", inner / heads);
            Err(Error::model(fields.path(form.head_dim.field()), dim, expected))
        }
        _ => Ok((heads, inner / heads, inner)),
    }
}

/// The element type that a field names, as PyTorch does.
fn dtype_of(fields: &Fields<'_>, field: &str) -> Result<StateDType> {
    const NAMES: &str = "float32, float16 or bfloat16";
    match fields.text_or(field, "float32", NAMES)? {
        "float32" => Ok(StateDType::F32),
        "float16" => Ok(StateDType::F16),
        "bfloat16" => Ok(StateDType::BF16),
        other => Err(Error::model(fields.path(field), other, NAMES)),
    }
}

#[cfg(test)]
impl StateForm {
    /// The default that the table has for a field, as a class declares it; [`None`] if the form does not read it.
    pub fn declares(&self, field: &str) -> Option<serde_json::Value> {
        use serde_json::json;

        let counts = match *self {
            StateForm::ShortConvolution { kernel } => vec![kernel],
            StateForm::Mamba { expand, state, kernel } => vec![expand, state, kernel],
            StateForm::DeltaRule { key_heads, value_heads, key_dim, value_dim, kernel } => {
                vec![key_heads, value_heads, key_dim, value_dim, kernel]
            }
            StateForm::Mamba2(Mamba2 { width, heads, head_dim, groups, state, kernel, dtype }) => {
                if dtype == Some(field) {
                    return Some(json!("float32"));
                }
                let mut counts = vec![heads, groups, state, kernel];
                match head_dim {
                    HeadDim::Auto(name) if name == field => return Some(json!("auto")),
                    HeadDim::Auto(_) => {}
                    HeadDim::Given(count) => counts.push(count),
                }
                match width {
                    Width::OfHeads => {}
                    Width::Expanded(expand) => counts.push(expand),
                    Width::Given { field, expand } => counts.extend([field, expand]),
                }
                counts
            }
        };
        counts.iter().find(|count| count.field == field).map(|count| json!(count.default))
    }
}
