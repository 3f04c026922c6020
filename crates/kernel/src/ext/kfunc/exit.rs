// SPDX-License-Identifier: GPL-2.0-only
//! kfuncs that end a scheduler or write to its dump.
//!
//! Models: kernel `scx_bpf_exit_bstr()`, `scx_bpf_error_bstr()`, `scx_bpf_dump_bstr()`,
//! `__bstr_format()`, 7.3.

use super::{Handler, KfResult};
use crate::bpf::flags::limit;
use crate::ext::exit::ExitKind;
use crate::kernel::Kernel;
use scxlab_bpf::fault::Fault;

pub(super) const TABLE: &[(&str, Handler)] = &[
    ("scx_bpf_exit_bstr", exit_bstr),
    ("scx_bpf_error_bstr", error_bstr),
    ("scx_bpf_dump_bstr", dump_bstr),
];

impl Kernel {
    /// Formats a C string with its array of u64 arguments, or returns the reason why it cannot.
    fn bstr(&mut self, fmt: u64, data: u64, size: u32) -> Result<Result<String, String>, Fault> {
        let text = self.vm.mem.c_str(fmt, limit::EXIT_MSG_LEN as u64).map(<[u8]>::to_vec);
        let text = text?;
        match scxlab_bpf::fmt::format_bstr(
            &self.vm.mem,
            &text,
            (data, size),
            limit::EXIT_MSG_LEN - 1,
        ) {
            Ok(text) => Ok(Ok(String::from_utf8_lossy(&text.kept).into_owned())),
            Err(error) => Ok(Err(format!(
                "{:?} cannot be formatted with {size} bytes of arguments ({error})",
                String::from_utf8_lossy(&text),
            ))),
        }
    }

    /// Ends the scheduler with a text of its own. The exit keeps its kind if the text cannot be
    /// formatted.
    fn exit_bstr(
        &mut self,
        kind: ExitKind,
        code: i64,
        [fmt, data, size]: [u64; 3],
    ) -> Result<(), Fault> {
        let text = self.bstr(fmt, data, size as u32)?;
        let text = text.unwrap_or_else(|why| format!("exit message formatting failed: {why}"));
        self.ext_exit(kind, code, &text);
        Ok(())
    }
}

fn exit_bstr(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    k.exit_bstr(ExitKind::UnregBpf, a[0] as i64, [a[1], a[2], a[3]])?;
    Ok(0)
}

fn error_bstr(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    k.exit_bstr(ExitKind::ErrorBpf, 0, [a[0], a[1], a[2]])?;
    Ok(0)
}

fn dump_bstr(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    if k.ext.dump.is_none() {
        k.scx_error("scx_bpf_dump() must only be called from ops.dump() and friends");
        return Ok(0);
    }
    match k.bstr(a[0], a[1], a[2] as u32)? {
        Ok(text) => k.dump_append(&text),
        Err(why) => k.scx_error(why),
    }
    Ok(0)
}
