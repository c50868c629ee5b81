//! Peers that break the protocol or exceed the limits: they lose their connection, memory stays proportional to the
//! bytes that they really sent, and other peers are not affected.

#[path = "peers/of_followers.rs"]
mod of_followers;
#[path = "peers/of_publishers.rs"]
mod of_publishers;
#[path = "support/raw_peer.rs"]
mod raw_peer;
mod support;
#[path = "peers/watched.rs"]
mod watched;
