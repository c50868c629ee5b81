//! The fields of an error as plain data, so that another language can show them without parsing a message.

/// One field of an error.
#[derive(Clone, Debug, PartialEq)]
pub struct Detail {
    /// The field's name, in camelCase.
    pub name: &'static str,
    /// Its value.
    pub value: DetailValue,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum DetailValue {
    /// A count, a length, an id.
    Number(u64),
    /// Any other number.
    Float(f64),
    /// A name or a sentence.
    Text(String),
    /// A shape.
    Numbers(Vec<u64>),
}

impl From<u64> for DetailValue {
    fn from(value: u64) -> Self {
        DetailValue::Number(value)
    }
}

impl From<u32> for DetailValue {
    fn from(value: u32) -> Self {
        DetailValue::Number(value.into())
    }
}

impl From<usize> for DetailValue {
    fn from(value: usize) -> Self {
        DetailValue::Number(value as u64)
    }
}

impl From<i32> for DetailValue {
    fn from(value: i32) -> Self {
        u64::try_from(value).map_or(DetailValue::Float(value.into()), DetailValue::Number)
    }
}

impl From<i64> for DetailValue {
    fn from(value: i64) -> Self {
        u64::try_from(value).map_or(DetailValue::Float(value as f64), DetailValue::Number)
    }
}

impl From<f64> for DetailValue {
    fn from(value: f64) -> Self {
        DetailValue::Float(value)
    }
}

impl From<String> for DetailValue {
    fn from(value: String) -> Self {
        DetailValue::Text(value)
    }
}

impl From<&DetailValue> for DetailValue {
    fn from(value: &DetailValue) -> Self {
        value.clone()
    }
}

impl std::fmt::Display for DetailValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DetailValue::Number(value) => value.fmt(f),
            DetailValue::Float(value) => value.fmt(f),
            DetailValue::Text(value) => f.write_str(value),
            DetailValue::Numbers(values) => write!(f, "{values:?}"),
        }
    }
}

impl From<&str> for DetailValue {
    fn from(value: &str) -> Self {
        DetailValue::Text(value.to_owned())
    }
}

impl From<&String> for DetailValue {
    fn from(value: &String) -> Self {
        DetailValue::Text(value.clone())
    }
}

impl From<&[usize]> for DetailValue {
    fn from(value: &[usize]) -> Self {
        DetailValue::Numbers(value.iter().map(|&size| size as u64).collect())
    }
}

/// `details![seqLen: 4, newTokens: 10]`
#[macro_export]
macro_rules! details {
    ($($name:ident: $value:expr),* $(,)?) => {
        vec![$($crate::Detail { name: stringify!($name), value: $crate::DetailValue::from($value) }),*]
    };
}
