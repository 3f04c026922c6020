// SPDX-License-Identifier: GPL-2.0-only
//! printf formats as BPF programs use them: a format string and an array of 64-bit arguments.
//!
//! Owns: refusing malformed formats, and the output of each conversion.
//! Does not: send the text anywhere.
//! Models: `bpf_bprintf_prepare()` and `bstr_printf()`, v7.3. Differs: `%p` prints a hash that
//! depends only on the pointer, and symbols (`%ps`, `%pS`, `%pB`) print as plain addresses, because
//! guest addresses have no symbol table.

use crate::errno::*;
use crate::mem::Memory;

#[cfg(test)]
mod tests;

/// Largest number of arguments of one call. The kernel's MAX_BPRINTF_VARARGS.
pub const MAX_ARGS: usize = 12;
/// Longest text of `bpf_trace_printk` and similar helpers, in bytes with its NUL. The kernel's
/// MAX_BPRINTF_BUF.
pub const MAX_TEXT: usize = 1024;
/// Space in bytes for all arguments in binary form. The kernel's MAX_BPRINTF_BIN_ARGS. The printer
/// cuts a string to the space that is left.
const MAX_BINARY: usize = 512;

/// Widest field that the kernel prints. Its FIELD_WIDTH_MAX.
const MAX_WIDTH: i32 = (1 << 23) - 1;

/// A formatted text as a buffer of limited size holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Formatted {
    /// The beginning of the text, as far as it fits into the buffer.
    pub kept: Vec<u8>,
    /// Length of the complete text in bytes.
    pub len: u64,
    /// Size of the buffer in bytes, without the final NUL.
    room: usize,
}

impl Formatted {
    fn push(&mut self, text: &[u8]) {
        let fits = text.len().min(self.room - self.kept.len());
        self.kept.extend_from_slice(&text[..fits]);
        self.len += text.len() as u64;
    }

    fn fill(&mut self, byte: u8, count: usize) {
        let fits = count.min(self.room - self.kept.len());
        self.kept.resize(self.kept.len() + fits, byte);
        self.len += count as u64;
    }
}

/// Formats arguments that a program left in guest memory, as the `*_bstr` kfuncs get them: `data`
/// is the address of 64-bit words and `data_len` their size in bytes. `room` is the number of
/// bytes of the text that the result keeps.
pub fn format_bstr(
    mem: &Memory,
    fmt: &[u8],
    (data, data_len): (u64, u32),
    room: usize,
) -> Result<Formatted, i64> {
    let words = data_len as usize / 8;
    if !data_len.is_multiple_of(8) || words > MAX_ARGS || (words > 0 && data == 0) {
        return Err(EINVAL);
    }
    let mut args = [0; MAX_ARGS];
    for (at, arg) in args[..words].iter_mut().enumerate() {
        *arg = mem.read(data.wrapping_add(at as u64 * 8)).map_err(|_| EFAULT)?;
    }
    format(mem, fmt, &args[..words], room)
}

/// Formats `args`. The format ends at the first NUL of `fmt`, or at its end. Arguments of string
/// conversions are guest addresses. The first `room` bytes of the text are kept.
pub fn format(mem: &Memory, fmt: &[u8], args: &[u64], room: usize) -> Result<Formatted, i64> {
    let end = fmt.iter().position(|&byte| byte == 0).unwrap_or(fmt.len());
    let out = Formatted { room, ..Formatted::default() };
    let mut printer = Printer { mem, fmt: &fmt[..end], args, used: 0, binary: 0, out };
    printer.run()?;
    Ok(printer.out)
}

struct Printer<'a> {
    mem: &'a Memory,
    fmt: &'a [u8],
    args: &'a [u64],
    used: usize,
    /// Bytes that the arguments formatted so far take in the kernel's binary form.
    binary: usize,
    out: Formatted,
}

/// Flags and width of a conversion.
#[derive(Clone, Copy, Default)]
struct ConversionSpec {
    left: bool,
    zero: bool,
    plus: bool,
    space: bool,
    /// None if the format gives no width.
    width: Option<usize>,
}

