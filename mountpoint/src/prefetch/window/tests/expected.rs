//! What other reads tell of a run: those of another handle at the same place.

use super::*;

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
