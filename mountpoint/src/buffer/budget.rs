//! How much memory is out, who may have more, who waits: a pure state machine.
//!
//! Three uses share one total. `Demand` is what a waiting READ needs; `Write` is a part being filled or sent;
//! `Ahead` is what nobody asked for yet. The rules, each for a promise that the property tests below hold:
//!
//! 1. The sum never passes the total.
//! 2. `Ahead` never waits and never touches what is kept for the other two, so whatever becomes of read-ahead,
//!    a reader finds `demand_reserve` and a writer `write_reserve`.
//! 3. `Write` leaves `demand_reserve` to readers. While a writer waits, readers stay within their reserve, so the
//!    writer's turn comes.
//! 4. Within one use, first come first served: nobody overtakes a larger request.

use std::collections::VecDeque;

/// What a piece of memory is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// A READ waits for it.
    Demand = 0,
    /// A part that is filled or sent.
    Write = 1,
    /// Fetched before anybody asked.
    Ahead = 2,
}

/// Names one waiting request.
pub(super) type Ticket = u64;

/// How short memory is; a number to read before growing, never a call back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Pressure {
    /// More than half of what read-ahead may use is free.
    Low,
    /// Less than half of it is free: stop growing.
    Some,
    /// Somebody waits: shrink.
    High,
}

#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    purpose: Use,
    bytes: u64,
}

/// The state. All numbers are bytes.
#[derive(Debug)]
pub(super) struct BudgetState {
    total: u64,
    demand_reserve: u64,
    write_reserve: u64,
    used: [u64; 3],
    queue: VecDeque<Waiter>,
    next_ticket: Ticket,
}

impl BudgetState {
    pub(super) fn new(total: u64, demand_reserve: u64, write_reserve: u64) -> Self {
        assert!(demand_reserve + write_reserve <= total, "the reserves must fit the total");
        Self { total, demand_reserve, write_reserve, used: [0; 3], queue: VecDeque::new(), next_ticket: 1 }
    }

    /// The largest single request this use can ever be granted, whatever the others hold on to.
    pub(super) fn request_max(&self, purpose: Use) -> u64 {
        match purpose {
            Use::Demand => self.demand_reserve,
            Use::Write => self.write_reserve,
            Use::Ahead => self.total - self.demand_reserve - self.write_reserve,
        }
    }

    pub(super) fn used(&self, purpose: Use) -> u64 {
        self.used[purpose as usize]
    }

    fn free(&self) -> u64 {
        self.total - self.used.iter().sum::<u64>()
    }

    fn kept_for_demand(&self) -> u64 {
        self.demand_reserve.saturating_sub(self.used(Use::Demand))
    }

    fn kept_for_write(&self) -> u64 {
        self.write_reserve.saturating_sub(self.used(Use::Write))
    }

    fn waits(&self, purpose: Use) -> bool {
        self.queue.iter().any(|w| w.purpose == purpose)
    }

    fn fits(&self, purpose: Use, bytes: u64) -> bool {
        match purpose {
            Use::Demand => {
                let within = if self.waits(Use::Write) { self.kept_for_demand() } else { u64::MAX };
                bytes <= self.free().min(within)
            }
            Use::Write => bytes <= self.free().saturating_sub(self.kept_for_demand()),
            Use::Ahead => {
                self.queue.is_empty()
                    && bytes <= self.free().saturating_sub(self.kept_for_demand() + self.kept_for_write())
            }
        }
    }

    /// Takes the bytes if that harms nobody who came before.
    pub(super) fn try_take(&mut self, purpose: Use, bytes: u64) -> bool {
        let granted = !self.waits(purpose) && self.fits(purpose, bytes);
        if granted {
            self.used[purpose as usize] += bytes;
        }
        granted
    }

    /// Waits in line. The caller has checked `request_max`; `Ahead` does not wait.
    pub(super) fn enqueue(&mut self, purpose: Use, bytes: u64) -> Ticket {
        debug_assert!(purpose != Use::Ahead && bytes <= self.request_max(purpose));
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.queue.push_back(Waiter { ticket, purpose, bytes });
        ticket
    }

