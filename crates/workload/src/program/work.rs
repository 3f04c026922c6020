// SPDX-License-Identifier: GPL-2.0-only
//! The arguments of `compute` and `touch`, which may name a region.
//!
//! Owns: their data types and text forms.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::arg::*;
use super::region::ByteSize;
use super::{Pattern, TimeSpan, Touch, TouchKind};

/// The argument of `touch`: accesses to a region, or to a buffer of the thread's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferArg {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// First byte of the region that is accessed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub offset: u64,
    #[serde(default)]
    pub kind: TouchKind,
    /// Bytes that are accessed; absent: the whole region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,
    /// Number of accesses; 0: one per stride of the size.
    #[serde(default)]
    pub count: u64,
    /// Bytes from one access to the next.
    #[serde(default = "super::cache_line")]
    pub stride: u64,
    #[serde(default)]
    pub pattern: Pattern,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl From<Touch> for BufferArg {
    fn from(touch: Touch) -> BufferArg {
        let Touch { kind, size, count, stride, pattern } = touch;
        let size = Some(ByteSize(size));
        BufferArg { region: None, offset: 0, kind, size, count, stride, pattern }
    }
}

impl BufferArg {
    /// Returns the accesses. `whole` is the size of the region if the op names one.
    pub fn touch(&self, whole: u64) -> Touch {
        let BufferArg { kind, count, stride, pattern, .. } = *self;
        Touch { kind, size: self.size.map_or(whole, |size| size.0), count, stride, pattern }
    }

    fn check(&self) -> Result<(), String> {
        within(self.stride != 0, "a stride of 0")?;
        within(self.region.is_some() || self.size.is_some(), "it needs a size or a region")?;
        within(self.region.is_some() || self.offset == 0, "an offset without a region")?;
        let size = self.size.map_or(0, |size| size.0);
        within(size.max(self.count).max(self.offset) <= MAX_BYTES, "more than 1 TiB")?;
        self.region.as_deref().map_or(Ok(()), object_name)
    }

    fn text(&self) -> String {
        let Touch { kind, pattern, size, count, stride } = self.touch(0);
        let text = format!("{kind:?} {pattern:?} size={size} count={count} stride={stride}");
        match &self.region {
            None => text.to_lowercase(),
            Some(region) => format!("{} {region}+{}", text.to_lowercase(), self.offset),
        }
    }
}

/// The argument of `compute`: a length of time, or a table that names a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputeArg {
    pub work: TimeSpan,
    /// Accesses to memory in the meantime.
    pub memory: Option<MemoryUse>,
}

/// Accesses to a region while a thread computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    pub region: String,
    /// Percentage of the work that is memory time, at local latency on an idle node.
    pub percent: u64,
    pub kind: TouchKind,
    pub pattern: Pattern,
    pub offset: u64,
    /// Bytes that are accessed; absent: the whole region.
    pub size: Option<ByteSize>,
}

impl From<TimeSpan> for ComputeArg {
    fn from(work: TimeSpan) -> ComputeArg {
        ComputeArg { work, memory: None }
    }
}

impl ComputeArg {
    fn check(&self) -> Result<(), String> {
        Span::check(&self.work)?;
        let Some(memory) = &self.memory else { return Ok(()) };
        within((1..=100).contains(&memory.percent), "memory is a percentage from 1 to 100")?;
        within(memory.kind != TouchKind::Chase, "a chase computes nothing; use touch")?;
        let size = memory.size.map_or(0, |size| size.0);
        within(size.max(memory.offset) <= MAX_BYTES, "more than 1 TiB")?;
        object_name(&memory.region)
    }

    fn text(&self) -> String {
        match &self.memory {
            None => self.work.to_string(),
            Some(m) => {
                let how = format!("{:?} {:?}", m.kind, m.pattern).to_lowercase();
                format!("{} {} memory={} {how}", self.work, m.region, m.percent)
            }
        }
    }
}

/// The table form of `compute`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ComputeTable {
    work: TimeSpan,
    region: String,
    memory: u64,
    #[serde(default = "read")]
    kind: TouchKind,
    #[serde(default = "random")]
    pattern: Pattern,
    #[serde(default, skip_serializing_if = "is_zero")]
    offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<ByteSize>,
}

fn read() -> TouchKind {
    TouchKind::Read
}

fn random() -> Pattern {
    Pattern::Random
}

impl Serialize for ComputeArg {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(memory) = self.memory.clone() else { return self.work.serialize(serializer) };
        let MemoryUse { region, percent, kind, pattern, offset, size } = memory;
        let work = self.work;
        ComputeTable { work, region, memory: percent, kind, pattern, offset, size }
            .serialize(serializer)
    }
}

/// A visitor instead of an untagged enum, because the latter loses the place of an error.
impl<'de> Deserialize<'de> for ComputeArg {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = ComputeArg;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"2ms\", or a table with work, region and memory")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ComputeArg, E> {
                text.parse().map(|work: TimeSpan| work.into()).map_err(E::custom)
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<ComputeArg, A::Error> {
                let table = ComputeTable::deserialize(de::value::MapAccessDeserializer::new(map))?;
                let ComputeTable { work, region, memory, kind, pattern, offset, size } = table;
                let memory = MemoryUse { region, percent: memory, kind, pattern, offset, size };
                Ok(ComputeArg { work, memory: Some(memory) })
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

kinds! {
    /// Work, and the memory that it accesses.
    Work(ComputeArg): "time with unit, at most 1000000000s; or a table: `work` (time), `region` (name of a \
        `[[region]]`), `memory` (1 to 100: percentage of the work that is memory time, if the memory \
        is local and its node idle), `kind` (`read` or `write`; default `read`), `pattern` (`random` \
        or `sequential`; default `random`), `offset` and `size` (the part of the region that is \
        accessed; default: all)",
        "\"2ms\"", |arg| arg.check(), |_, arg| arg.text();
    /// Accesses to a region or a buffer.
    Buffer(BufferArg): "table: `region` (name of a `[[region]]`; default: a buffer of the thread's own), \
        `size` (bytes, at most 1 TiB; default: the region's), `offset` (in a region; default 0); \
        `kind` (`read`, `write`, or `chase`: each \
        access depends on the one before it; default `write`); `count` (accesses; default: one per \
        stride of the size); `stride` (bytes between accesses; default 64); `pattern` \
        (`sequential` or `random`; default `sequential`)",
        "{ size = 65536, kind = \"read\" }", |arg| arg.check(), |_, arg| arg.text();
}
