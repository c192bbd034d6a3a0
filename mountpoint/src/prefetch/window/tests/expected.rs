//! Runs that other reads announce: the run before them, and another handle that reads at the same place.

use super::*;

const STEP: usize = MIB as usize;

#[test]
fn a_run_like_the_one_before_is_fetched_at_its_second_read() {
    const LONG: u64 = 16 * MIB;
    let mut window = window(8 << 30);
    for (n, from) in [100, 1000, 3000, 2000].map(|at| at * MIB).into_iter().enumerate() {
        let mut asked = 0;
        for at in (from..from + LONG).step_by(STEP) {
            asked = asked.max(window.on_read(&(at..at + MIB), Pressure::Low, 64 * MIB).ahead.end);
            if at == from + MIB {
                assert_eq!(asked >= from + LONG, n > 0, "{n}: {}", asked.saturating_sub(from) / MIB);
            }
        }
        assert!(n == 0 || asked <= from + LONG + 2 * MIB, "{n}");
    }
    // A shorter run ends that for the next.
    for (at, most) in [(5000 * MIB, LONG + 2 * MIB), (6000 * MIB, 4 * MIB)] {
        for at in [at, at + MIB] {
            let plan = window.on_read(&(at..at + MIB), Pressure::Low, 64 * MIB);
            assert!(plan.ahead.end <= at + most, "{plan:?}");
        }
    }
}

#[test]
fn a_run_like_the_one_before_waits_while_memory_is_short() {
    let mut window = window(8 << 30);
    for from in [100 * MIB, 1000 * MIB] {
        for at in (from..from + 16 * MIB).step_by(STEP) {
            let plan = window.on_read(&(at..at + MIB), Pressure::High, 64 * MIB);
            assert!(plan.ahead.end <= at + 9 * MIB, "{plan:?}");
        }
    }
}

#[test]
fn a_handle_goes_on_where_another_one_is() {
    let mut window = window(8 << 30);
    window.others_reached(40 * MIB);
    let plan = window.on_read(&(40 * MIB..41 * MIB), Pressure::Low, CALM);
    assert!(plan.sequential && plan.ahead.end > 41 * MIB, "{plan:?}");
    // Another handle has read 30 MiB meanwhile.
    window.others_reached(71 * MIB);
    let plan = window.on_read(&(71 * MIB..72 * MIB), Pressure::Low, CALM);
    assert!(plan.sequential && plan.ahead.start >= 71 * MIB && plan.ahead.end > 74 * MIB, "{plan:?}");
    // A handle with reads of its own goes on with these.
    let plan = window.on_read(&(4000 * MIB..4001 * MIB), Pressure::Low, CALM);
    assert!(!plan.sequential && plan.ahead.is_empty(), "{plan:?}");
    window.others_reached(2000 * MIB);
    let plan = window.on_read(&(2000 * MIB..2001 * MIB), Pressure::Low, CALM);
    assert!(!plan.sequential && plan.ahead.is_empty(), "too far ahead: {plan:?}");
}
