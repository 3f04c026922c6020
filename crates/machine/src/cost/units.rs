// SPDX-License-Identifier: GPL-2.0-only
//! The forms of a constant: a number, one number per distance, a ratio.

use std::ops::Index;

use serde::Serialize;

use crate::id::Nanos;
use crate::topology::Distance;

/// A ratio of integers; `den` is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Ratio {
    pub num: u32,
    pub den: u32,
}

impl Ratio {
    /// The ratio 1.
    pub const ONE: Ratio = Ratio { num: 1, den: 1 };

    /// Returns `n` times this ratio, rounded down, at most `u64::MAX`.
    #[inline]
    pub fn of(self, n: u64) -> u64 {
        scale(n, self.num, self.den)
    }

    /// Returns `n` divided by this ratio, rounded down, at most `u64::MAX`; `u64::MAX` if the ratio
    /// is 0.
    #[inline]
    pub fn divide(self, n: u64) -> u64 {
        if self.num == 0 { u64::MAX } else { scale(n, self.den, self.num) }
    }
}

impl std::fmt::Display for Ratio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.num, self.den)
    }
}

#[inline]
fn scale(n: u64, num: u32, den: u32) -> u64 {
    // The product of 64 and 32 bits fits 128.
    let exact = u128::from(n) * u128::from(num) / u128::from(den);
    u64::try_from(exact).unwrap_or(u64::MAX)
}

/// A constant that depends on the distance between two CPUs; 0 for a CPU and itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ByDistance {
    /// Between threads of a core.
    pub smt: u64,
    /// Between cores under one last-level cache.
    pub core: u64,
    /// Between last-level caches of one node.
    pub llc: u64,
    /// Between nodes.
    pub node: u64,
}

impl Index<Distance> for ByDistance {
    type Output = Nanos;
    #[inline]
    fn index(&self, distance: Distance) -> &Nanos {
        match distance {
            Distance::Same => &0,
            Distance::Smt => &self.smt,
            Distance::Core => &self.core,
            Distance::Llc => &self.llc,
            Distance::Node => &self.node,
        }
    }
}

/// A constant's value as parsed, before the type of the constant's field is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ConstantValue {
    Number(u64),
    /// One number for each `Distance` between two CPUs.
    ByDistance(ByDistance),
    Ratio(Ratio),
}

/// A field type of the cost table.
pub(super) trait FromValue: Sized {
    /// Form of the value in TOML, for messages.
    const FORM: &'static str;
    fn from_value(value: ConstantValue) -> Option<Self>;
}

impl FromValue for u64 {
    const FORM: &'static str = "an integer";
    fn from_value(value: ConstantValue) -> Option<u64> {
        if let ConstantValue::Number(number) = value { Some(number) } else { None }
    }
}

impl FromValue for ByDistance {
    const FORM: &'static str = "{ smt = .., core = .., llc = .., node = .. }";
    fn from_value(value: ConstantValue) -> Option<ByDistance> {
        if let ConstantValue::ByDistance(by) = value { Some(by) } else { None }
    }
}

impl FromValue for Ratio {
    const FORM: &'static str = "{ num = .., den = .. }";
    fn from_value(value: ConstantValue) -> Option<Ratio> {
        if let ConstantValue::Ratio(ratio) = value { Some(ratio) } else { None }
    }
}

impl std::fmt::Display for ConstantValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ConstantValue::Number(number) => number.fmt(f),
            ConstantValue::Ratio(ratio) => ratio.fmt(f),
            ConstantValue::ByDistance(by) => {
                write!(f, "smt {}, core {}, llc {}, node {}", by.smt, by.core, by.llc, by.node)
            }
        }
    }
}