    /// Leaves the line. Call [`BudgetState::grant`] after: somebody behind may fit now.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.queue.retain(|w| w.ticket != ticket);
    }

    pub(super) fn give_back(&mut self, purpose: Use, bytes: u64) {
        self.used[purpose as usize] -= bytes;
    }

    /// Moves bytes to another use if that use could have taken them now.
    pub(super) fn try_convert(&mut self, from: Use, to: Use, bytes: u64) -> bool {
        self.give_back(from, bytes);
        let granted = self.try_take(to, bytes);
        self.used[from as usize] += if granted { 0 } else { bytes };
        granted
    }

    /// Grants whoever fits now, in order; returns their tickets.
    pub(super) fn grant(&mut self) -> Vec<Ticket> {
        let mut granted = Vec::new();
        let mut blocked = [false; 3];
        let mut i = 0;
        while i < self.queue.len() {
            let (purpose, bytes) = (self.queue[i].purpose, self.queue[i].bytes);
            if !blocked[purpose as usize] && self.fits(purpose, bytes) {
                self.used[purpose as usize] += bytes;
                granted.extend(self.queue.remove(i).map(|w| w.ticket));
                if purpose == Use::Write && !self.waits(Use::Write) {
                    // The last waiting writer is served: readers in front of it may go past their reserve again.
                    (blocked, i) = ([false; 3], 0);
                }
            } else {
                blocked[purpose as usize] = true;
                i += 1;
            }
        }
        granted
    }

    pub(super) fn pressure(&self) -> Pressure {
        let ahead_max = self.request_max(Use::Ahead);
        if !self.queue.is_empty() {
            Pressure::High
        } else if self.free().saturating_sub(self.kept_for_demand() + self.kept_for_write()) < ahead_max / 2 {
            Pressure::Some
        } else {
            Pressure::Low
        }
    }

    pub(super) fn waiting(&self, purpose: Use) -> usize {
        self.queue.iter().filter(|w| w.purpose == purpose).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOTAL: u64 = 100;
    const DEMAND: u64 = 25;
    const WRITE: u64 = 40;

    #[derive(Clone, Debug)]
    enum Op {
        Ask(Use, u64),
        GiveBack(usize),
        Cancel(usize),
        Convert(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..3usize, 1..20u64).prop_map(|(u, n)| Op::Ask([Use::Demand, Use::Write, Use::Ahead][u], n)),
            any::<usize>().prop_map(Op::GiveBack),
            any::<usize>().prop_map(Op::Cancel),
            any::<usize>().prop_map(Op::Convert),
        ]
    }

    /// A second bookkeeping beside the state machine: who holds what, who waits.
    #[derive(Default)]
    struct Model {
        held: Vec<(Use, u64)>,
        waiting: Vec<(Ticket, Use, u64)>,
    }

    impl Model {
        fn settle(&mut self, state: &mut BudgetState) {
            for ticket in state.grant() {
                let at =
                    self.waiting.iter().position(|w| w.0 == ticket).expect("granted twice or never asked");
                let (_, purpose, bytes) = self.waiting.remove(at);
                let earlier = self.waiting[..at].iter().any(|w| w.1 == purpose);
                assert!(!earlier, "overtaken within one use");
                self.held.push((purpose, bytes));
            }
        }

        fn sum(&self, purpose: Use) -> u64 {
            self.held.iter().filter(|h| h.0 == purpose).map(|h| h.1).sum()
        }
    }

    proptest! {
        #[test]
        fn never_over_the_total_and_everybody_is_served_though_read_ahead_is_never_given_back(
            ops in proptest::collection::vec(op(), 1..200)
        ) {
            let mut state = BudgetState::new(TOTAL, DEMAND, WRITE);
            let mut model = Model::default();
            for op in ops {
                match op {
                    Op::Ask(purpose, bytes) => {
                        if state.try_take(purpose, bytes) {
                            model.held.push((purpose, bytes));
                        } else if purpose != Use::Ahead {
                            model.waiting.push((state.enqueue(purpose, bytes), purpose, bytes));
                        }
                    }
                    Op::GiveBack(i) if !model.held.is_empty() => {
                        let (purpose, bytes) = model.held.remove(i % model.held.len());
                        state.give_back(purpose, bytes);
                    }
                    Op::Cancel(i) if !model.waiting.is_empty() => {
                        let (ticket, ..) = model.waiting.remove(i % model.waiting.len());
                        state.cancel(ticket);
                    }
                    Op::Convert(i) if !model.held.is_empty() => {
                        let at = i % model.held.len();
                        let (purpose, bytes) = model.held[at];
                        if state.try_convert(purpose, Use::Ahead, bytes) {
                            model.held[at].0 = Use::Ahead;
                        }
                    }
                    _ => {}
                }
                model.settle(&mut state);
                for purpose in [Use::Demand, Use::Write, Use::Ahead] {
                    prop_assert_eq!(state.used(purpose), model.sum(purpose));
                }
                prop_assert!(state.used.iter().sum::<u64>() <= TOTAL);
                prop_assert!(state.used(Use::Ahead) <= TOTAL - DEMAND - WRITE);
            }
            // Liveness: holders of Demand and Write give back in any order, Ahead never does.
            while !model.waiting.is_empty() {
                let at = model.held.iter().position(|h| h.0 != Use::Ahead);
                let Some(at) = at else { panic!("nobody holds anything, yet {:?} wait", model.waiting) };
                let (purpose, bytes) = model.held.remove(at);
                state.give_back(purpose, bytes);
                model.settle(&mut state);
            }
        }
    }

    #[test]
    fn a_stream_of_readers_does_not_starve_a_writer() {
        let mut state = BudgetState::new(TOTAL, DEMAND, WRITE);
        while state.try_take(Use::Demand, 5) {}
        let writer = state.enqueue(Use::Write, 40);
        // Each reader that ends is followed by another one at once.
        for _ in 0..100 {
            state.give_back(Use::Demand, 5);
            if state.grant().contains(&writer) {
                return;
            }
            if !state.try_take(Use::Demand, 5) {
                state.enqueue(Use::Demand, 5);
            }
            state.grant();
        }
        panic!("the writer never had its turn");
    }
}
