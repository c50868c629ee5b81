//! The planners that support drafts, behind one interface.

use kvtide_core::{
    Drafts, Ending, GrowablePlanner, GrowableState, Plan, Result, RollbackPlanner, RotatingPlanner, RotatingState, Runs,
};

/// A planner with drafts behind its tokens.
pub trait Drafting {
    type State: Copy;
    /// As it would be if everything drafted had been appended.
    fn shown(&self) -> Runs;
    /// The slots of everything that is kept.
    fn kept(&self) -> Runs;
    fn slots(&self) -> u32;
    fn append(&self, tokens: u32) -> Result<Plan<Self::State>>;
    fn appended(&mut self, plan: &Plan<Self::State>);
    fn draft(&self, tokens: u32, room: u32, whole: bool) -> Result<Plan<Self::State>>;
    fn drafted(&mut self, next: Self::State);
    fn draft_slot(&self, drafted: u32) -> u32;
    fn end(&mut self, ending: &Ending, drafts: &Drafts);
    /// Window and sinks, where there are any.
    fn window(&self) -> Option<(usize, usize)>;
}

impl Drafting for GrowablePlanner {
    type State = GrowableState;

    fn shown(&self) -> Runs {
        self.state().live()
    }

    fn kept(&self) -> Runs {
        self.state().live()
    }

    fn slots(&self) -> u32 {
        self.state().slots()
    }

    fn append(&self, tokens: u32) -> Result<Plan<GrowableState>> {
        self.plan_append(tokens)
    }

    fn appended(&mut self, plan: &Plan<GrowableState>) {
        self.commit(plan.next);
    }

    fn draft(&self, tokens: u32, room: u32, _: bool) -> Result<Plan<GrowableState>> {
        self.plan_append_with_room(tokens, room)
    }

    fn drafted(&mut self, next: GrowableState) {
        self.commit(next);
    }

    fn draft_slot(&self, drafted: u32) -> u32 {
        self.state().len() - drafted
    }

    fn end(&mut self, ending: &Ending, _: &Drafts) {
        self.cut(ending.dropped);
    }

    fn window(&self) -> Option<(usize, usize)> {
        None
    }
}

impl Drafting for RollbackPlanner {
    type State = GrowableState;

    fn shown(&self) -> Runs {
        self.state().live()
    }

    fn kept(&self) -> Runs {
        self.state().live()
    }

    fn slots(&self) -> u32 {
        self.state().slots()
    }

    fn append(&self, tokens: u32) -> Result<Plan<GrowableState>> {
        self.plan_append(tokens, None)
    }

    fn appended(&mut self, plan: &Plan<GrowableState>) {
        self.commit_append(plan, None).expect("a chain");
    }

    fn draft(&self, tokens: u32, room: u32, _: bool) -> Result<Plan<GrowableState>> {
        self.plan_draft(tokens, room)
    }

    fn drafted(&mut self, next: GrowableState) {
        self.commit_draft(next);
    }

    fn draft_slot(&self, drafted: u32) -> u32 {
        self.total() - drafted
    }

    fn end(&mut self, ending: &Ending, drafts: &Drafts) {
        self.cut(ending.dropped);
        if ending.is_outermost() {
            self.keep_draft(ending.kept, drafts.kept_parents(ending));
        }
    }

    fn window(&self) -> Option<(usize, usize)> {
        None
    }
}

impl Drafting for RotatingPlanner {
    type State = RotatingState;

    fn shown(&self) -> Runs {
        self.settled().live()
    }

    fn kept(&self) -> Runs {
        self.state().live()
    }

    fn slots(&self) -> u32 {
        self.state().slots()
    }

    fn append(&self, tokens: u32) -> Result<Plan<RotatingState>> {
        self.plan_append(tokens)
    }

    fn appended(&mut self, plan: &Plan<RotatingState>) {
        self.commit(plan.next);
    }

    fn draft(&self, tokens: u32, room: u32, whole: bool) -> Result<Plan<RotatingState>> {
        self.plan_draft(tokens, room, whole)
    }

    fn drafted(&mut self, next: RotatingState) {
        self.commit_draft(next);
    }

    fn draft_slot(&self, drafted: u32) -> u32 {
        RotatingPlanner::draft_slot(self, drafted)
    }

    fn end(&mut self, ending: &Ending, _: &Drafts) {
        self.cut(ending.dropped);
        if ending.is_outermost() {
            self.settle();
        }
    }

    fn window(&self) -> Option<(usize, usize)> {
        Some((self.options().window as usize, self.options().sinks as usize))
    }
}
