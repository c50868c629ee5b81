//! Writes msgpack to memory, which cannot fail.

use rmp::encode::{ByteBuf, write_array_len, write_bin, write_f64, write_map_len, write_nil, write_str, write_uint};

/// A message that is being written.
pub(super) struct Writer(ByteBuf);

impl Writer {
    pub fn new() -> Self {
        Writer(ByteBuf::new())
    }

    pub fn array(&mut self, length: usize) {
        let Ok(_) = write_array_len(&mut self.0, length as u32);
    }

    pub fn map(&mut self, length: usize) {
        let Ok(_) = write_map_len(&mut self.0, length as u32);
    }

    pub fn text(&mut self, text: &str) {
        let Ok(()) = write_str(&mut self.0, text);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        let Ok(()) = write_bin(&mut self.0, bytes);
    }

    pub fn uint(&mut self, number: u64) {
        let Ok(_) = write_uint(&mut self.0, number);
    }

    pub fn float(&mut self, number: f64) {
        let Ok(()) = write_f64(&mut self.0, number);
    }

    pub fn nil(&mut self) {
        let Ok(()) = write_nil(&mut self.0);
    }

    /// Adds bytes that are msgpack already.
    pub fn encoded(&mut self, bytes: &[u8]) {
        self.0.as_mut_vec().extend(bytes);
    }

    pub fn into_vec(self) -> Vec<u8> {
        self.0.into_vec()
    }
}
