//! The gate compared with a naive model of the rules in its module documentation.

use std::time::Duration;

use kvtide_tiers::{Answered, Event, Fault, FaultKind, Gate, GateOptions, Outcome, Permit, Refusal, State};
use proptest::prelude::*;

const OPTIONS: GateOptions = GateOptions {
    operations_max: 4,
    bytes_max: 100,
    failures_max: 3,
    backoff_min: Duration::from_millis(10),
    backoff_max: Duration::from_millis(35),
};

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn failed(kind: FaultKind) -> Outcome {
    Outcome::Failed(Fault::new(kind, "a test"))
}

fn answered() -> Outcome {
    Outcome::Answered(Answered::default())
}

fn try_once(gate: &mut Gate, now: u64, outcome: Outcome) -> Result<(), Refusal> {
    gate.admit(at(now), 1).map(|permit| gate.settle(permit, outcome, at(now)))
}

#[test]
fn it_closes_after_three_failures_and_its_back_off_doubles_until_a_probe_is_answered() {
    let mut gate = Gate::new(OPTIONS).unwrap();
    try_once(&mut gate, 0, failed(FaultKind::TimedOut)).unwrap();
    try_once(&mut gate, 0, failed(FaultKind::TimedOut)).unwrap();
    try_once(&mut gate, 0, answered()).unwrap();
    for _ in 0..3 {
        assert_eq!(gate.next_event(), None);
        try_once(&mut gate, 0, failed(FaultKind::Unreachable)).unwrap();
    }
    assert!(matches!(gate.next_event(), Some(Event::Unavailable(fault)) if fault.kind == FaultKind::Unreachable));
    let mut now = 0;
    for backoff in [10, 20, 35, 35] {
        assert_eq!(try_once(&mut gate, now + backoff - 1, answered()), Err(Refusal::Unavailable));
        now += backoff;
        assert_eq!(gate.unavailable_until(), Some(at(now)));
        let probe = gate.admit(at(now), 1).unwrap();
        assert_eq!(gate.health().state, State::Probing);
        assert_eq!(gate.admit(at(now), 1), Err(Refusal::Probing));
        gate.settle(probe, failed(FaultKind::Unreachable), at(now));
        assert_eq!(gate.next_event(), None, "nothing has changed");
    }
    try_once(&mut gate, now + 35, answered()).unwrap();
    assert_eq!((gate.next_event(), gate.next_event()), (Some(Event::Available), None));
    assert_eq!(gate.health().failures(FaultKind::Unreachable), 7);
}

#[test]
fn each_reader_is_told_of_each_change_and_a_new_one_of_a_store_that_is_away() {
    let mut gate = Gate::new(OPTIONS).unwrap();
    let read = |gate: &Gate, seen: &mut u64| -> Vec<bool> {
        std::iter::from_fn(|| gate.event_behind(seen)).map(|event| event == Event::Available).collect()
    };
    let (mut early, mut idle) = (gate.events_begin(), gate.events_begin());
    try_once(&mut gate, 0, failed(FaultKind::Refused)).unwrap();
    assert_eq!(read(&gate, &mut early), [false]);
    let mut late = gate.events_begin();
    assert_eq!(read(&gate, &mut late), [false], "it is away");
    assert!(gate.next_event().is_some(), "a reader without a count is one more");
    try_once(&mut gate, 35, answered()).unwrap();
    let mut later = gate.events_begin();
    for (seen, expected) in
        [(&mut early, &[true][..]), (&mut late, &[true]), (&mut later, &[]), (&mut idle, &[false, true])]
    {
        assert_eq!(read(&gate, seen), expected);
        assert_eq!(read(&gate, seen), [false; 0], "each change is told once");
    }
    assert_eq!((gate.next_event(), gate.next_event()), (Some(Event::Available), None));
}

#[test]
fn a_permanent_fault_closes_it_at_once_and_for_long() {
    let mut gate = Gate::new(OPTIONS).unwrap();
    try_once(&mut gate, 5, failed(FaultKind::Refused)).unwrap();
    assert!(matches!(gate.next_event(), Some(Event::Unavailable(_))));
    assert_eq!(gate.unavailable_until(), Some(at(40)));
}

#[test]
fn what_fails_together_is_one_failure() {
    let mut gate = Gate::new(OPTIONS).unwrap();
    for round in 0..3 {
        assert_eq!(gate.health().state, State::Available, "round {round}");
        let permits: Vec<Permit> = (0..4).map(|_| gate.admit(at(0), 1).unwrap()).collect();
        permits.into_iter().for_each(|permit| gate.settle(permit, failed(FaultKind::Unreachable), at(0)));
    }
    assert_eq!(gate.health().state, State::Unavailable);
}

#[test]
fn no_room_for_writes_and_abandoned_calls_say_nothing_against_a_store() {
    let mut gate = Gate::new(OPTIONS).unwrap();
    for _ in 0..10 {
        for outcome in
            [failed(FaultKind::Full), failed(FaultKind::ReadOnly), failed(FaultKind::TooLarge), Outcome::Abandoned]
        {
            try_once(&mut gate, 0, outcome).unwrap();
        }
    }
    assert_eq!(gate.health().state, State::Available);
    try_once(&mut gate, 0, failed(FaultKind::Refused)).unwrap();
    try_once(&mut gate, 35, Outcome::Abandoned).unwrap();
    try_once(&mut gate, 35, answered()).expect("the next one asks");
    assert_eq!(gate.health().state, State::Available);
}

