//! The store of all workers. Entries are lost, torn and exchanged.

use std::collections::BTreeMap;

use kvtide_tiers::{Answer, Call};

/// The store.
#[derive(Debug, Default)]
pub struct Shelf {
    pub entries: BTreeMap<String, Vec<u8>>,
    pub is_down: bool,
    /// The number of digits of a key that count, if not all do.
    pub digits: Option<u8>,
}

/// An answer of the store.
pub enum Answered {
    Has(Vec<bool>),
    Values(Vec<Option<Vec<u8>>>),
    Stored(usize),
    Done,
}

impl Answered {
    /// Passes the answer to `take`.
    pub fn pass<T>(&self, take: impl FnOnce(Answer<'_>) -> T) -> T {
        match self {
            Answered::Has(exist) => take(Answer::Has(exist)),
            Answered::Values(values) => {
                take(Answer::Values(&values.iter().map(Option::as_deref).collect::<Vec<Option<&[u8]>>>()))
            }
            Answered::Stored(count) => take(Answer::Stored(*count)),
            Answered::Done => take(Answer::Done),
        }
    }
}

impl Shelf {
    fn slot(&self, key: &str) -> String {
        key[..self.digits.map_or(key.len(), usize::from)].to_owned()
    }

    /// Carries out a call.
    pub fn answer(&mut self, call: &Call) -> Answered {
        match call {
            Call::Has(keys) => {
                Answered::Has(keys.iter().map(|key| self.entries.contains_key(&self.slot(key))).collect())
            }
            Call::Get { keys, .. } => {
                Answered::Values(keys.iter().map(|key| self.entries.get(&self.slot(key)).cloned()).collect())
            }
            Call::Put(entries) => {
                for (key, value) in entries {
                    self.entries.entry(self.slot(key)).or_insert_with(|| value.clone());
                }
                Answered::Stored(entries.len())
            }
            Call::Remove(keys) => {
                keys.iter().for_each(|key| _ = self.entries.remove(&self.slot(key)));
                Answered::Done
            }
        }
    }

    /// Damages an entry.
    pub fn damage(&mut self, kind: u8, at: u32) {
        let Some(place) = (at as usize).checked_rem(self.entries.len()) else { return };
        let key = self.entries.keys().nth(place).unwrap().clone();
        let next = self.entries.range(key.clone()..).nth(1).map(|(key, value)| (key.clone(), value.clone()));
        let value = self.entries.get_mut(&key).unwrap();
        let bit = at as usize / 7 % (value.len() * 8).max(1);
        match (kind, next) {
            (0, _) => _ = self.entries.remove(&key),
            (1, _) => value.truncate(bit / 8),
            (2, _) if !value.is_empty() => value[bit / 8] ^= 1 << (bit % 8),
            (3, Some((next, other))) => {
                let own = std::mem::replace(value, other);
                self.entries.insert(next, own);
            }
            (4, _) => value.extend(vec![7; 1 << 17]),
            (5, _) => value.fill(0),
            (6, _) => self.entries.clear(),
            _ => {}
        }
    }

    /// Returns the keys, and the bytes of all entries.
    pub fn shown(&self) -> String {
        let bytes: usize = self.entries.values().map(Vec::len).sum();
        format!("{bytes} bytes under {:?}", self.entries.keys().map(|key| &key[..key.len().min(8)]).collect::<Vec<_>>())
    }
}
