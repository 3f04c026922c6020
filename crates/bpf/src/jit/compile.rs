// SPDX-License-Identifier: GPL-2.0-only
//! Compilation of a function's intermediate code to executable bytes.
//!
//! Owns: the compiler's settings, executable memory.
//! Does not: know what the code does.
//!
//! The machine code of each function has a mapping of its own, which is first writable and then
//! executable, never both at once. The code contains no relocations, because every call goes
//! through an address that the code loads.

use std::sync::Arc;

use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{Function, Signature, UserFuncName};
use cranelift_codegen::isa::{OwnedTargetIsa, TargetIsa};
use cranelift_codegen::settings::{self, Configurable, Flags};
use cranelift_codegen::{Context, isa};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use memmap2::{Mmap, MmapMut};

use super::memory::{access_signature, access_thunk};
use super::translate::{Input, Translator, signature};

/// Reason why a function stays with the interpreter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("it has {len} instruction slots; functions of more than {max} are not compiled")]
    TooLong { len: u32, max: u32 },
    #[error("the object uses bpf_tail_call, so none of its functions is compiled")]
    TailCall,
    #[error("the compiler refused it: {0}")]
    Compiler(String),
    #[error("no executable memory for its machine code: {0}")]
    Memory(String),
}

/// A machine that code can be generated for.
pub type Isa = Arc<dyn TargetIsa>;

/// Returns the machine that this process runs on, if code can be made for it.
pub fn host_isa() -> Option<Isa> {
    let runs = cfg!(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")));
    let builder = cranelift_native::builder().ok().filter(|_| runs)?;
    finish(builder)
}

/// Returns the machine with this name; None for names other than `x86_64` and `aarch64`, because
/// Cranelift panics at unknown names.
pub fn named_isa(name: &str) -> Option<Isa> {
    let known = matches!(name, "x86_64" | "aarch64");
    finish(known.then(|| isa::lookup_by_name(name).ok())??)
}

fn finish(builder: isa::Builder) -> Option<OwnedTargetIsa> {
    let mut flags = settings::builder();
    for (name, value) in [
        ("opt_level", "speed"),
        ("enable_verifier", if cfg!(test) { "true" } else { "false" }),
        ("unwind_info", "false"),
        // Stack probes keep a function with a frame larger than a page from skipping the guard page
        // of the thread's stack.
        ("enable_probestack", "true"),
        ("probestack_strategy", "inline"),
    ] {
        flags.set(name, value).ok()?;
    }
    builder.finish(Flags::new(flags)).ok()
}

/// Buffers of the compiler, which one compilation leaves for the next to reuse.
#[derive(Default)]
pub struct Compiler {
    function: FunctionBuilderContext,
    context: Option<Box<Context>>,
}

impl Compiler {
    /// Returns the access thunk: the code that a compiled function calls if its own check refuses
    /// an access.
    pub fn access_thunk(&mut self, isa: &dyn TargetIsa) -> Result<Vec<u8>, Refusal> {
        let call_conv = isa.default_call_conv();
        self.build(isa, access_signature(), |builder| access_thunk(builder, call_conv))
    }

    /// Returns the machine code of a function.
    pub fn bytes(
        &mut self,
        isa: &dyn TargetIsa,
        input: Input<'_>,
        arguments: usize,
    ) -> Result<Vec<u8>, Refusal> {
        let signature = signature(isa.default_call_conv(), arguments);
        self.build(isa, signature, |builder| Translator::function(builder, input))
    }

    fn build(
        &mut self,
        isa: &dyn TargetIsa,
        signature: Signature,
        fill: impl FnOnce(FunctionBuilder<'_>) -> FunctionBuilder<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        let context = self.context.get_or_insert_with(|| Box::new(Context::new()));
        context.func = Function::with_name_signature(UserFuncName::default(), signature);
        let builder = FunctionBuilder::new(&mut context.func, &mut self.function);
        let builder = fill(builder);
        builder.finalize(isa.frontend_config());
        let compiled = context.compile(isa, &mut ControlPlane::default());
        let result = match compiled {
            Ok(code) if !code.buffer.relocs().is_empty() => {
                Err(Refusal::Compiler("the generated code contains relocations".to_owned()))
            }
            Ok(code) => Ok(code.code_buffer().to_vec()),
            Err(error) => Err(Refusal::Compiler(error.inner.to_string())),
        };
        context.clear();
        result
    }
}

/// Copies bytes into executable memory.
pub fn executable(bytes: &[u8]) -> Result<Mmap, Refusal> {
    let failed = |error: std::io::Error| Refusal::Memory(error.to_string());
    let mut map = MmapMut::map_anon(bytes.len().max(1)).map_err(failed)?;
    map[..bytes.len()].copy_from_slice(bytes);
    let map = map.make_exec().map_err(failed)?;
    publish(&map).map_err(failed)?;
    Ok(map)
}

/// Makes every CPU fetch the bytes of new code instead of the bytes that were at its address
/// before.
fn publish(map: &Mmap) -> std::io::Result<()> {
    let code = map.as_ptr_range();
    // SAFETY: the range is the whole mapping.
    if !unsafe { clear_cache::clear_cache(code.start, code.end) } {
        return Err(std::io::Error::other("the instruction cache was not cleared"));
    }
    // x86-64 CPUs notice new code by themselves. On other CPUs, `synchronize_cpus` is needed.
    if cfg!(target_arch = "x86_64") { Ok(()) } else { synchronize_cpus() }
}

/// Makes every CPU that runs a thread of this process drop the instructions that it has fetched
/// already. Needs Linux 4.16.
#[cfg(target_os = "linux")]
pub(super) fn synchronize_cpus() -> std::io::Result<()> {
    // tidy: allow(file): the system call reads nothing; machine code is the same for each run.
    use libc::{
        MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE as SYNC_CORE,
        MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE as REGISTER, SYS_membarrier, syscall,
    };
    // The command `SYNC_CORE` of `membarrier` fails in a process that has not registered for it. A
    // process may register repeatedly.
    for command in [REGISTER, SYNC_CORE] {
        // SAFETY: the system call takes no address.
        if unsafe { syscall(SYS_membarrier, command, 0, 0) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn synchronize_cpus() -> std::io::Result<()> {
    Ok(())
}
