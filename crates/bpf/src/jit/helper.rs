// SPDX-License-Identifier: GPL-2.0-only
//! Helpers that machine code performs itself: lookups in arrays with known addresses, lookups in
//! hashes and of what belongs to a task or cgroup, the number of the CPU, and addresses of per-CPU
//! variables.
//!
//! Owns: the list of these helpers.
//! Does not: define their meaning (`crate::helper` and `crate::map` do); perform a lookup whose key
//! may lie anywhere. Such calls leave the code, and the helper checks the key.
//!
//! The emitted code relies on facts that are constant while it runs: an array keeps its address and
//! size as long as its instance has code, and a program stays on its CPU.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value};

use super::ctx::{Way, at};
use super::in_place;
use super::memory::{AccessLocation, guest};
use super::range::{Known, LookupResult};
use super::translate::{I32, I64, Translator, flags};
use super::{Data, Elements, Keys};
use crate::insn::{Insn, Op};
use crate::vm::Storage;

const MAP_LOOKUP_ELEM: u32 = 1;
const GET_SMP_PROCESSOR_ID: u32 = 8;
const MAP_LOOKUP_PERCPU_ELEM: u32 = 195;
const PER_CPU_PTR: u32 = 153;
const THIS_CPU_PTR: u32 = 154;
const TASK_STORAGE_GET: u32 = 156;
const CGRP_STORAGE_GET: u32 = 210;

impl Translator<'_, '_> {
    /// Translates a helper call.
    pub fn helper(&mut self, insn: &Insn, pc: u32) {
        let value = match insn.imm as u32 {
            MAP_LOOKUP_ELEM => match self.keys() {
                Some(keys) => return self.hash_lookup(keys, insn, pc),
                None => self.lookup(false),
            },
            MAP_LOOKUP_PERCPU_ELEM => self.lookup(true),
            GET_SMP_PROCESSOR_ID => Some(self.cpu()),
            PER_CPU_PTR if self.input.in_place.per_cpu_ptr => Some(self.per_cpu_ptr()),
            THIS_CPU_PTR if self.input.in_place.per_cpu_ptr => Some(self.this_cpu_ptr()),
            TASK_STORAGE_GET => return self.storage_get(Storage::Task, insn, pc),
            CGRP_STORAGE_GET => return self.storage_get(Storage::Cgroup, insn, pc),
            _ => None,
        };
        let Some(value) = value else { return self.call_out(Way::Helper, 5, insn, pc) };
        self.count_helper();
        self.clobber(value);
    }

    fn count_helper(&mut self) {
        let calls = self.b.ins().load(I64, flags(), self.ctx, at::HELPER_CALLS);
        let calls = self.b.ins().iadd_imm_s(calls, 1);
        self.b.ins().store(flags(), calls, self.ctx, at::HELPER_CALLS);
    }

    /// Returns the keys of the hash whose address is the only value that r1 can have, if there is
    /// one.
    fn keys(&self) -> Option<Keys> {
        let map = self.known[1].value()?;
        self.input.data.iter().filter_map(|data| data.keys).find(|keys| keys.map == map)
    }

    /// Emits the lookup of an element of a hash, in the cache of elements that the helper has
    /// found.
    fn hash_lookup(&mut self, keys: Keys, insn: &Insn, pc: u32) {
        let Some((at, off)) = self.key(keys.size) else {
            return self.call_out(Way::Helper, 5, insn, pc);
        };
        self.settle();
        let key = match keys.size {
            4 => {
                let word = self.b.ins().load(I32, guest(), at, off);
                self.b.ins().uextend(I64, word)
            }
            _ => self.b.ins().load(I64, guest(), at, off),
        };
        self.find_cached(key, in_place::tag_of_hash(keys.map), insn, pc);
    }

    /// Returns the place of a key of `size` bytes at r2: host address and offset. None if the key
    /// may lie outside the frame and the instance's data.
    fn key(&mut self, size: u32) -> Option<(Value, i32)> {
        let place = AccessLocation::at(self.known[2], 0, size, true, self.input.data);
        let (from, off) = match place {
            AccessLocation::Frame(off) => (self.fp, off),
            AccessLocation::Inside => (self.reg(2), 0),
            AccessLocation::LikelyFrame | AccessLocation::Anywhere => return None,
        };
        Some((self.b.ins().iadd(self.base, from), off))
    }

