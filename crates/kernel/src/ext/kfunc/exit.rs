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
    /// Formats a C string with its array of u64 arguments. On invalid data, reports an error
    /// of the scheduler and returns None.
    fn bstr(&mut self, fmt: u64, data: u64, size: u32) -> Result<Option<String>, Fault> {
        let text = self.vm.mem.c_str(fmt, limit::EXIT_MSG_LEN as u64).map(<[u8]>::to_vec);
        let text = text?;
        match scxlab_bpf::fmt::format_bstr(
            &self.vm.mem,
            &text,
            (data, size),
            limit::EXIT_MSG_LEN - 1,
        ) {
            Ok(text) => Ok(Some(String::from_utf8_lossy(&text.kept).into_owned())),
            Err(error) => {
                self.scx_error(format!(
                    "cannot format {:?} with {} bytes of arguments ({error})",
                    String::from_utf8_lossy(&text),
                    size
                ));
                Ok(None)
            }
        }
    }
}

fn exit_bstr(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    if let Some(text) = k.bstr(a[1], a[2], a[3] as u32)? {
        k.ext_exit(ExitKind::UnregBpf, a[0] as i64, &text);
    }
    Ok(0)
}

fn error_bstr(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    if let Some(text) = k.bstr(a[0], a[1], a[2] as u32)? {
        k.ext_exit(ExitKind::ErrorBpf, 0, &text);
    }
    Ok(0)
}

fn dump_bstr(k: &mut Kernel, a: &[u64; 5]) -> KfResult {
    if k.ext.dump.is_none() {
        k.scx_error("scx_bpf_dump() must only be called from ops.dump() and friends");
        return Ok(0);
    }
    if let Some(text) = k.bstr(a[0], a[1], a[2] as u32)? {
        k.dump_append(&text);
    }
    Ok(0)
}
