// SPDX-License-Identifier: GPL-2.0-only
//! Guest stacks: one per nesting level, with a frame of 512 bytes for each call and a page for
//! arguments.
//!
//! Owns: the stacks' addresses and the running nesting level.
//! Does not: push frames (see `interp.rs`).
//!
//! ```text
//!   level n:  | guard | frames 7 .. 0, each 512 bytes, r10 at its end | arguments, scratch | guard |
//! ```
//!
//! The upper guard, which no program can access, has a word for each frame: the slot of the call
//! instruction from which the frame's function waits for a callee to return. With these words a
//! report can name the callers of the running function.

use super::Limits;
use super::interp::MAX_FRAMES;
use crate::mem::{Memory, OutOfMemory, PAGE, Perm};

/// Bytes of a frame. The kernel's `MAX_BPF_STACK`.
pub const FRAME: u64 = 512;

/// Offset from a frame's r10 to the frame's word in the upper guard. The word holds the slot of the
/// call instruction from which the frame's function waits for a callee to return.
pub const CALL_SLOT_OFFSET: u64 = 2 * PAGE - 8;

const _: () =
    assert!(MAX_FRAMES as u64 * FRAME <= PAGE, "the slots of all frames fit in the guard");

pub struct Stacks {
    /// Nesting levels in use; 0 when nothing runs.
    pub level: u32,
    /// End of the frames of the running nesting level's stack, where the stack's page for arguments
    /// begins. While nothing runs, the field already holds the end for the first nesting level, so
    /// that most invocations need not change the field.
    top: u64,
    stride: u64,
    max_level: u32,
    /// Limit on the number of frames that calls may use in the stack of one nesting level.
    max_depth: u32,
}

/// The nesting level that was running when an invocation began, and the end of the frames of its
/// stack. `Stacks::leave` restores both.
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

    /// Returns whether nesting is at its limit, so that no invocation may begin. Never true while
    /// nothing runs.
    #[inline]
    pub fn full(&self) -> bool {
        self.level == self.max_level
    }

    /// Begins an invocation, one nesting level deeper. The caller has checked with `full` that a
    /// nesting level is free. `leave` takes the returned value and ends the invocation.
    #[inline(always)]
    pub fn enter(&mut self) -> Outer {
        let outer = Outer { level: self.level, top: self.top };
        if outer.level > 0 {
            self.top = outer.top.wrapping_add(self.stride);
        }
        self.level = outer.level.wrapping_add(1);
        outer
    }

    /// Begins an invocation while nothing runs; `leave_outermost` ends it.
    #[inline(always)]
    pub fn enter_outermost(&mut self) {
        self.level = 1;
    }

    #[inline(always)]
    pub fn leave_outermost(&mut self) {
        self.level = 0;
    }

    /// Ends an invocation. The function restores the surrounding nesting level from `outer` instead
    /// of computing it, because the instructions that follow would have to wait for the
    /// computation.
    #[inline(always)]
    pub fn leave(&mut self, outer: Outer) {
        (self.level, self.top) = (outer.level, outer.top);
    }

    #[inline]
    pub fn max_depth(&self) -> u32 {
        self.max_depth
    }

    /// Returns the value of r10 in frame `depth` of the running nesting level.
    #[inline]
    pub fn frame_pointer(&self, depth: u32) -> u64 {
        debug_assert!(self.level > 0);
        self.top.wrapping_sub(u64::from(depth) * FRAME)
    }

    /// Returns the address of the page above the frames of the running nesting level. The page
    /// holds program arguments, then scratch space for callbacks.
    #[inline]
    pub fn scratch(&self) -> u64 {
        debug_assert!(self.level > 0);
        self.top
    }
}