    /// Emits the lookup of the value that belongs to a task or cgroup, in the cache of such values.
    /// If the cache does not have the value, the code calls out, and the helper finds or creates
    /// it.
    fn storage_get(&mut self, kind: Storage, insn: &Insn, pc: u32) {
        let map = self.known[1].value().filter(|map| map.is_multiple_of(in_place::MAP_ALIGN));
        let call_flags = self.known[4].value();
        let (Some(map), Some(0..=1)) = (map, call_flags) else {
            return self.call_out(Way::Helper, 5, insn, pc);
        };
        self.settle();
        let owner = self.reg(2);
        self.find_cached(owner, in_place::tag(kind, map), insn, pc);
    }

    /// Emits the lookup of a value in the cache of values that helpers have found, and the call out
    /// for a value that is not there.
    fn find_cached(&mut self, owner: Value, tag: u64, insn: &Insn, pc: u32) {
        let (slow, done) = self.in_place_blocks();
        let entry = self.cached(owner, tag, slow);
        let value = self.b.ins().load(I64, flags(), entry, in_place::at::VALUE);
        self.count_helper();
        self.finish_in_place(value, done);
        self.enter(slow);
        self.call_out(Way::Helper, 5, insn, pc);
        self.join_in_place(done);
    }

    fn per_cpu_ptr(&mut self) -> Value {
        let cpu = self.low_half(2);
        let cpus = i64::from(self.input.in_place.nr_cpus);
        let exists = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, cpu, cpus);
        let copy = self.copy_of(cpu);
        let none = self.iconst(0);
        self.b.ins().select(exists, copy, none)
    }

    fn this_cpu_ptr(&mut self) -> Value {
        let cpu = self.cpu();
        self.copy_of(cpu)
    }

    /// Returns the address of a CPU's copy of the variable whose first copy is at r1.
    fn copy_of(&mut self, cpu: Value) -> Value {
        let stride = self.input.in_place.percpu_stride as i64;
        let offset = self.b.ins().imul_imm_u(cpu, stride);
        let first = self.reg(1);
        self.b.ins().iadd(first, offset)
    }

    fn cpu(&mut self) -> Value {
        self.b.ins().load(I64, flags().with_readonly(), self.ctx, at::CPU)
    }

    /// Emits the lookup of an array element. The value is the element's address, or 0. Returns None
    /// if the analysis does not know the map, or does not know that the key is in memory that needs
    /// no check. With `of_cpu`, r3 holds the CPU.
    fn lookup(&mut self, of_cpu: bool) -> Option<Value> {
        let elements = elements(self.known[1], self.input.data);
        let Elements { percpu, array, .. } = elements.filter(|e| e.percpu || !of_cpu)?;
        let (key, off) = self.key(I32.bytes())?;
        let index = self.b.ins().load(I32, guest(), key, off);
        let index = self.b.ins().uextend(I64, index);
        let entries = i64::from(array.entries);
        let mut exists = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, index, entries);
        let mut element = self.b.ins().imul_imm_u(index, array.stride as i64);
        element = self.b.ins().iadd_imm_s(element, array.base as i64);
        if percpu {
            let cpu = if of_cpu { self.low_half(3) } else { self.cpu() };
            if of_cpu {
                let cpus = i64::from(array.cpus);
                let known = self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, cpu, cpus);
                exists = self.b.ins().band(exists, known);
            }
            let offset = self.b.ins().imul_imm_u(cpu, array.cpu_stride as i64);
            element = self.b.ins().iadd(element, offset);
        }
        let none = self.iconst(0);
        Some(self.b.ins().select(exists, element, none))
    }

    pub fn low_half(&mut self, reg: u8) -> Value {
        let value = self.reg(reg);
        let low = self.b.ins().ireduce(I32, value);
        self.b.ins().uextend(I64, low)
    }
}

/// Returns the array map whose address is the only value that `map` can have, if there is one.
fn elements(map: Known, data: &[Data]) -> Option<Elements> {
    let Known::Number(map, high) = map else { return None };
    let here = |elements: &Elements| elements.map == map;
    data.iter().filter_map(|data| data.elements).find(here).filter(|_| map == high)
}

/// Returns what is known of a call's result if the call looks up an element of a known array. `map`
/// is what is known of r1 before the call.
pub fn found(insn: &Insn, call: u32, map: Known, data: &[Data]) -> Option<LookupResult> {
    let looks_up = [MAP_LOOKUP_ELEM, MAP_LOOKUP_PERCPU_ELEM].contains(&(insn.imm as u32));
    let array = elements(map, data).filter(|_| insn.op == Op::CallHelper && looks_up)?.array;
    Some(LookupResult { call, first: array.base, last: array.last() })
}
