// SPDX-License-Identifier: GPL-2.0-only
//! Names of types as a C programmer would write them, for messages and `inspect`.

use super::walk::MAX_DEPTH;
use super::{Btf, BtfKind, TypeId};

impl Btf {
    /// C spelling of a type, for messages: `struct task_struct *`, `u32[4]`, `const char *`.
    pub fn type_name(&self, id: TypeId) -> String {
        self.spell(id, MAX_DEPTH)
    }

    /// As `type_name`, without `const` and `volatile`, which do not matter to a user who sets a
    /// value.
    pub fn plain_type_name(&self, id: TypeId) -> String {
        self.type_name(id).replace("const ", "").replace("volatile ", "")
    }

    fn spell(&self, id: TypeId, depth: usize) -> String {
        if depth == 0 {
            return "?".to_owned();
        }
        let name = self.name(id);
        let inner = |prefix: &str| {
            let target = self.ty(id).ok().and_then(|t| t.target()).unwrap_or_default();
            format!("{prefix}{}", self.spell(target, depth - 1))
        };
        match self.kind(id) {
            BtfKind::Void => "void".to_owned(),
            BtfKind::Struct => tagged("struct", name),
            BtfKind::Union => tagged("union", name),
            BtfKind::Fwd => tagged("struct", name),
            BtfKind::Enum | BtfKind::Enum64 => tagged("enum", name),
            BtfKind::Ptr => {
                let target = inner("");
                if target.ends_with('*') { format!("{target}*") } else { format!("{target} *") }
            }
            BtfKind::Const => inner("const "),
            BtfKind::Volatile => inner("volatile "),
            BtfKind::Restrict | BtfKind::TypeTag | BtfKind::DeclTag => inner(""),
            BtfKind::Array => match self.array(id) {
                Some(a) => format!("{}[{}]", self.spell(a.elem, depth - 1), a.len),
                None => "?".to_owned(),
            },
            BtfKind::FuncProto => {
                let params: Vec<_> =
                    self.params(id).take(6).map(|p| self.spell(p.ty, depth / 4)).collect();
                format!("{}({})", inner(""), params.join(", "))
            }
            _ => name.to_owned(),
        }
    }
}

fn tagged(keyword: &str, name: &str) -> String {
    if name.is_empty() { format!("{keyword} {{...}}") } else { format!("{keyword} {name}") }
}
