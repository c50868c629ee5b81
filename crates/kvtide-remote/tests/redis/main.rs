//! Redis as it is: servers of the tests' own that are stopped, killed, filled and lied about.

#[path = "../support/mod.rs"]
mod support;

mod cluster;
mod options;
mod proxied;
mod server;
mod tls;
