// SPDX-License-Identifier: GPL-2.0-only
//! QUEUE and STACK: values that programs only copy in and out.
//!
//! Owns: their order and capacity. Models: kernel/bpf/queue_stack_maps.c, v7.3. Differs: storage
//! grows with use.

use std::collections::VecDeque;

use super::{MapDef, MapResult, map_type, update_flag};
use crate::errno::*;
use crate::mem::Memory;

pub struct Queue {
    bytes: VecDeque<u8>,
    value_size: usize,
    max_entries: u32,
    len: u32,
    stack: bool,
}

impl Queue {
    pub fn new(def: &MapDef) -> Queue {
        Queue {
            bytes: VecDeque::new(),
            value_size: def.value_size as usize,
            max_entries: def.max_entries,
            len: 0,
            stack: def.map_type == map_type::STACK,
        }
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    /// Makes room for one more value. The queue keeps the room when it shrinks. Callers call this
    /// function before `push`.
    pub fn grow(&mut self, mem: &mut Memory) -> MapResult<()> {
        let (room, wanted) = (self.bytes.capacity(), self.bytes.len() + self.value_size);
        if self.len < self.max_entries && wanted > room {
            let all = wanted.max(2 * room);
            mem.charge((all - room) as u64).map_err(|_| ENOMEM)?;
            self.bytes.reserve_exact(all - self.bytes.len());
        }
        Ok(())
    }

    /// Appends a value. With BPF_EXIST, a full map drops its oldest value.
    pub fn push(&mut self, value: &[u8], flags: u64) -> MapResult<()> {
        let replace = flags & update_flag::EXIST != 0;
        if flags & update_flag::NOEXIST != 0 || flags > update_flag::EXIST {
            return Err(EINVAL);
        }
        if self.len >= self.max_entries {
            if !replace {
                return Err(E2BIG);
            }
            self.bytes.drain(..self.value_size);
            self.len -= 1;
        }
        self.bytes.extend(value);
        self.len += 1;
        Ok(())
    }

    /// Copies the next value out and removes it. If there is none, zeroes the buffer and returns
    /// ENOENT, as the kernel does.
    pub fn pop(&mut self, out: &mut [u8]) -> MapResult<()> {
        self.peek(out)?;
        if self.stack {
            self.bytes.truncate(self.bytes.len() - self.value_size);
        } else {
            self.bytes.drain(..self.value_size);
        }
        self.len -= 1;
        Ok(())
    }

    pub fn peek(&self, out: &mut [u8]) -> MapResult<()> {
        if self.len == 0 {
            out.fill(0);
            return Err(ENOENT);
        }
        let start = if self.stack { self.bytes.len() - self.value_size } else { 0 };
        let next = self.bytes.range(start..start + self.value_size);
        for (to, from) in out.iter_mut().zip(next) {
            *to = *from;
        }
        Ok(())
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.len = 0;
    }
}
