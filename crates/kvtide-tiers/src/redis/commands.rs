//! The commands for a batch of keys: one for each key, in a pipeline.

use redis::{Pipeline, Value};

use super::node::Node;
use crate::fault::Fault;

/// The most bytes of an answer besides a value; errors are single lines.
const ANSWER_BYTES: u64 = 1024;

/// A batch of keys, and a command for each.
pub(super) struct Batch<'a> {
    pub(super) keys: Vec<&'a str>,
    prefix: &'a str,
    command: Command<'a>,
    /// The most bytes of one answer.
    answer_bytes: u64,
}

enum Command<'a> {
    Get { last: usize },
    Has,
    Put { entries: &'a [(String, &'a [u8])], ttl_millis: Option<u64> },
    Remove,
}

impl<'a> Batch<'a> {
    fn new(prefix: &'a str, keys: &'a [String], command: Command<'a>, answer_bytes: u64) -> Self {
        Batch { keys: keys.iter().map(String::as_str).collect(), prefix, command, answer_bytes }
    }

    pub(super) fn get(prefix: &'a str, keys: &'a [String], bytes_max: usize) -> Self {
        let answer_bytes = ANSWER_BYTES.saturating_add(bytes_max as u64);
        // `last` is one byte beyond the longest valid value.
        Self::new(prefix, keys, Command::Get { last: bytes_max.min(i64::MAX as usize) }, answer_bytes)
    }

    pub(super) fn has(prefix: &'a str, keys: &'a [String]) -> Self {
        Self::new(prefix, keys, Command::Has, ANSWER_BYTES)
    }

    pub(super) fn put(prefix: &'a str, entries: &'a [(String, &'a [u8])], ttl_millis: Option<u64>) -> Self {
        let keys = entries.iter().map(|(key, _)| key.as_str()).collect();
        Batch { keys, prefix, command: Command::Put { entries, ttl_millis }, answer_bytes: ANSWER_BYTES }
    }

    pub(super) fn remove(prefix: &'a str, keys: &'a [String]) -> Self {
        Self::new(prefix, keys, Command::Remove, ANSWER_BYTES)
    }

    /// Returns the key with the prefix.
    pub(super) fn full_key(&self, index: usize) -> String {
        [self.prefix, self.keys[index]].concat()
    }

    fn pipeline(&self, indices: &[usize]) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(indices.len());
        for &index in indices {
            let key = self.full_key(index);
            match &self.command {
                Command::Get { last } => pipeline.cmd("GETRANGE").arg(key).arg(0).arg(*last),
                Command::Has => pipeline.cmd("EXISTS").arg(key),
                Command::Put { entries, ttl_millis: None } => {
                    pipeline.cmd("SET").arg(key).arg(entries[index].1).arg("NX")
                }
                Command::Put { entries, ttl_millis: Some(millis) } => {
                    pipeline.cmd("SET").arg(key).arg(entries[index].1).arg("NX").arg("PX").arg(*millis)
                }
                Command::Remove => pipeline.cmd("UNLINK").arg(key),
            };
        }
        pipeline
    }

    /// Asks a node for some of the keys. If the exchange fails, its fault is the answer for each key.
    pub(super) async fn on(&self, node: &Node, indices: &[usize]) -> Vec<Result<Value, Fault>> {
        let bytes_max = self.answer_bytes.saturating_mul(indices.len() as u64);
        match node.exchange(&self.pipeline(indices), bytes_max).await {
            Ok(values) => values.into_iter().map(Ok).collect(),
            Err(fault) => vec![Err(fault); indices.len()],
        }
    }
}
