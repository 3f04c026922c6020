// SPDX-License-Identifier: GPL-2.0-only
//! Lists of CPUs in the kernel's form: `0,2-3`.
//!
//! Owns: the text form and its bounds. Does not: know which CPUs a machine has (the executors
//! check).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Upper bound on CPU numbers in files. No supported machine has more CPUs, so a larger number is a
/// mistake.
pub const MAX_CPUS: u32 = 65_536;

/// A non-empty set of CPU numbers, in ascending order, as inclusive ranges that neither overlap nor
/// adjoin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<(u32, u32)>);

impl CpuList {
    /// Returns the set of these inclusive ranges. None if there is no range, a range is reversed,
    /// or a number is not below `MAX_CPUS`.
    pub fn from_ranges(ranges: impl IntoIterator<Item = (u32, u32)>) -> Option<Self> {
        let mut ranges: Vec<_> = ranges.into_iter().collect();
        if ranges.is_empty() || ranges.iter().any(|&(a, b)| a > b || b >= MAX_CPUS) {
            return None;
        }
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(end) if first <= end.1 + 1 => end.1 = end.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Some(CpuList(merged))
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flat_map(|&(first, last)| first..=last)
    }

    /// Returns the set with each CPU number n replaced by `to(n)`.
    pub fn map(&self, to: &dyn Fn(u32) -> u32) -> CpuList {
        let mapped = self.iter().map(|cpu| (to(cpu), to(cpu)));
        CpuList::from_ranges(mapped).unwrap_or_else(|| self.clone())
    }

    /// Returns the highest CPU number.
    pub fn max(&self) -> u32 {
        self.0.last().map_or(0, |r| r.1)
    }
}

/// Parses `5` or `2-3` into an inclusive range.
pub fn parse_range(text: &str) -> Option<(u32, u32)> {
    let number = |s: &str| {
        let s = s.trim();
        s.bytes().all(|b| b.is_ascii_digit()).then(|| s.parse::<u32>().ok()).flatten()
    };
    match text.split_once('-') {
        None => number(text).map(|n| (n, n)),
        Some((first, last)) => Some((number(first)?, number(last)?)),
    }
}

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ranges: Option<Vec<_>> = text.split(',').map(parse_range).collect();
        ranges.and_then(Self::from_ranges).ok_or_else(|| {
            format!("\"{text}\" is not a list of CPUs: write it as 0,2-3, below {MAX_CPUS}")
        })
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, &(first, last)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl Serialize for CpuList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Text(String),
            Numbers(Vec<u32>),
        }
        match Form::deserialize(deserializer)? {
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
            Form::Numbers(cpus) => CpuList::from_ranges(cpus.into_iter().map(|c| (c, c)))
                .ok_or_else(|| serde::de::Error::custom("a list of CPUs must not be empty")),
        }
    }
}
