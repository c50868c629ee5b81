//! Files of caches and sequences: what is loaded is what was saved, whatever happens to the file in between.

mod caches;
mod crash;
mod damage;
mod folder;
mod identity;
mod layers;
mod sequences;
mod tiers;
mod world;
