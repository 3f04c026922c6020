// SPDX-License-Identifier: GPL-2.0-only
//! Binding externs: kernel functions, kernel variables, configuration values.
//!
//! Owns: the binding of each extern, and the refusal of objects whose strong externs are missing.
//! Models: libbpf `bpf_object__resolve_externs()`, v7.3. A weak function whose prototype does not
//! fit counts as absent, because objects declare one such extern per version of a function.

use super::Target;
use super::error::{LinkErrorKind, MissingExtern};
use crate::btf::{Btf, BtfKind, TypeId, essential_name};
use crate::core_relo::types_are_compat;
use crate::object::{Extern, ExternKind, Object};
use scxlab_bpf::kfunc::{self, KfuncId};

/// A kernel configuration value, as in a `.config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KconfigValue {
    Yes,
    Module,
    No,
    Int(i64),
    Str(String),
}

impl KconfigValue {
    /// Parses the text after the `=` of a `.config` line.
    pub fn parse(text: &str) -> Option<KconfigValue> {
        match text {
            "y" => Some(KconfigValue::Yes),
            "m" => Some(KconfigValue::Module),
            "n" => Some(KconfigValue::No),
            _ => match text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
                Some(inner) => Some(KconfigValue::Str(inner.to_owned())),
                None => super::knob::parse_int(text)
                    .and_then(|v| i64::try_from(v).ok())
                    .map(KconfigValue::Int),
            },
        }
    }
}

/// Binding of an extern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExternBinding {
    Kfunc(KfuncId),
    Var {
        addr: u64,
        per_cpu: bool,
    },
    /// Byte offset in the object's section of configuration values, and the bytes there.
    Kconfig {
        offset: u64,
        bytes: Vec<u8>,
    },
    /// The kernel lacks the extern, for the reason given. The extern's address is 0; calling it is
    /// a fault.
    Absent(&'static str),
}

/// Binds all externs, and returns their bindings in the object's order. A missing strong extern is
/// an error.
pub fn bind(object: &Object, target: &impl Target) -> Result<Vec<ExternBinding>, LinkErrorKind> {
    let states = resolve_externs(object, target)?;
    let missing: Vec<_> = object
        .externs
        .iter()
        .zip(&states)
        .filter_map(|(ext, state)| match state {
            ExternBinding::Absent(why) if !ext.weak => {
                Some(MissingExtern { name: ext.name.clone(), why })
            }
            _ => None,
        })
        .collect();
    if missing.is_empty() { Ok(states) } else { Err(LinkErrorKind::MissingExterns(missing)) }
}

/// As `bind`, but accepts missing strong externs. For `inspect`.
pub fn resolve_externs(
    object: &Object,
    target: &impl Target,
) -> Result<Vec<ExternBinding>, LinkErrorKind> {
    let mut kconfig_end = 0;
    object
        .externs
        .iter()
        .map(|ext| {
            let bad = |what: String| LinkErrorKind::Extern { name: ext.name.clone(), what };
            Ok(match ext.kind {
                ExternKind::Func { proto } => bind_func(object, target, ext, proto),
                ExternKind::Var { ty } => bind_var(object, target, ext, ty).map_err(bad)?,
                ExternKind::Kconfig { ty, size, align } => {
                    let value = target.kconfig(&ext.name);
                    let absent = value.is_none() && !ext.weak;
                    let bytes = kconfig_bytes(&object.btf, ty, size, value).map_err(bad)?;
                    let offset = u64::next_multiple_of(kconfig_end, u64::from(align.max(1)));
                    kconfig_end = offset + bytes.len() as u64;
                    if absent {
                        ExternBinding::Absent("no such configuration value")
                    } else {
                        ExternBinding::Kconfig { offset, bytes }
                    }
                }
            })
        })
        .collect()
}

