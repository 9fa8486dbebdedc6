//! Placeholder

fn main() {}
