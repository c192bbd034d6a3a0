//! Runs a model, threads on the locks of `sync`, under many schedules that the model checker shuttle picks.

use std::time::SystemTime;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// Number of schedules of each kind. Doubling it finds rarer failures, in twice the time.
const SCHEDULES: usize = 1_000;
/// Most preemptions that a failure needs, for the second kind of schedules to find it.
const DEPTH: usize = 3;
/// The stack of each thread of a model, in bytes: debug builds of the real code need more than shuttle's default.
const STACK: usize = 1 << 20;

/// Runs the model under random schedules, and under some with few preemptions. Prints the seed.
///
/// # Panics
/// The model panics under one of them, or its threads wait for each other; shuttle prints that schedule.
pub fn check(model: impl Fn() + Send + Sync + Clone + 'static) {
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |at| at.as_nanos() as u64);
    eprintln!("{SCHEDULES} schedules of each kind; SHUTTLE_RANDOM_SEED={seed} repeats them");
    let config = || {
        let mut config = Config::new();
        config.stack_size = STACK;
        config
    };
    Runner::new(RandomScheduler::new_from_seed(seed, SCHEDULES), config()).run(model.clone());
    Runner::new(PctScheduler::new_from_seed(seed, DEPTH, SCHEDULES), config()).run(model);
}