impl Printer<'_> {
    fn run(&mut self) -> Result<(), i64> {
        let mut at = 0;
        while let Some(&byte) = self.fmt.get(at) {
            at += 1;
            if byte.is_ascii() && !(32..127).contains(&byte) && !is_space(byte) {
                return Err(EINVAL);
            }
            if byte != b'%' {
                self.out.push(&[byte]);
            } else if self.byte(at) == b'%' {
                self.out.push(b"%");
                at += 1;
            } else {
                at = self.conversion(at)?;
            }
        }
        Ok(())
    }

    /// The byte of the format at an index; NUL at the end of the format, as in C.
    fn byte(&self, at: usize) -> u8 {
        self.fmt.get(at).copied().unwrap_or(0)
    }

    /// Formats one conversion. `at` is the index after the conversion's `%`. Returns the index
    /// after the conversion.
    fn conversion(&mut self, mut at: usize) -> Result<usize, i64> {
        if self.used >= self.args.len() {
            return Err(EINVAL);
        }
        let spec = self.spec(&mut at);
        match self.byte(at) {
            b'p' => self.pointer(at + 1, spec),
            b's' => self.string(at + 1, spec),
            b'c' => {
                self.reserve(1, 1)?;
                let byte = self.arg() as u8;
                self.pad(&[byte], spec);
                Ok(at + 1)
            }
            _ => self.integer(at, spec),
        }
    }

    fn spec(&self, at: &mut usize) -> ConversionSpec {
        let mut spec = ConversionSpec::default();
        loop {
            match self.byte(*at) {
                b'0' => spec.zero = true,
                b'+' => spec.plus = true,
                b'-' => spec.left = true,
                b' ' => spec.space = true,
                _ => break,
            }
            *at += 1;
        }
        // As in the kernel, a width with too many digits overflows an int and wraps. A width that
        // is then negative adds no padding.
        let mut width = None;
        while self.byte(*at).is_ascii_digit() {
            let digit = i32::from(self.byte(*at) - b'0');
            width = Some(width.map_or(digit, |w: i32| w.wrapping_mul(10).wrapping_add(digit)));
            *at += 1;
        }
        spec.width = width.map(|w| w.clamp(0, MAX_WIDTH) as usize);
        spec
    }

    fn integer(&mut self, mut at: usize, spec: ConversionSpec) -> Result<usize, i64> {
        let longs = (at..at + 2).take_while(|&at| self.byte(at) == b'l').count();
        at += longs;
        let size = if longs > 0 { 8 } else { 4 };
        let kind = self.byte(at);
        if !matches!(kind, b'i' | b'd' | b'u' | b'x' | b'X') {
            return Err(EINVAL);
        }
        self.reserve(size, 4)?;
        let arg = self.arg();
        let text = match (kind, size) {
            (b'i' | b'd', 8) => (arg as i64).to_string(),
            (b'i' | b'd', _) => (arg as i32).to_string(),
            (b'u', 8) => arg.to_string(),
            (b'u', _) => (arg as u32).to_string(),
            (b'x', 8) => format!("{arg:x}"),
            (b'x', _) => format!("{:x}", arg as u32),
            (_, 8) => format!("{arg:X}"),
            (_, _) => format!("{:X}", arg as u32),
        };
        let signed = matches!(kind, b'i' | b'd') && !text.starts_with('-');
        let sign = if signed && spec.plus {
            "+"
        } else if signed && spec.space {
            " "
        } else {
            ""
        };
        self.number(sign, &text, spec);
        Ok(at + 1)
    }

    /// Writes a number with its sign. Padding zeroes go between the sign and the digits.
    fn number(&mut self, sign: &str, text: &str, spec: ConversionSpec) {
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => (sign, text),
        };
        let len = sign.len() + digits.len();
        if !spec.zero || spec.left {
            return self.pad([sign, digits].concat().as_bytes(), spec);
        }
        self.out.push(sign.as_bytes());
        self.out.fill(b'0', spec.width.unwrap_or(0).saturating_sub(len));
        self.out.push(digits.as_bytes());
    }

    fn string(&mut self, at: usize, spec: ConversionSpec) -> Result<usize, i64> {
        let next = self.byte(at);
        if next != 0 && !is_space(next) && !next.is_ascii_punctuation() {
            return Err(EINVAL);
        }
        let room = MAX_BINARY - self.binary;
        if room == 0 {
            return Err(ENOSPC);
        }
        let ptr = self.arg();
        let text = self.mem.c_str(ptr, room as u64 - 1).unwrap_or(&[]).to_vec();
        self.binary += text.len() + 1;
        self.pad(&text, spec);
        Ok(at)
    }

    /// Formats a pointer conversion. `at` is the index after the `p`.
    fn pointer(&mut self, at: usize, spec: ConversionSpec) -> Result<usize, i64> {
        let (kind, next) = (self.byte(at), self.byte(at + 1));
        let plain = kind == 0 || is_space(kind) || kind.is_ascii_punctuation();
        match (kind, next) {
            _ if plain => self.address(at, spec, true),
            (b'k' | b'u', b's') => self.string(at + 2, spec),
            (b'K', _) => self.address(at + 1, spec, true),
            (b'x', _) => self.address(at + 1, spec, false),
            (b's' | b'S' | b'B', _) => {
                self.reserve(8, 4)?;
                let text = format!("{:#x}", self.arg());
                self.pad(text.as_bytes(), spec);
                Ok(at + 1)
            }
            (b'i' | b'I', b'4' | b'6') => self.ip(at, kind, next),
            _ => Err(EINVAL),
        }
    }

    fn address(
        &mut self,
        end: usize,
        mut spec: ConversionSpec,
        hashed: bool,
    ) -> Result<usize, i64> {
        self.reserve(8, 4)?;
        let ptr = self.arg();
        // The kernel prints NULL and error pointers without hashing them.
        let keep = !hashed || !(4096..=u64::MAX - 4095).contains(&ptr);
        let shown = if keep { ptr } else { u64::from(hash_pointer(ptr)) };
        if spec.width.is_none() {
            spec = ConversionSpec { width: Some(16), zero: true, ..spec };
        }
        self.number("", &format!("{shown:x}"), spec);
        Ok(end)
    }

    fn ip(&mut self, at: usize, kind: u8, version: u8) -> Result<usize, i64> {
        let len = if version == b'4' { 4 } else { 16 };
        let ptr = self.arg();
        let bytes = self.mem.bytes(ptr, len).map_or(vec![0; len as usize], <[u8]>::to_vec);
        let text = match (version, kind) {
            (b'4', b'I') => bytes.iter().map(u8::to_string).collect::<Vec<_>>().join("."),
            (b'4', _) => bytes.iter().map(|b| format!("{b:03}")).collect::<Vec<_>>().join("."),
            _ => {
                let pairs: Vec<_> =
                    bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
                pairs.join(if kind == b'I' { ":" } else { "" })
            }
        };
        self.reserve(text.len() + 1, 1)?;
        self.out.push(text.as_bytes());
        Ok(at + 2)
    }

    fn pad(&mut self, text: &[u8], spec: ConversionSpec) {
        let fill = spec.width.unwrap_or(0).saturating_sub(text.len());
        if !spec.left {
            self.out.fill(b' ', fill);
        }
        self.out.push(text);
        if spec.left {
            self.out.fill(b' ', fill);
        }
    }

    fn arg(&mut self) -> u64 {
        self.used += 1;
        self.args[self.used - 1]
    }

    /// Reserves space for an argument in the kernel's binary form of all arguments. Returns ENOSPC
    /// if too little space is left.
    fn reserve(&mut self, size: usize, align: usize) -> Result<(), i64> {
        let end = self.binary.next_multiple_of(align) + size;
        if end > MAX_BINARY {
            return Err(ENOSPC);
        }
        self.binary = end;
        Ok(())
    }
}

/// C's isspace(), which includes the vertical tab.
fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Hash of a pointer, the same in every run.
fn hash_pointer(ptr: u64) -> u32 {
    let mixed = (ptr ^ (ptr >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u32
}
