//! Tiers of a cache: offloaded blocks are restored unchanged, whatever stores do in between.

mod caller;
mod crash;
mod ending;
mod folder;
mod forgetting;
mod forms;
mod power;
mod tiers;
#[path = "../../../kvtide-files/tests/files/world.rs"]
#[allow(dead_code, reason = "files need more of it")]
mod world;
