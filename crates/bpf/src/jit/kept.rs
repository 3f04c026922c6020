// SPDX-License-Identifier: GPL-2.0-only
//! Machine code that outlives the process that compiled it.
//!
//! Owns: the key under which code is kept, the form in which it is kept, and the checks before it
//! runs.
//! Does not: open a file. A store belongs to a crate that does.
//!
//! Code contains no address of its process: it finds everything through its context. The same
//! functions, data addresses and memory size, compiled by the same compiler for the same processor,
//! are therefore the same bytes. All functions that a store had lie in one mapping.
//!
//! The form: SHA-256 of the rest; length and bytes of the access thunk; then for each function its
//! number, length and bytes. Numbers are little-endian words of 32 bits.

use std::fmt::Debug;

use memmap2::Mmap;
use sha2::{Digest, Sha256};

use super::{Code, CompileState, Isa, compile, lock};
use crate::vm::FuncId;

/// A place where machine code outlives a process.
///
/// What it returns is executed. A store must not take code from a place that others can write to.
pub trait CodeStore: Debug + Send + Sync {
    /// Returns a text that differs for each version of this crate's sources.
    fn version(&self) -> &str;

    /// Returns what was last kept under the key.
    fn load(&self, key: &CodeKey) -> Option<Vec<u8>>;

    fn keep(&self, key: &CodeKey, bytes: &[u8]);
}

/// SHA-256 of all that decides the machine code of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CodeKey(pub [u8; 32]);

impl std::fmt::Display for CodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Code that a store had.
pub(super) struct Kept {
    map: Mmap,
    funcs: Vec<Part>,
}

/// A function and its code.
type Compiled<'a> = (FuncId, &'a [u8]);

/// A function's place in the mapping.
struct Part {
    func: FuncId,
    at: usize,
    len: usize,
}

impl Code {
    fn key(&self, version: &str) -> CodeKey {
        let mut text = format!(
            "{version} {} {} {} {:?} {} {:?} {:?}",
            cranelift_codegen::VERSION,
            self.isa.name(),
            self.isa.flags(),
            flags_of(&self.isa),
            self.nr_pages,
            self.in_place,
            self.data
        )
        .into_bytes();
        for func in &self.image.funcs {
            text.extend(func.start.to_le_bytes());
            text.extend(func.len.to_le_bytes());
        }
        for insn in &self.image.code {
            text.extend([insn.op as u8, insn.dst, insn.src]);
            text.extend(insn.off.to_le_bytes());
            text.extend(insn.imm.to_le_bytes());
        }
        CodeKey(Sha256::digest(&text).into())
    }

    /// Takes the functions that a store has for this code.
    pub(super) fn take_kept(&self, store: &dyn CodeStore) {
        let key = self.key(store.version());
        let kept = store.load(&key).and_then(|bytes| Kept::read(&bytes, self.slots.len()));
        let Some(kept) = kept else { return };
        let work = &mut *lock(&self.work);
        self.access.store(kept.map.as_ptr().cast_mut(), std::sync::atomic::Ordering::Release);
        for part in &kept.funcs {
            self.publish(work, part.func, kept.map[part.at..].as_ptr());
        }
        work.nr_kept = kept.funcs.len();
        work.kept = Some(kept);
    }

    /// Puts the compiled functions into a store, if it lacks some of them.
    pub(super) fn keep(&self, store: &dyn CodeStore) {
        let work = &mut *lock(&self.work);
        let Some((thunk, funcs)) = work.functions() else { return };
        if funcs.len() <= work.nr_kept {
            return;
        }
        let mut rest = Vec::new();
        put(&mut rest, thunk);
        for (func, code) in &funcs {
            rest.extend(func.0.to_le_bytes());
            put(&mut rest, code);
        }
        let bytes = [&Sha256::digest(&rest)[..], &rest].concat();
        let number = funcs.len();
        store.keep(&self.key(store.version()), &bytes);
        work.nr_kept = number;
    }
}

impl CompileState {
    /// Returns the access thunk and all functions that are compiled; None if none is.
    fn functions(&self) -> Option<(&[u8], Vec<Compiled<'_>>)> {
        let own = self.compiled.iter().map(|(func, map)| (*func, &map[..]));
        let Some(kept) = &self.kept else {
            return Some((self.access.as_deref()?, own.collect()));
        };
        let first = kept.funcs.first().map_or(kept.map.len(), |part| part.at);
        let before = kept.funcs.iter().map(|p| (p.func, &kept.map[p.at..p.at + p.len]));
        Some((&kept.map[..first], before.chain(own).collect()))
    }
}

/// Returns the features of the processor that the code may use.
fn flags_of(isa: &Isa) -> Vec<String> {
    isa.isa_flags().iter().map(ToString::to_string).collect()
}

/// Functions begin at multiples of this in a mapping.
const ALIGN: usize = 64;

fn put(bytes: &mut Vec<u8>, code: &[u8]) {
    bytes.extend((code.len() as u32).to_le_bytes());
    bytes.extend(code);
}

impl Kept {
    /// Returns the code in what a store has returned; None if that is damaged. `nr_funcs` is the
    /// number of functions of the image.
    fn read(bytes: &[u8], nr_funcs: usize) -> Option<Kept> {
        let (sum, rest) = bytes.split_at_checked(32)?;
        if Sha256::digest(rest)[..] != *sum {
            return None;
        }
        let mut rest = Rest(rest);
        let mut code = rest.code()?.to_vec();
        let mut funcs = Vec::new();
        while !rest.0.is_empty() {
            let func = FuncId(rest.number()?);
            let one = rest.code()?;
            code.resize(code.len().next_multiple_of(ALIGN), 0);
            funcs.push(Part { func, at: code.len(), len: one.len() });
            code.extend(one);
            if func.idx() >= nr_funcs {
                return None;
            }
        }
        Some(Kept { map: compile::executable(&code).ok()?, funcs })
    }
}

/// What is left to read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn number(&mut self) -> Option<u32> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*number))
    }

    fn code(&mut self) -> Option<&'a [u8]> {
        let len = self.number()? as usize;
        let (code, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(code)
    }
}