fn bind_func(object: &Object, target: &impl Target, ext: &Extern, proto: TypeId) -> ExternBinding {
    let name = essential_name(&ext.name);
    let Some(id) = kfunc::builtin(name).or_else(|| target.kfunc(name)) else {
        return ExternBinding::Absent("no such kernel function");
    };
    let btf = target.btf();
    let Some(func) = btf.find(name, BtfKind::Func) else {
        return ExternBinding::Kfunc(id);
    };
    let kernel_proto = btf.ty(func).ok().and_then(|t| t.target()).unwrap_or_default();
    match types_are_compat(&object.btf, proto, btf, kernel_proto) {
        Ok(true) => ExternBinding::Kfunc(id),
        _ => ExternBinding::Absent("the kernel's function has another prototype"),
    }
}

fn bind_var(
    object: &Object,
    target: &impl Target,
    ext: &Extern,
    ty: TypeId,
) -> Result<ExternBinding, String> {
    let Some(var) = target.ksym_var(&ext.name) else {
        return Ok(ExternBinding::Absent("no such kernel variable"));
    };
    let state = ExternBinding::Var { addr: var.addr, per_cpu: var.per_cpu };
    if ty == TypeId::VOID || var.btf_id == 0 {
        return Ok(state);
    }
    let btf = target.btf();
    let id = TypeId(var.btf_id);
    let kernel_ty = match btf.kind(id) {
        BtfKind::Var => btf.ty(id).ok().and_then(|t| t.target()).unwrap_or_default(),
        _ => id,
    };
    let kernel_ty = btf.resolve(kernel_ty).map_err(|e| e.to_string())?;
    match types_are_compat(&object.btf, ty, btf, kernel_ty) {
        Ok(true) => Ok(state),
        Ok(false) => Err(format!(
            "declared as {}, but the kernel's variable is {}",
            object.btf.type_name(ty),
            btf.type_name(kernel_ty)
        )),
        Err(e) => Err(e.to_string()),
    }
}

/// Encodes a configuration value in its declared type; returns zeros if there is no value.
fn kconfig_bytes(
    btf: &Btf,
    ty: TypeId,
    size: u32,
    value: Option<KconfigValue>,
) -> Result<Vec<u8>, String> {
    use KconfigValue::*;
    let ty = btf.resolve(ty).map_err(|e| e.to_string())?;
    let mut bytes = vec![0; size as usize];
    let Some(value) = value else { return Ok(bytes) };
    let mismatch = || format!("{value:?} does not fit its type {}", btf.type_name(ty));
    let number = match (btf.int(ty), btf.kind(ty), &value) {
        (Some(i), _, Yes | No) if i.boolean => i64::from(value == Yes),
        (Some(i), _, Int(v)) if i.boolean && !(0..=1).contains(v) => return Err(mismatch()),
        (Some(_), _, Int(v)) => *v,
        // A variable of one byte holds the letter itself: `y`, `m` or `n`.
        (Some(i), _, Yes | No | Module) if i.size == 1 => i64::from(match value {
            Yes => b'y',
            Module => b'm',
            _ => b'n',
        }),
        (None, BtfKind::Enum | BtfKind::Enum64, Yes | No | Module)
            if btf.name(ty) == "libbpf_tristate" =>
        {
            match value {
                Yes => 1,
                Module => 2,
                _ => 0,
            }
        }
        (None, BtfKind::Array, Str(text)) => {
            let room = bytes.len().saturating_sub(1).min(text.len());
            bytes[..room].copy_from_slice(&text.as_bytes()[..room]);
            return Ok(bytes);
        }
        _ => return Err(mismatch()),
    };
    let signed = btf.int(ty).is_some_and(|i| i.signed);
    let wide = i128::from(number);
    let bits = size.min(8) * 8;
    let (min, max) = match signed {
        true => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        false => (0, (1i128 << bits) - 1),
    };
    if size > 8 || !(min..=max).contains(&wide) {
        return Err(mismatch());
    }
    bytes.copy_from_slice(&wide.to_le_bytes()[..size as usize]);
    Ok(bytes)
}