#[test]
fn options_that_let_nothing_through_are_refused_by_name() {
    let wrong = |options: GateOptions| {
        let error = Gate::new(options).unwrap_err();
        assert_eq!(error.code(), kvtide_core::Code::InvalidArgument);
        error.details()[0].value.to_string()
    };
    assert_eq!(wrong(GateOptions { operations_max: 0, ..OPTIONS }), "operationsMax");
    assert_eq!(wrong(GateOptions { bytes_max: 0, ..OPTIONS }), "bytesMax");
    assert_eq!(wrong(GateOptions { failures_max: 0, ..OPTIONS }), "failuresMax");
    assert_eq!(wrong(GateOptions { backoff_min: Duration::ZERO, ..OPTIONS }), "backoffMin");
    assert_eq!(wrong(GateOptions { backoff_max: at(1), ..OPTIONS }), "backoffMax");
}

/// The naive gate: lists of everything that happened.
#[derive(Default)]
struct Model {
    open: Vec<(Permit, u64, usize, bool)>,
    /// The number of failures that counted. An operation that began before the last of them is part of it.
    counted: usize,
    in_a_row: usize,
    /// The time until which the gate is closed, and the length of its back-off.
    closed: Option<(u64, u64)>,
    is_probing: bool,
    events: Vec<bool>,
}

impl Model {
    fn expected(&self, now: u64, bytes: u64) -> Option<Refusal> {
        let in_flight: u64 = self.open.iter().map(|(_, bytes, ..)| bytes).sum();
        match self.closed {
            Some(_) if self.is_probing => Some(Refusal::Probing),
            Some((until, _)) if now < until => Some(Refusal::Unavailable),
            _ if bytes > 100 => Some(Refusal::TooLarge),
            _ if self.open.len() == 4 || in_flight + bytes > 100 => Some(Refusal::Busy),
            _ => None,
        }
    }

    fn settle(&mut self, index: usize, outcome: &Outcome, now: u64) -> Permit {
        let (permit, _, begun, is_probe) = self.open.remove(index);
        let is_failure = matches!(outcome, Outcome::Failed(fault) if fault.kind.is_of_store());
        let is_permanent = matches!(outcome, Outcome::Failed(fault) if fault.kind.is_permanent());
        match (self.closed, outcome) {
            (_, Outcome::Abandoned) => self.is_probing &= !is_probe,
            (None, _) if is_failure => {
                if begun == self.counted {
                    self.counted += 1;
                    self.in_a_row += 1;
                }
                if self.in_a_row >= 3 || is_permanent {
                    let backoff = if is_permanent { 35 } else { 10 };
                    self.closed = Some((now + backoff, backoff));
                    self.counted += 1;
                    self.events.push(false);
                }
            }
            (None, _) => self.in_a_row = 0,
            (Some((_, backoff)), _) if is_probe => {
                self.is_probing = false;
                self.counted += usize::from(is_failure);
                let longer = if is_permanent { 35 } else { (backoff * 2).min(35) };
                self.closed = is_failure.then_some((now + longer, longer));
                if !is_failure {
                    self.in_a_row = 0;
                    self.events.push(true);
                }
            }
            (Some(_), _) => {}
        }
        permit
    }
}

#[derive(Clone, Debug)]
enum Step {
    Admit(u64),
    Settle(usize, u8),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..120).prop_map(Step::Admit),
        4 => (0usize..4, 0u8..8).prop_map(|(index, outcome)| Step::Settle(index, outcome)),
        1 => (0u64..30).prop_map(Step::Wait),
    ]
}

fn outcome(number: u8) -> Outcome {
    match number {
        0 | 1 => answered(),
        2 => failed(FaultKind::TimedOut),
        3 | 4 => failed(FaultKind::Unreachable),
        5 => failed(FaultKind::Refused),
        6 => failed(FaultKind::Full),
        _ => Outcome::Abandoned,
    }
}

proptest! {
    #[test]
    fn it_does_what_the_naive_one_does(steps in prop::collection::vec(step(), 0..200)) {
        let (mut gate, mut model, mut now) = (Gate::new(OPTIONS).unwrap(), Model::default(), 0);
        let mut events = Vec::new();
        for step in steps {
            match step {
                Step::Wait(millis) => now += millis,
                Step::Admit(bytes) => {
                    let got = gate.admit(at(now), bytes);
                    prop_assert_eq!(got.err(), model.expected(now, bytes));
                    if let Ok(permit) = got {
                        let is_probe = model.closed.is_some();
                        model.is_probing |= is_probe;
                        model.open.push((permit, bytes, model.counted, is_probe));
                    }
                }
                Step::Settle(index, number) if index < model.open.len() => {
                    let outcome = outcome(number);
                    let permit = model.settle(index, &outcome, now);
                    gate.settle(permit, outcome.clone(), at(now));
                    // Settling a second time is ignored.
                    gate.settle(permit, failed(FaultKind::Refused), at(now));
                }
                Step::Settle(..) => {}
            }
            let health = gate.health();
            prop_assert_eq!(health.operations_in_flight as usize, model.open.len());
            prop_assert_eq!(health.bytes_in_flight, model.open.iter().map(|(_, bytes, ..)| bytes).sum::<u64>());
            prop_assert_eq!(health.state == State::Available, model.closed.is_none());
            events.extend(std::iter::from_fn(|| gate.next_event()).map(|event| event == Event::Available));
        }
        prop_assert_eq!(&events, &model.events);
        // The two kinds of events alternate, whatever happens.
        prop_assert!(events.iter().enumerate().all(|(index, is_available)| *is_available == (index % 2 == 1)));
    }
}
