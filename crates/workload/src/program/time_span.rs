// SPDX-License-Identifier: GPL-2.0-only
//! Durations as people write them: `250us`, `1.5ms`, `2s`.
//!
//! Owns: the text form, exact in nanoseconds. A number without a unit is refused, because its unit
//! would be a guess.

use std::fmt;
use std::str::FromStr;

use scxlab_machine::id::Nanos;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest time in a program: 10^18 ns (31 years), so that sums with `now` cannot overflow.
pub const MAX_NANOS: Nanos = 1_000_000_000_000_000_000;

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(pub Nanos);

const UNITS: [(&str, Nanos); 5] =
    [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000), ("min", 60_000_000_000)];

impl FromStr for TimeSpan {
    type Err = String;

    /// ```
    /// use scxlab_workload::program::TimeSpan;
    /// assert_eq!("1.5ms".parse(), Ok(TimeSpan(1_500_000)));
    /// assert!("12".parse::<TimeSpan>().is_err());
    /// ```
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("\"{text}\" is not a time: write a number and ns, us, ms, s or min");
        let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(bad)?;
        let (number, unit) = text.split_at(split);
        let scale = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?.1;
        let nanos = scaled(number.trim_end(), scale).ok_or_else(bad)?;
        if nanos > MAX_NANOS {
            return Err(format!("\"{text}\" is longer than the limit of 1000000000s"));
        }
        Ok(TimeSpan(nanos))
    }
}

/// Returns `number` times `scale`; None if that is not a whole number of nanoseconds, or `number`
/// is not a number.
fn scaled(number: &str, scale: Nanos) -> Option<Nanos> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || (number.contains('.') && !digits(fraction)) || fraction.len() > 12 {
        return None;
    }
    let mut total = u128::from(whole.parse::<u64>().ok()?) * u128::from(scale);
    if !fraction.is_empty() {
        let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(scale);
        let unit = 10u128.pow(u32::try_from(fraction.len()).ok()?);
        if part % unit != 0 {
            return None;
        }
        total += part / unit;
    }
    u64::try_from(total).ok()
}

impl fmt::Display for TimeSpan {
    /// Writes the time in the largest unit (up to seconds) that divides it. `from_str` can parse
    /// the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, scale): &&(&str, Nanos)| self.0 != 0 && self.0.is_multiple_of(*scale);
        let (name, scale) = UNITS[..4].iter().rev().find(fits).unwrap_or(&UNITS[3]);
        write!(f, "{}{}", self.0 / scale, name)
    }
}

impl Serialize for TimeSpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
