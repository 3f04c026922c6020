// SPDX-License-Identifier: GPL-2.0-only
//! Regions of memory as data: their size, their owner, and where their pages lie.
//!
//! Owns: the data types and their text forms. Does not: check meaning (see `compile::region`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::CpuList;

/// A region of memory that ops access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionDef {
    /// Name; may be a pattern, as for other objects.
    pub name: String,
    pub size: ByteSize,
    #[serde(default, skip_serializing_if = "is_default")]
    pub of: Sharing,
    #[serde(default, skip_serializing_if = "is_default")]
    pub policy: RegionPolicy,
    /// Nodes on which the pages lie before the start, in equal contiguous parts. If it is absent,
    /// the first access places each page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub populate: Option<NodeList>,
    /// Whether the region consists of huge pages. Default: true, as Debian's kernel has
    /// TRANSPARENT_HUGEPAGE_ALWAYS; false for `of = "all"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge: Option<bool>,
    /// Percentage of the pages, at the region's end, that same-page merging (KSM) shares between
    /// all regions of this declaration.
    #[serde(default, skip_serializing_if = "is_default")]
    pub merge: u8,
}

impl RegionDef {
    /// Whether the region consists of huge pages.
    pub fn is_huge(&self) -> bool {
        self.huge.unwrap_or(self.of != Sharing::All)
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The owner of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Each process that uses the region has one, for all its threads.
    #[default]
    Process,
    /// Each thread has one.
    Thread,
    /// There is one, shared by every process that uses it (MAP_SHARED).
    All,
}

/// The memory policy of a region (`mbind(2)`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegionPolicy {
    /// The node of the CPU that accesses a page first.
    #[default]
    FirstTouch,
    /// Page by page round these nodes.
    Interleave(NodeList),
    /// Only these nodes.
    Bind(NodeList),
    /// This node while it has room.
    Preferred(u32),
}

impl RegionPolicy {
    /// Returns the nodes that the policy names.
    pub fn nodes(&self) -> Vec<u32> {
        match self {
            RegionPolicy::FirstTouch => Vec::new(),
            RegionPolicy::Interleave(nodes) | RegionPolicy::Bind(nodes) => nodes.0.iter().collect(),
            RegionPolicy::Preferred(node) => vec![*node],
        }
    }
}

/// A list of nodes in the form of a list of CPUs, such as `0,2-3`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct NodeList(pub CpuList);

impl<'de> Deserialize<'de> for NodeList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bad = |_| format!("\"{text}\" is not a list of nodes: write it as 0,2-3");
        text.parse().map(NodeList).map_err(bad).map_err(de::Error::custom)
    }
}

impl fmt::Display for NodeList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number of bytes, in files a number, or text with KiB, MiB or GiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u32); 3] = [("KiB", 10), ("MiB", 20), ("GiB", 30)];

impl FromStr for ByteSize {
    type Err = String;

    /// ```
    /// use scxlab_workload::program::region::ByteSize;
    /// assert_eq!("8MiB".parse(), Ok(ByteSize(8 << 20)));
    /// assert!("8MB".parse::<ByteSize>().is_err());
    /// ```
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("\"{text}\" is not a size: write a number and KiB, MiB or GiB");
        let (unit, shift) = UNITS.iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(bad)?;
        let number = text[..text.len() - unit.len()].trim_end();
        let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
        let number: u64 = number.parse().ok().filter(|_| digits).ok_or_else(bad)?;
        number.checked_mul(1 << shift).map(ByteSize).ok_or_else(bad)
    }
}

impl fmt::Display for ByteSize {
    /// Writes the size in the largest unit that divides it, or as a number of bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |shift: u32| self.0 != 0 && self.0.is_multiple_of(1 << shift);
        match UNITS.iter().rev().find(|(_, shift)| fits(*shift)) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, or text such as \"8MiB\"")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                let negative = || E::custom(format!("{bytes} is not a size"));
                u64::try_from(bytes).map(ByteSize).map_err(|_| negative())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}
