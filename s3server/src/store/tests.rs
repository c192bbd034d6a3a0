//! The store over a folder: keys, journals, conditions, files put there by hand.
