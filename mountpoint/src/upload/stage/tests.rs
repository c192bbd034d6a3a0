//! Goal: whatever programs do with their descriptors, the store gets exactly the bytes that a close, an fsync or the last close promised,
//! and no open changes anything. Method: processes write, duplicate, fork, close and exit; the kernel reports the release later; the store
//! answers or fails; newcomers open and remove the file. After each step the stage is compared with the promises.

use proptest::prelude::*;

use super::*;

#[test]
fn close_completes_what_its_opener_wrote_and_nothing_else() {
    let closer = Closer { is_opener: true, holds_another: Some(false), another_writes: false };
    assert!(closer.completes(1));
    assert!(Closer { holds_another: None, ..closer }.completes(1), "what can't be seen counts as none");
    assert!(!closer.completes(0), "nothing is written");
    assert!(!Closer { is_opener: false, ..closer }.completes(1), "an heir");
    assert!(!Closer { holds_another: Some(true), ..closer }.completes(1), "a duplicate");
    assert!(!Closer { another_writes: true, ..closer }.completes(1), "a child writes");
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    Dup(usize),
    Fork(usize),
    /// The opener is gone, and this process has a child with its number.
    ForkAsOpener(usize),
    Close(usize),
    Exit(usize),
    Sync(usize),
    /// The kernel's word that the last descriptor is gone arrives.
    Released,
    Open,
    Unlink,
    /// The program that waits in close or fsync is killed: a log line, and no event.
    Interrupt,
    /// The program that waited in its open was killed: its handle is taken back, before anything else happens.
    TakeBack,
    Commit,
    Answer(bool),
    Fail,
    Settle,
    End(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let process = || 0..4usize;
    let step = prop_oneof![
        6 => process().prop_map(Step::Write),
        3 => process().prop_map(Step::Dup),
        3 => process().prop_map(Step::Fork),
        2 => process().prop_map(Step::ForkAsOpener),
        6 => process().prop_map(Step::Close),
        2 => process().prop_map(Step::Exit),
        1 => process().prop_map(Step::Sync),
        4 => Just(Step::Released),
        3 => Just(Step::Open),
        2 => Just(Step::Unlink),
        1 => Just(Step::Interrupt),
        1 => Just(Step::TakeBack),
        2 => Just(Step::Commit),
        2 => any::<bool>().prop_map(Step::Answer),
        1 => Just(Step::Fail),
        1 => Just(Step::Settle),
        1 => any::<bool>().prop_map(Step::End),
    ];
    prop::collection::vec(step, 0..60)
}

/// The true state, by descriptors and bytes alone.
struct World {
    stage: Stage,
    /// Descriptors of each process; the first one has the number of the opener.
    descriptors: Vec<usize>,
    /// The process with the opener's number is the opener.
    is_opener: bool,
    /// The process that wrote last.
    writer: Option<usize>,
    /// The engine saw the opener's last close.
    has_left: bool,
    /// Whether the engine can read the tables of descriptors.
    visible: bool,
    written: u64,
    /// The number of bytes at the promise to store them.
    promised: Option<u64>,
    /// Whether the kernel has sent the release.
    released: bool,
    /// The last event of programs was a close.
    closed_last: bool,
    failed: bool,
    ended: bool,
}

impl World {
    fn new(visible: bool) -> Self {
        Self {
            stage: Stage::NEW,
            descriptors: vec![1],
            is_opener: true,
            writer: None,
            has_left: false,
            visible,
            written: 0,
            promised: None,
            released: false,
            closed_last: false,
            failed: false,
            ended: false,
        }
    }

    fn on(&mut self, event: Event) -> Decision {
        let (stage, reply) = self.stage.on(event);
        self.stage = stage;
        reply
    }

    fn takes_bytes(&self) -> bool {
        matches!(self.stage, Stage::Open { .. })
    }

    fn is_new(&self) -> bool {
        self.descriptors == [1] && self.written == 0 && !self.closed_last && self.stage == Stage::NEW
    }

    fn holders(&self) -> usize {
        self.descriptors.iter().sum()
    }

    /// Closes one descriptor of a process; `left` are the descriptors in its table afterwards.
    fn close(&mut self, process: usize, left: usize) {
        let seen = self.visible.then_some(left > 0);
        let another_writes = self.writer.is_some_and(|p| p > 0 && self.visible && self.descriptors[p] > 0);
        let closer =
            Closer { is_opener: process == 0 && !self.has_left, holds_another: seen, another_writes };
        // The truth; where nothing is visible the number alone counts.
        let is_last_of_opener = process == 0
            && self.written > 0
            && (!self.visible || self.is_opener && left == 0 && !another_writes);
        let was_open = self.takes_bytes();
        let completes = closer.completes(self.written);
        let leaves = !completes && closer.leaves();
        self.has_left |= leaves;
        let reply = self.on(Event::Close { completes });
        self.closed_last = true;
        if self.failed {
            assert_eq!(reply, Decision::Outcome, "a close after a failure says so");
        } else if was_open && is_last_of_opener {
            assert_eq!(reply, Decision::Store);
            self.promised = Some(self.written);
        } else if was_open {
            assert_eq!(reply, Decision::Done);
            assert!(self.takes_bytes(), "the others go on");
        }
    }

    fn step(&mut self, step: &Step) {
        let holder =
            |process: usize| Some(process).filter(|&p| self.descriptors.get(p).is_some_and(|n| *n > 0));
        match *step {
            Step::Write(process) if holder(process).is_some() && !self.ended => {
                let reply = self.on(Event::Write);
                match (self.failed, self.promised) {
                    (true, _) => assert_eq!(reply, Decision::Outcome),
                    (_, Some(_)) => assert_eq!(reply, Decision::Finished, "what was promised does not grow"),
                    (false, None) => {
                        assert_eq!(reply, Decision::Done, "a writer that nobody ended goes on");
                        self.written += 1;
                        self.writer = Some(process);
                        self.closed_last = false;
                    }
                }
            }
            Step::Dup(process) if holder(process).is_some() => self.descriptors[process] += 1,
            Step::Fork(process) if holder(process).is_some() && self.descriptors.len() < 4 => {
                self.descriptors.push(self.descriptors[process]);
            }
            Step::ForkAsOpener(process) if holder(process).is_some() && self.descriptors[0] == 0 => {
                self.descriptors[0] = self.descriptors[process];
                self.is_opener = false;
                // The old one with this number is gone.
                self.writer = self.writer.filter(|&p| p > 0);
            }
            Step::Close(process) if holder(process).is_some() => {
                self.descriptors[process] -= 1;
                self.close(process, self.descriptors[process]);
            }
            Step::Exit(process) if holder(process).is_some() => {
                // The kernel takes the whole table away, then closes one after the other.
                for _ in 0..std::mem::take(&mut self.descriptors[process]) {
                    self.close(process, 0);
                }
            }
            Step::Sync(process) if holder(process).is_some() => match self.on(Event::Sync) {
                Decision::Store => self.promised = Some(self.written),
                reply => {
                    assert_eq!(reply, Decision::Outcome);
                    assert!(self.failed || self.promised.is_some());
                }
            },
            Step::Released if self.holders() == 0 && !self.released => {
                self.released = true;
                match self.on(Event::Release) {
                    Decision::Store => self.promised = Some(self.written),
                    reply => assert_eq!(reply, Decision::Outcome),
                }
            }
            Step::Open => {
                let before = self.stage;
                let reply = self.on(Event::Open);
                assert_eq!(self.stage, before, "an open changes nothing");
                match reply {
                    Decision::Outcome => assert!(self.failed || self.promised.is_some()),
                    Decision::Moment => assert!(self.closed_last && self.takes_bytes()),
                    reply => {
                        assert_eq!(reply, Decision::Written);
                        assert!(self.takes_bytes() && !self.closed_last);
                    }
                }
            }
            Step::Unlink => match self.on(Event::Unlink) {
                Decision::GiveUp => {
                    assert!(self.released || self.ended, "a writer that lives is not cancelled");
                    assert_eq!(self.on(Event::Fail), Decision::Done);
                    self.failed = true;
                }
                Decision::Written => assert!(!self.released),
                Decision::Moment => assert!(self.closed_last && self.takes_bytes()),
                reply => assert_eq!(reply, Decision::Outcome),
            },
            Step::Interrupt => {}
            Step::TakeBack if self.is_new() => {
                assert_eq!(self.on(Event::Fail), Decision::Done, "as if it had never been");
                self.failed = true;
                self.descriptors = vec![0];
                self.released = true;
            }
            Step::Commit => {
                let is_sent = self.on(Event::Commit) == Decision::Done;
                assert!(!is_sent || self.promised.is_some(), "nothing is sent without a promise");
            }
            Step::Answer(stored) => {
                let reply = self.on(if stored { Event::Keep } else { Event::Lose });
                self.failed |= reply == Decision::Done && !stored;
            }
            Step::Fail => self.failed |= self.on(Event::Fail) == Decision::Done,
            Step::Settle if matches!(self.stage, Stage::Stored { .. } | Stage::Failed { .. }) => {
                self.on(Event::Settle);
                assert_eq!(self.on(Event::Settle), Decision::No, "once");
            }
            Step::End(unmounted) if !self.ended => {
                self.ended = unmounted;
                match self.on(Event::End { unmounted }) {
                    Decision::Store => {
                        assert!(unmounted && self.closed_last);
                        self.promised = Some(self.written);
                    }
                    Decision::GiveUp => {
                        assert!(self.promised.is_none());
                        assert_eq!(self.on(Event::Fail), Decision::Done);
                        self.failed = true;
                    }
                    Decision::Moment => assert!(!unmounted && self.closed_last),
                    reply => assert_eq!(reply, Decision::Outcome),
                }
            }
            _ => {}
        }
        self.check();
    }

    fn check(&self) {
        match self.stage {
            Stage::Open { .. } => assert!(self.promised.is_none() && !self.failed),
            Stage::Finishing { .. } | Stage::Committing { .. } | Stage::Stored { .. } => {
                assert_eq!(self.promised, Some(self.written), "all of what was promised, and nothing else");
                assert!(!self.failed);
            }
            Stage::Failed { .. } => assert!(self.failed),
        }
    }
}

proptest! {
    #[test]
    fn what_was_promised_is_what_is_stored_and_no_open_changes_anything(steps in steps(), visible: bool) {
        let mut world = World::new(visible);
        for step in &steps {
            world.step(step);
        }
        // Left alone, it comes to an end, and what programs closed last is stored.
        for process in 0..world.descriptors.len() {
            world.step(&Step::Exit(process));
        }
        let last = [Step::Released, Step::Commit, Step::Answer(true), Step::Settle];
        last.iter().for_each(|step| world.step(step));
        let settled = Stage::Failed { settled: true };
        prop_assert_eq!(world.stage, if world.failed { settled } else { Stage::Stored { settled: true } });
    }
}
