//! The simulator is the same every time, and the index knows what the caches have.

use kvtide_router::{Report, Routing, SimulatorOptions, TraceOptions, simulate};

fn options() -> SimulatorOptions {
    let trace = TraceOptions { requests: 5000, rate: 20.0, system_prompts: 50, ..TraceOptions::default() };
    SimulatorOptions { trace, workers: 8, blocks: 4096, ..SimulatorOptions::default() }
}

fn report(routing: Routing) -> Report {
    simulate(&options(), routing).unwrap()
}

#[test]
fn the_same_options_give_the_same_report() {
    for routing in
        [Routing::RoundRobin, Routing::LeastLoaded, Routing::LongestPrefix, Routing::Cost { load_weight: 1.0 }]
    {
        assert_eq!(report(routing), report(routing));
    }
}

#[test]
fn prefixes_are_worth_something_and_load_keeps_the_balance() {
    let [spread, prefix, cost] =
        [Routing::RoundRobin, Routing::LongestPrefix, Routing::Cost { load_weight: 1.0 }].map(report);
    assert_eq!((spread.requests, spread.prompt_tokens), (cost.requests, cost.prompt_tokens));
    assert!(cost.hit_rate() > spread.hit_rate() + 0.1, "{cost:?} {spread:?}");
    assert!(cost.imbalance < prefix.imbalance, "{cost:?} {prefix:?}");
    assert!(cost.wait_p99 < spread.wait_p99, "{cost:?} {spread:?}");
    // No more than fits.
    assert!(cost.blocks > 0 && cost.blocks <= 8 * 4096);
}
