//! The memory budget as a pure state machine: memory in use, grants, and waiting requests.
//!
//! Three uses share one total. `Demand` is memory for a waiting READ; `Write` is a part being filled or sent; `Ahead` is memory
//! that no read asked for yet. Each rule makes a promise that the property tests below check:
//!
//! 1. The sum never exceeds the total.
//! 2. `Ahead` never waits and never touches the reserves of the other two, so a reader always finds `demand_reserve` and a
//!    writer `write_reserve`, whatever read-ahead holds.
//! 3. `Write` leaves `demand_reserve` to readers. While a writer waits, readers stay within their reserve, so the
//!    writer's turn comes.
//! 4. Beyond `write_reserve` a writer takes only memory that no other use needs: while files are read ahead, the rest of the total
//!    beside both reserves belongs to read-ahead. A writer that waits there is at its limit, and no other use gives memory up for it:
//!    otherwise one writer on a slow store, which always waits, would switch read-ahead off for all.
//! 5. Within one use, first come first served: no request overtakes an earlier, larger one.

use std::collections::VecDeque;

/// The purpose of a piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Memory for a waiting READ.
    Demand = 0,
    /// A part that is filled or sent.
    Write = 1,
    /// Memory for bytes fetched before any read requested them.
    Ahead = 2,
}

/// The number of a waiting request.
pub(super) type Ticket = u64;

/// The shortage of memory: a level to check before growing, never a callback.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Pressure {
    /// More than half of read-ahead's share is free.
    Low,
    /// Less than half of read-ahead's share is free: stop growing.
    Some,
    /// A request below its limit waits: shrink.
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
    /// The number of grants, by use.
    granted: [u64; 3],
    /// Whether files are read ahead at present.
    reading: bool,
    queue: VecDeque<Waiter>,
    next_ticket: Ticket,
}

impl BudgetState {
    pub(super) fn new(total: u64, demand_reserve: u64, write_reserve: u64) -> Self {
        assert!(demand_reserve + write_reserve <= total, "the reserves must fit the total");
        let (used, granted, queue, next_ticket) = ([0; 3], [0; 3], VecDeque::new(), 1);
        Self { total, demand_reserve, write_reserve, used, granted, reading: false, queue, next_ticket }
    }

    /// The largest single request, in bytes, that is certain to be granted some day, whatever memory the other uses have.
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

    pub(super) fn granted(&self, purpose: Use) -> u64 {
        self.granted[purpose as usize]
    }

    fn give(&mut self, purpose: Use, bytes: u64) {
        self.used[purpose as usize] += bytes;
        self.granted[purpose as usize] += 1;
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

    fn kept_for_ahead(&self) -> u64 {
        if self.reading { self.request_max(Use::Ahead).saturating_sub(self.used(Use::Ahead)) } else { 0 }
    }

    /// The free bytes that read-ahead may take.
    fn free_for_ahead(&self) -> u64 {
        self.free().saturating_sub(self.kept_for_demand() + self.kept_for_write())
    }

    /// Whether `bytes` more stay within the writers' reserve.
    fn is_sure(&self, bytes: u64) -> bool {
        self.used(Use::Write) + bytes <= self.write_reserve
    }

    /// Whether a request waits for memory to which it is entitled: a reader's, or a writer's that is not at its limit.
    fn is_short(&self) -> bool {
        self.queue.iter().any(|w| w.purpose == Use::Demand || self.is_sure(w.bytes))
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
            Use::Write => {
                let for_ahead = if self.is_sure(bytes) { 0 } else { self.kept_for_ahead() };
                bytes <= self.free().saturating_sub(self.kept_for_demand() + for_ahead)
            }
            Use::Ahead => !self.is_short() && bytes <= self.free_for_ahead(),
        }
    }

    /// Takes the bytes if they fit now, and no earlier request of this use waits.
    pub(super) fn try_take(&mut self, purpose: Use, bytes: u64) -> bool {
        self.reading |= purpose == Use::Ahead;
        let granted = !self.waits(purpose) && self.fits(purpose, bytes);
        if granted {
            self.give(purpose, bytes);
        }
        granted
    }

