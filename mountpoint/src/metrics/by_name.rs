//! The same metric for each value of a dimension, such as the kind of a request. The values are fixed, so that there is nothing to lock.

use super::counter::Counter;

/// The name of the metric for values outside a dimension.
const OTHER: &str = "other";

/// A label and its possible values, the most frequent first, because a look-up compares them in turn.
#[derive(Debug)]
pub(super) struct Dimension {
    /// The label's name.
    pub(super) label: &'static str,
    /// The values of the label, without `other`.
    pub(super) names: &'static [&'static str],
}

/// One metric per value of a dimension, and one for all other values.
#[derive(Debug)]
pub struct ByName<T> {
    dimension: &'static Dimension,
    slots: Box<[T]>,
}

impl<T> ByName<T> {
    /// A metric for each name, made by `make`.
    pub(super) fn new(dimension: &'static Dimension, make: impl Fn() -> T) -> Self {
        Self { dimension, slots: (0..=dimension.names.len()).map(|_| make()).collect() }
    }

    /// The one of this name.
    pub fn of(&self, name: &str) -> &T {
        let place = self.dimension.names.iter().position(|known| *known == name);
        &self.slots[place.unwrap_or(self.dimension.names.len())]
    }

    /// All metrics with their names.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &T)> {
        self.dimension.names.iter().copied().chain([OTHER]).zip(&self.slots)
    }

    /// The label's name.
    pub(super) fn label(&self) -> &'static str {
        self.dimension.label
    }
}

impl ByName<Counter> {
    /// A counter for each name.
    pub(super) fn counters(dimension: &'static Dimension) -> Self {
        Self::new(dimension, Counter::default)
    }

    /// The sum of all names.
    pub fn get(&self) -> u64 {
        self.slots.iter().map(Counter::get).sum()
    }
}

impl ByName<ByName<Counter>> {
    /// The sum of all names of both dimensions.
    pub fn get(&self) -> u64 {
        self.slots.iter().map(ByName::<Counter>::get).sum()
    }
}
