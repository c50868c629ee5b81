//! Arbitrary eviction policies.

use kvtide_core::paged::{EvictionPolicy, RankTable, ReleasedBlock};
use proptest::prelude::*;

/// A policy that is drawn: the default one, or one of few ranks, scattered over priorities and depths.
#[derive(Clone, Copy, Debug)]
pub enum Policy {
    Default,
    /// Asked for each block.
    Scattered(u64),
    /// Asked once, for all there is.
    Table(u64),
}

pub fn policy() -> impl Strategy<Value = Policy> {
    let seed = || 0..1000u64;
    prop_oneof![Just(Policy::Default), seed().prop_map(Policy::Scattered), seed().prop_map(Policy::Table)]
}

impl Policy {
    /// Returns the policy; [`None`] for the default order.
    pub fn make(self) -> Option<Box<dyn EvictionPolicy>> {
        match self {
            Policy::Default => None,
            Policy::Scattered(seed) => Some(Box::new(Scattered(seed))),
            Policy::Table(seed) => Some(Box::new(RankTable::of(&Scattered(seed)))),
        }
    }
}

/// One of few ranks, some of them over the highest.
#[derive(Debug)]
pub struct Scattered(pub u64);

impl EvictionPolicy for Scattered {
    fn rank(&self, released: &ReleasedBlock) -> u8 {
        scattered(self.0, released.priority, released.depth)
    }
}

pub fn scattered(seed: u64, priority: u8, depth: Option<u32>) -> u8 {
    let place = depth.map_or(0, |depth| u64::from(depth) + 1);
    let mixed = (seed << 48 ^ u64::from(priority) << 40 ^ place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    [0, 50, 51, 127, 200][(mixed >> 40) as usize % 5]
}