    /// Puts a request into the queue. The caller has checked `request_max`; `Ahead` does not wait.
    pub(super) fn enqueue(&mut self, purpose: Use, bytes: u64) -> Ticket {
        debug_assert!(purpose != Use::Ahead && bytes <= self.request_max(purpose));
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.queue.push_back(Waiter { ticket, purpose, bytes });
        ticket
    }

    /// Removes a request from the queue. Call [`BudgetState::grant`] afterwards: a later request may fit now.
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

    /// Grants the waiting requests that fit now, in order, and returns their tickets.
    pub(super) fn grant(&mut self) -> Vec<Ticket> {
        let mut granted = Vec::new();
        let mut blocked = [false; 3];
        let mut i = 0;
        while i < self.queue.len() {
            let (purpose, bytes) = (self.queue[i].purpose, self.queue[i].bytes);
            if !blocked[purpose as usize] && self.fits(purpose, bytes) {
                self.give(purpose, bytes);
                granted.extend(self.queue.remove(i).map(|w| w.ticket));
                if purpose == Use::Write && !self.waits(Use::Write) {
                    // The last waiting writer has its memory: readers before it in the queue may exceed their reserve again.
                    (blocked, i) = ([false; 3], 0);
                }
            } else {
                blocked[purpose as usize] = true;
                i += 1;
            }
        }
        granted
    }

    /// Notes that read-ahead has ended: until it begins again, writers may have all memory. Call [`BudgetState::grant`] afterwards.
    pub(super) fn nobody_reads(&mut self) {
        self.reading = false;
    }

    pub(super) fn pressure(&self) -> Pressure {
        if self.is_short() {
            Pressure::High
        } else if self.free_for_ahead() < self.request_max(Use::Ahead) / 2 {
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
        NobodyReads,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..3usize, 1..20u64).prop_map(|(u, n)| Op::Ask([Use::Demand, Use::Write, Use::Ahead][u], n)),
            any::<usize>().prop_map(Op::GiveBack),
            any::<usize>().prop_map(Op::Cancel),
            any::<usize>().prop_map(Op::Convert),
            Just(Op::NobodyReads),
        ]
    }

    /// A second bookkeeping beside the state machine: memory by use, and waiting requests.
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
        fn the_total_holds_and_all_are_served_though_read_ahead_never_returns(
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
                    Op::NobodyReads => state.nobody_reads(),
                    _ => {}
                }
                model.settle(&mut state);
                for purpose in [Use::Demand, Use::Write, Use::Ahead] {
                    prop_assert_eq!(state.used(purpose), model.sum(purpose));
                }
                prop_assert!(state.used.iter().sum::<u64>() <= TOTAL);
                prop_assert!(state.used(Use::Ahead) <= TOTAL - DEMAND - WRITE);
                // A writer that waits in vain for read-ahead's memory is at its limit; then read-ahead goes on.
                let short = model.waiting.iter().any(|w| w.1 == Use::Demand || state.used(Use::Write) + w.2 <= WRITE);
                prop_assert_eq!(state.pressure() == Pressure::High, short);
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
    fn a_writer_at_its_limit_leaves_read_ahead_its_share() {
        let mut state = BudgetState::new(TOTAL, DEMAND, WRITE);
        while state.try_take(Use::Write, 5) {}
        assert_eq!(
            state.used(Use::Write),
            TOTAL - DEMAND,
            "while nobody reads, it may have all but the readers' reserve"
        );
        let mut line = vec![state.enqueue(Use::Write, 5)];
        assert!(!state.try_take(Use::Ahead, 5), "nothing is free yet");
        assert!(state.pressure() < Pressure::High, "nobody has to give way to it");
        // The store takes a part now and then; both uses request whatever becomes free.
        for _ in 0..TOTAL {
            state.give_back(Use::Write, 5);
            for ticket in state.grant() {
                line.retain(|t| *t != ticket);
                line.push(state.enqueue(Use::Write, 5));
            }
            state.try_take(Use::Ahead, 5);
            if state.used(Use::Write) <= WRITE {
                break;
            }
        }
        assert_eq!(state.used(Use::Ahead), TOTAL - DEMAND - WRITE, "its share");
        assert_eq!(state.used(Use::Write), WRITE);
        state.give_back(Use::Ahead, TOTAL - DEMAND - WRITE);
        assert!(state.grant().is_empty(), "a moment between two requests is not an end");
        state.nobody_reads();
        assert_eq!(state.grant(), line, "the end is");
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
