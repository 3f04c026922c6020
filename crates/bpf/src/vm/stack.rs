// SPDX-License-Identifier: GPL-2.0-only
//! Guest stacks: one per nesting level, with a frame of 512 bytes for each call and a page for arguments.
//!
//! Owns: their addresses and which level runs. Does not: push frames (see `interp.rs`).
//!
//! ```text
//!   level n:  | guard | frames 7 .. 0, each 512 bytes, r10 at its end | arguments, scratch | guard |
//! ```
//!
//! The guard above, which no program can touch, has the slot of the call that each frame is waiting for, so that a report can
//! say who called the function that runs.

use super::Limits;
use super::interp::MAX_FRAMES;
use crate::mem::{Memory, OutOfMemory, PAGE, Perm};

/// Bytes of a frame: `MAX_BPF_STACK`.
pub const FRAME: u64 = 512;

/// From a frame's r10 to where the slot of the call lies that it waits for: in the level's upper guard.
pub const WAITS_FOR: u64 = 2 * PAGE - 8;

const _: () =
    assert!(MAX_FRAMES as u64 * FRAME <= PAGE, "the slots of all frames fit in the guard");

pub struct Stacks {
    /// Nesting levels in use; 0 when nothing runs.
    pub level: u32,
    /// End of the frames of the running level, where its scratch page begins. Where nothing runs, of the first, so that most
    /// invocations leave it as it is.
    top: u64,
    stride: u64,
    max_level: u32,
    /// Frames that a level may have.
    max_depth: u32,
}

/// The level around an invocation.
#[must_use]
#[derive(Clone, Copy)]
pub struct Outer {
    level: u32,
    top: u64,
}

impl Stacks {
    pub fn new(mem: &mut Memory, limits: Limits) -> Result<Stacks, OutOfMemory> {
        let frames = u64::from(limits.call_depth.max(1)) * FRAME;
        let used = frames.next_multiple_of(PAGE) + PAGE;
        let stride = used + PAGE;
        let max_level = limits.nesting.max(1);
        let base = mem.alloc_region(stride * u64::from(max_level), Perm::None)?;
        for level in 0..u64::from(max_level) {
            mem.set_perm(base + level * stride, used, Perm::ReadWrite);
        }
        let top = base + frames.next_multiple_of(PAGE);
        let max_depth = limits.call_depth.min(MAX_FRAMES as u32);
        Ok(Stacks { level: 0, top, stride, max_level, max_depth })
    }

    /// Whether invocations are nested so deep that none may begin. Never while nothing runs.
    #[inline]
    pub fn full(&self) -> bool {
        self.level == self.max_level
    }

    /// Begin an invocation; there is room for it. What is returned ends it.
    #[inline(always)]
    pub fn enter(&mut self) -> Outer {
        let outer = Outer { level: self.level, top: self.top };
        if outer.level > 0 {
            self.top = outer.top.wrapping_add(self.stride);
        }
        self.level = outer.level.wrapping_add(1);
        outer
    }

    /// Begin an invocation where nothing runs; `leave_outermost` ends it.
    #[inline(always)]
    pub fn enter_outermost(&mut self) {
        self.level = 1;
    }

    #[inline(always)]
    pub fn leave_outermost(&mut self) {
        self.level = 0;
    }

    /// As it was: the level of the invocation around is not worked out anew, as the host's CPU would wait for it.
    #[inline(always)]
    pub fn leave(&mut self, outer: Outer) {
        (self.level, self.top) = (outer.level, outer.top);
    }

    #[inline]
    pub fn max_depth(&self) -> u32 {
        self.max_depth
    }

    /// Value of r10 in frame `depth` of the running level.
    #[inline]
    pub fn frame_pointer(&self, depth: u32) -> u64 {
        debug_assert!(self.level > 0);
        self.top.wrapping_sub(u64::from(depth) * FRAME)
    }

    /// The page beside the frames of the running level: program arguments, and scratch for callbacks.
    #[inline]
    pub fn scratch(&self) -> u64 {
        debug_assert!(self.level > 0);
        self.top
    }
}
