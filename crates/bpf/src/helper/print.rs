// SPDX-License-Identifier: GPL-2.0-only
//! Helpers that format text.

use super::HelperResult;
use crate::errno::*;
use crate::fault::Fault;
use crate::fmt::{Formatted, MAX_TEXT, format, format_bstr};
use crate::vm::Host;

/// Models `bpf_trace_printk`: up to three arguments, in registers.
pub fn trace_printk<H: Host>(h: &mut H, [fmt, size, a, b, c]: [u64; 5]) -> HelperResult {
    let text = match fmt_bytes(h, fmt, size)? {
        Some(fmt) => format(&h.vm().mem, &fmt, &[a, b, c], MAX_TEXT - 1),
        None => Err(EINVAL),
    };
    Ok(print(h, text))
}

/// Models `bpf_trace_vprintk`: arguments in an array.
pub fn trace_vprintk<H: Host>(h: &mut H, [fmt, size, data, data_len]: [u64; 4]) -> HelperResult {
    let text = match fmt_bytes(h, fmt, size)? {
        Some(fmt) => format_bstr(&h.vm().mem, &fmt, (data, data_len as u32), MAX_TEXT - 1),
        None => Err(EINVAL),
    };
    Ok(print(h, text))
}

/// Models `bpf_snprintf`. Returns the length of the complete text with its NUL, even if the buffer
/// holds less.
pub fn snprintf<H: Host>(h: &mut H, [out, size, fmt, data, data_len]: [u64; 5]) -> HelperResult {
    let mem = &mut h.vm().mem;
    let size = u64::from(size as u32);
    mem.bytes_mut(out, size)?;
    let fmt = mem.c_str(fmt, 1 << 16)?.to_vec();
    let room = size.saturating_sub(1) as usize;
    let text = match format_bstr(mem, &fmt, (data, data_len as u32), room) {
        Ok(text) => text,
        Err(errno) => return Ok(neg(errno)),
    };
    if size > 0 {
        let (nul, text) = (text.kept.len(), &text.kept);
        let to = mem.bytes_mut(out, nul as u64 + 1)?;
        to[..nul].copy_from_slice(text);
        to[nul] = 0;
    }
    Ok(text.len + 1)
}

/// Returns the format string up to its NUL; None if there is no NUL within `size` bytes.
fn fmt_bytes<H: Host>(h: &mut H, fmt: u64, size: u64) -> Result<Option<Vec<u8>>, Fault> {
    let bytes = h.vm().mem.bytes(fmt, u64::from(size as u32))?;
    let end = bytes.iter().position(|&byte| byte == 0);
    Ok(end.map(|end| bytes[..end].to_vec()))
}

fn print<H: Host>(h: &mut H, text: Result<Formatted, i64>) -> u64 {
    match text {
        Ok(text) => {
            h.printk(&String::from_utf8_lossy(&text.kept));
            text.len
        }
        Err(errno) => neg(errno),
    }
}
