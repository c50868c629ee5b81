//! A machine of a tier, and the fates of its calls.

use std::collections::VecDeque;
use std::sync::Arc;

use kvtide_tiers::{Call, CallerGate, Driver, Fault, FaultKind, Machine, Outcome, Permit, Step};

use crate::calls::Fate;
use crate::shelf::Shelf;

/// A machine that is being driven.
pub struct Driven<M> {
    pub driver: Driver<M>,
    gate: Arc<CallerGate>,
    /// The last call.
    last: Option<Call>,
    next: Next,
    /// Calls that were given up, and whose answers have not arrived.
    late: VecDeque<(Permit, Call)>,
}

/// The next step of a machine.
#[derive(Debug, PartialEq)]
pub enum Next {
    Advance,
    /// The call was sent.
    Sent(Permit),
    Work,
    Cache,
    Done,
}

impl<M: Machine> Driven<M> {
    pub fn new(machine: M, gate: Arc<CallerGate>) -> Self {
        let driver = Driver::new(machine, Some(gate.clone()));
        Driven { driver, gate, last: None, next: Next::Advance, late: VecDeque::new() }
    }

    /// Makes one step. Returns the next one; the caller makes those of the cache.
    pub fn step(&mut self, fate: Fate, shelf: &mut Shelf) -> &Next {
        let step = match std::mem::replace(&mut self.next, Next::Advance) {
            Next::Done => Step::Done,
            Next::Advance | Next::Cache => self.driver.advance(),
            Next::Work => {
                self.driver.machine.work();
                self.driver.advance()
            }
            Next::Sent(permit) => self.settle(permit, fate, shelf),
        };
        self.next = match step {
            Step::Done => Next::Done,
            Step::Cache => Next::Cache,
            Step::Work => Next::Work,
            Step::Pause(_) => Next::Advance,
            Step::Call { call, permit } => {
                self.last = call.or(self.last.take());
                Next::Sent(permit)
            }
        };
        &self.next
    }

    fn settle(&mut self, permit: Permit, fate: Fate, shelf: &mut Shelf) -> Step {
        let call = self.last.clone().expect("a call that was sent");
        let step = match fate {
            Fate::Late => {
                self.late.push_back((permit, call));
                return self.driver.miss();
            }
            Fate::Abandoned => self.driver.abandon(permit),
            Fate::Answers if !shelf.is_down => shelf.answer(&call).pass(|answer| self.driver.answer(permit, answer)),
            Fate::Answers | Fate::Fails(_) => {
                if let Fate::Fails(true) = fate {
                    shelf.answer(&call);
                }
                self.driver.failed(permit, Fault::new(FaultKind::Unreachable, "simulated"))
            }
        };
        step.expect("the next step of a call that was not given up")
    }

    /// A late answer arrives: only the gate counts it.
    pub fn arrive(&mut self, shelf: &mut Shelf) {
        if let Some((permit, call)) = self.late.pop_front() {
            let step = shelf.answer(&call).pass(|answer| self.driver.answer(permit, answer));
            assert!(step.is_none(), "a late answer advances the machine");
        }
    }

    /// Ends all calls without answers.
    pub fn give_up(&mut self) {
        let sent = if let Next::Sent(permit) = self.next { Some(permit) } else { None };
        for permit in self.late.drain(..).map(|(permit, _)| permit).chain(sent) {
            self.gate.settle(permit, Outcome::Abandoned);
        }
        self.next = Next::Done;
    }
}
