//! One server, and the connections to it, which are used in turn.

use std::sync::atomic::{AtomicUsize, Ordering};

use redis::{Pipeline, Value};

use super::link::{Access, Address, Link};
use crate::fault::Fault;

/// A server.
#[derive(Debug)]
pub(super) struct Node {
    links: Vec<Link>,
    turn: AtomicUsize,
}

impl Node {
    pub(super) fn new(address: Address, access: Access, connections: usize) -> Self {
        let links = (0..connections).map(|_| Link::new(address.clone(), access.clone())).collect();
        Node { links, turn: AtomicUsize::new(0) }
    }

    /// Sends commands over the next connection, and reads an answer to each.
    pub(super) async fn exchange(&self, commands: &Pipeline, bytes_max: u64) -> Result<Vec<Value>, Fault> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.links[turn % self.links.len()].exchange(commands, bytes_max).await
    }
}
