//! The node of each key in a Cluster: the slot of a key, and the nodes of the slots, as any node reports them.
//!
//! The map of slots is requested once, and again if a key turned out to be on another node or a node was unreachable.
//! Keys that have moved are requested once more from their new node; after that, they are misses. O(keys) for each
//! batch, in as many pipelines as there are nodes.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use redis::{Pipeline, Value};

use super::commands::Batch;
use super::link::{Access, Address};
use super::node::Node;
use super::replies;
use crate::fault::{Fault, FaultKind};

const SLOTS: u16 = 16384;

/// The most bytes of a list of slots.
const LIST_BYTES: u64 = 4 << 20;

/// A Cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    seeds: Vec<Address>,
    access: Access,
    connections: usize,
    map: Mutex<Option<Arc<Map>>>,
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
}

/// The ranges of slots by their last slot, with the first one and the node that has them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Map(BTreeMap<u16, (u16, Address)>);

impl Map {
    fn address(&self, slot: u16) -> Option<&Address> {
        self.0
            .range(slot..)
            .next()
            .map(|(_, (first, address))| (first, address))
            .filter(|(first, _)| **first <= slot)
            .map(|(_, address)| address)
    }

    /// Reads the answer to `CLUSTER SLOTS`: lists of a first slot, a last slot, and nodes, the first of which is the
    /// master.
    fn read(value: &Value, asked: &Address) -> Option<Map> {
        let Value::Array(ranges) = value else { return None };
        let mut map = BTreeMap::new();
        for range in ranges {
            let Value::Array(fields) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(node), ..] = &fields[..] else { return None };
            let [host, Value::Int(port), ..] = &node[..] else { return None };
            let host = match host {
                Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
                // The node does not know its own name, so its address is the one that was asked.
                Value::BulkString(_) | Value::Nil => asked.host.clone(),
                _ => return None,
            };
            let slots: RangeInclusive<u16> = u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?;
            if slots.is_empty() || *slots.end() >= SLOTS {
                return None;
            }
            map.insert(*slots.end(), (*slots.start(), Address { host, port: u16::try_from(*port).ok()? }));
        }
        Some(Map(map))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Address>, access: Access, connections: usize) -> Self {
        Cluster { seeds, access, connections, map: Mutex::new(None), nodes: Mutex::new(HashMap::new()) }
    }

    fn node(&self, address: &Address) -> Arc<Node> {
        let make = || Arc::new(Node::new(address.clone(), self.access.clone(), self.connections));
        locked(&self.nodes).entry(address.clone()).or_insert_with(make).clone()
    }

    /// Returns the map of slots; requests it if there is none.
    async fn map(&self) -> Result<Arc<Map>, Fault> {
        let known = locked(&self.map).clone();
        if let Some(map) = known {
            return Ok(map);
        }
        let mut commands = Pipeline::new();
        commands.cmd("CLUSTER").arg("SLOTS");
        let mut last = Fault::new(FaultKind::Unreachable, "no node of the cluster");
        let known: Vec<Address> = locked(&self.nodes).keys().cloned().collect();
        // One node after the other: after a first answer, the others are not needed.
        for address in self.seeds.iter().chain(known.iter().filter(|address| !self.seeds.contains(address))) {
            match self.node(address).exchange(&commands, LIST_BYTES).await {
                Ok(values) => match values.first() {
                    Some(Value::ServerError(error)) => {
                        last = replies::fault_of_command(error).unwrap_or(last);
                    }
                    value => {
                        if let Some(map) = value.and_then(|value| Map::read(value, address)) {
                            let map = Arc::new(map);
                            self.keep(&map);
                            return Ok(map);
                        }
                        last = Fault::new(FaultKind::Garbage, "an invalid list of slots");
                    }
                },
                Err(fault) => last = fault,
            }
        }
        Err(last)
    }

    /// Keeps a map, and the connections to its nodes and to the seeds.
    fn keep(&self, map: &Arc<Map>) {
        *locked(&self.map) = Some(map.clone());
        locked(&self.nodes)
            .retain(|address, _| self.seeds.contains(address) || map.0.values().any(|(_, present)| present == address));
    }

    fn forget(&self, map: &Arc<Map>) {
        let mut known = locked(&self.map);
        if known.as_ref().is_some_and(|present| Arc::ptr_eq(present, map)) {
            *known = None;
        }
    }

    /// Returns the answers to a batch, in its order.
    pub(super) async fn answers(&self, batch: &Batch<'_>) -> Vec<Result<Value, Fault>> {
        let mut answers: Vec<Result<Value, Fault>> =
            vec![Err(Fault::new(FaultKind::Unreachable, "no node has the slot")); batch.keys.len()];
        let mut open: Vec<usize> = (0..batch.keys.len()).collect();
        for _ in 0..2 {
            let map = match self.map().await {
                Ok(map) => map,
                Err(fault) => {
                    open.iter().for_each(|&index| answers[index] = Err(fault.clone()));
                    break;
                }
            };
            let mut parts: HashMap<&Address, Vec<usize>> = HashMap::new();
            for &index in &open {
                if let Some(address) = map.address(slot(batch.full_key(index).as_bytes())) {
                    parts.entry(address).or_default().push(index);
                }
            }
            let asked = parts.into_iter().map(|(address, indices)| {
                let node = self.node(address);
                async move { (batch.on(&node, &indices).await, indices) }
            });
            for (values, indices) in join_all(asked).await {
                indices.into_iter().zip(values).for_each(|(index, value)| answers[index] = value);
            }
            if open.iter().any(|&index| answers[index].as_ref().map_or(true, replies::is_moved)) {
                self.forget(&map);
            }
            open.retain(|&index| answers[index].as_ref().is_ok_and(replies::is_moved));
            if open.is_empty() {
                break;
            }
        }
        answers
    }
}

/// Returns the slot of a key: of the text in its first braces, if there is any.
fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let length = key[open + 1..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then_some(&key[open + 1..][..length])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// Returns the CRC-16 (XMODEM) of bytes.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12182);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
    }

    #[test]
    fn a_list_of_slots_is_read_or_refused_as_a_whole() {
        let asked = Address { host: "seed".to_owned(), port: 1 };
        let range = |first, last, host: &str| {
            let node = Value::Array(vec![Value::BulkString(host.into()), Value::Int(7000)]);
            Value::Array(vec![Value::Int(first), Value::Int(last), node])
        };
        let map = Map::read(&Value::Array(vec![range(0, 9, "a"), range(12, 16383, "")]), &asked).unwrap();
        let host = |slot| map.address(slot).map(|address| address.host.as_str());
        assert_eq!([0, 9, 10, 11, 12, 16383].map(host), [Some("a"), Some("a"), None, None, Some("seed"), Some("seed")]);
        for wrong in [range(0, 16384, "a"), range(-1, 3, "a"), range(5, 4, "a"), Value::Int(1)] {
            assert_eq!(Map::read(&Value::Array(vec![range(0, 1, "a"), wrong]), &asked), None);
        }
    }
}
