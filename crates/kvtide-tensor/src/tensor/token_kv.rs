//! One token's key and value, read from a paged cache.

use crate::base::dtype::DType;
use crate::base::dtype::floats;
use crate::base::error::Result;

/// K and V of one token and layer, `kv_heads` rows each, as bytes of their dtypes: the cache's dtype, or 32-bit floats if
/// its pages are quantised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenKv {
    /// The element type of the key.
    pub key_dtype: DType,
    /// The element type of the value.
    pub value_dtype: DType,
    /// The key's bytes.
    pub key: Vec<u8>,
    /// The value's bytes.
    pub value: Vec<u8>,
}

impl TokenKv {
    /// The key as 32-bit floats.
    pub fn key_f32(&self) -> Result<Vec<f32>> {
        floats(self.key_dtype, &self.key)
    }

    /// The value as 32-bit floats.
    pub fn value_f32(&self) -> Result<Vec<f32>> {
        floats(self.value_dtype, &self.value)
    }
}
