//! Redis, tested with real servers that are stopped, killed and filled, and with a proxy that falsifies answers.

#[path = "../support/mod.rs"]
mod support;

mod abandoned;
mod cluster;
mod options;
mod proxied;
mod server;
mod tls;
