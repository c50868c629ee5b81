//! A store in memory: the naive one, and one that tests tamper with.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use kvtide_remote::Store;

#[derive(Debug, Default)]
pub struct Memory(pub Mutex<BTreeMap<String, Vec<u8>>>);

impl Store for Memory {
    fn get_many(&self, keys: &[String], bytes_max: usize, _: Instant) -> Vec<Option<Vec<u8>>> {
        let values = self.0.lock().unwrap();
        keys.iter().map(|key| values.get(key).filter(|value| value.len() <= bytes_max).cloned()).collect()
    }

    fn has_many(&self, keys: &[String], _: Instant) -> Vec<bool> {
        let values = self.0.lock().unwrap();
        keys.iter().map(|key| values.contains_key(key)).collect()
    }

    fn put_many(&self, entries: &[(String, &[u8])], _: Instant) -> usize {
        let mut values = self.0.lock().unwrap();
        entries.iter().for_each(|(key, value)| _ = values.entry(key.clone()).or_insert_with(|| value.to_vec()));
        entries.len()
    }

    fn remove_many(&self, keys: &[String], _: Instant) {
        let mut values = self.0.lock().unwrap();
        keys.iter().for_each(|key| _ = values.remove(key));
    }
}
