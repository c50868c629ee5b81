//! The fields of an error as plain data, so that other languages can read them without parsing a message.

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
    /// A count, a length or an id.
    Number(u64),
    /// Any other number.
    Float(f64),
    /// A name or a sentence.
    Text(String),
    /// A shape.
    Numbers(Vec<u64>),
}

macro_rules! values {
    ($($type:ty, $value:ident => $detail:expr;)+) => {
        $(impl From<$type> for DetailValue {
            fn from($value: $type) -> Self {
                $detail
            }
        })+
    };
}

values! {
    u64, value => DetailValue::Number(value);
    u32, value => DetailValue::Number(value.into());
    usize, value => DetailValue::Number(value as u64);
    i32, value => i64::from(value).into();
    i64, value => u64::try_from(value).map_or(DetailValue::Float(value as f64), DetailValue::Number);
    f64, value => DetailValue::Float(value);
    String, value => DetailValue::Text(value);
    &str, value => DetailValue::Text(value.to_owned());
    &String, value => DetailValue::Text(value.clone());
    &[usize], value => DetailValue::Numbers(value.iter().map(|&size| size as u64).collect());
    &DetailValue, value => value.clone();
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

/// Builds a list of details: `details![seqLen: 4, newTokens: 10]`.
#[macro_export]
macro_rules! details {
    ($($name:ident: $value:expr),* $(,)?) => {
        vec![$($crate::Detail { name: stringify!($name), value: $crate::DetailValue::from($value) }),*]
    };
}
