// SPDX-License-Identifier: GPL-2.0-only
//! Linking: an object and a kernel become an instance that the virtual machine can run.
//!
//! Owns: `Target` (the symbols and types that a kernel offers to objects), the object between open
//! and load, while a frontend edits its globals, tables and maps, and load itself.
//! Does not: parse (see `object.rs`), execute, or know what any kernel function does.
//! Models: libbpf from `bpf_object__open()` to attach, v7.3, including what it refuses. Differs:
//! the linker makes only one of the verifier's checks (`verify.rs`). An instruction whose
//! relocation the target cannot satisfy faults when it is executed, and the fault names the field.
//!
//! ```text
//!   Object --open--> OpenObject --load--> Loaded
//!                    set globals, resize,           instance in the Vm, addresses of globals,
//!                    edit struct_ops, autoload      struct_ops tables with their programs
//! ```

mod code;
pub mod error;
mod externs;
mod globals;
pub mod knob;
mod place;
pub(crate) mod struct_ops;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use code::POISON;
pub use error::LinkError;
pub use externs::{ExternBinding, KconfigValue, resolve_externs};
pub use globals::{GlobalError, GlobalRef, Globals, Knob};
pub use place::PlacedSection;
pub use struct_ops::{LoadedMember, LoadedStructOps, MemberValue, TableEdit, TableError};

use crate::btf::{Btf, TypeId};
use crate::object::{Object, ProgramKind};
use scxlab_bpf::jit::{CodeCache, CodeStore};
use scxlab_bpf::kfunc::KfuncId;
use scxlab_bpf::map::MapId;
use scxlab_bpf::vm::{FuncId, Host, InstanceId, InstanceParts, Vm};

/// The kernel that objects are linked against.
pub trait Target {
    /// The kernel's types. A FUNC among them has the prototype that an extern of the same name must
    /// fit.
    fn btf(&self) -> &Btf;
    /// The kernel function of that name (without flavour), if it exists.
    fn kfunc(&self, name: &str) -> Option<KfuncId>;
    fn ksym_var(&self, name: &str) -> Option<KsymVar>;
    /// Configuration values, `LINUX_KERNEL_VERSION` among them.
    fn kconfig(&self, name: &str) -> Option<KconfigValue>;
    /// Whether programs can call the helper with this number.
    fn helper(&self, id: u32) -> bool {
        scxlab_bpf::helper::implemented(id)
    }
    /// Arguments of a struct's callback, counted from 0, that may be NULL.
    fn nullable_args(&self, _struct_name: &str, _member: &str) -> &[u32] {
        &[]
    }
}

/// A variable of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KsymVar {
    /// Value that the program gets for the variable: its address or, for a per-CPU variable, the
    /// argument of `bpf_per_cpu_ptr`.
    pub addr: u64,
    /// Id of the variable's type or of its VAR in the target's BTF; 0 if the variable has no type
    /// there.
    pub btf_id: u32,
    pub per_cpu: bool,
}

/// An object between open and load.
#[derive(Clone, Debug)]
pub struct OpenObject {
    object: Arc<Object>,
    pub globals: Globals,
    pub tables: Vec<TableEdit>,
    /// Indexed by function of the object: the user's choice whether the program is loaded.
    autoload: Vec<Option<bool>>,
    /// Indexed by map of the object: the capacity that replaces the one in the map's definition, if
    /// a frontend set one.
    max_entries: Vec<Option<u32>>,
    /// Machine code of all instances loaded from this object or from a clone of it.
    codes: CodeCache,
}

/// An object after load, with the ids and addresses that its parts have in the virtual machine.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub instance: InstanceId,
    pub object: Arc<Object>,
    /// Ids of the maps, indexed by map of the object.
    pub maps: Vec<MapId>,
    /// Places of the data sections in memory, indexed by data section of the object.
    pub sections: Vec<PlacedSection>,
    pub struct_ops: Vec<LoadedStructOps>,
    /// Ids of the functions, indexed by function of the object; None for a function that was not
    /// loaded.
    pub funcs: Vec<Option<FuncId>>,
}

impl OpenObject {
    pub fn new(object: Arc<Object>) -> OpenObject {
        OpenObject {
            globals: Globals::new(Arc::clone(&object)),
            tables: object.struct_ops.iter().map(TableEdit::new).collect(),
            autoload: vec![None; object.functions.len()],
            max_entries: vec![None; object.maps.len()],
            codes: CodeCache::default(),
            object,
        }
    }

    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// Takes machine code from a store, and makes `keep_code` put new code into it. A thread of its
    /// own compiles.
    pub fn keep_code_in(&mut self, store: Arc<dyn CodeStore>) {
        self.codes = CodeCache::compiled_beside(store);
    }

    /// Puts machine code that was compiled since the last call into the store, if there is one.
    pub fn keep_code(&self) {
        self.codes.keep();
    }

    /// Compiles the functions that the runs so far have used ([`CodeCache::compile_used`]).
    pub fn compile_used(&self) {
        self.codes.compile_used();
    }

    /// The struct_ops table whose variable has that name.
    pub fn table_mut(&mut self, name: &str) -> Option<&mut TableEdit> {
        self.tables.iter_mut().find(|t| t.name() == name)
    }

    /// Chooses whether a program is loaded. False if there is no such program.
    pub fn set_autoload(&mut self, program: &str, load: bool) -> bool {
        let found = self.object.programs().find(|(_, f, _)| f.name == program);
        let Some(index) = found.map(|(index, ..)| index) else {
            return false;
        };
        self.autoload[index] = Some(load);
        true
    }

    /// Changes a map's capacity. False if there is no such map.
    pub fn set_max_entries(&mut self, map: &str, entries: u32) -> bool {
        let Some(index) = self.object.map(map) else {
            return false;
        };
        self.max_entries[index] = Some(entries);
        true
    }

    /// Whether a program is loaded if no struct_ops table decides. The user's choice decides first.
    /// Without a choice, the program is loaded unless its section is optional (has a name that
    /// begins with `?`).
    pub fn is_loaded(&self, function: usize) -> bool {
        self.autoload[function].unwrap_or(!self.object.functions[function].optional)
    }

    /// Programs for which the user chose whether they are loaded, with that choice.
    pub fn autoload(&self) -> impl Iterator<Item = (&str, bool)> {
        let functions = self.object.functions.iter().map(|f| f.name.as_str());
        functions.zip(&self.autoload).filter_map(|(name, load)| Some((name, (*load)?)))
    }

    /// Maps whose capacity was changed, with the new capacity.
    pub fn max_entries(&self) -> impl Iterator<Item = (&str, u32)> {
        let maps = self.object.maps.iter().map(|m| m.name.as_str());
        maps.zip(&self.max_entries).filter_map(|(name, entries)| Some((name, (*entries)?)))
    }

    /// Loads the object into the host's virtual machine. On failure nothing of the object remains
    /// there.
    pub fn load<H: Host>(&self, host: &mut H, target: &impl Target) -> Result<Loaded, LinkError> {
        self.load_inner(host, target)
            .map_err(|what| LinkError { object: self.object.name.clone(), what })
    }

    fn load_inner<H: Host>(
        &self,
        host: &mut H,
        target: &impl Target,
    ) -> Result<Loaded, error::LinkErrorKind> {
        // Checks that do not change the virtual machine come first, so that most refusals leave
        // nothing to undo.
        let tables = struct_ops::match_kernel(&self.object, &self.tables, target.btf())?;
        let externs = externs::bind(&self.object, target)?;
        let programs = self.programs_to_load(&tables)?;
        if !tables.is_empty() && !self.object.is_gpl_compatible() {
            return Err(error::LinkErrorKind::Licence { licence: self.object.license.clone() });
        }
        let mut code = code::select(&self.object, &programs);
        code.relocate_core(&self.object, target.btf())?;
        crate::verify::nullable_args(&self.object, &tables, target)?;
        let instance = host.vm().add_instance(&self.object.name);
        let placed = self.place(host.vm(), instance, target, &externs, code, tables);
        if placed.is_err() {
            scxlab_bpf::vm::remove_instance(host, instance);
        }
        placed
    }

    /// Creates the maps, data sections and code of an instance in the virtual machine.
    fn place(
        &self,
        vm: &mut Vm,
        instance: InstanceId,
        target: &impl Target,
        externs: &[ExternBinding],
        mut code: code::ImageBuilder,
        tables: Vec<struct_ops::MatchedTable>,
    ) -> Result<Loaded, error::LinkErrorKind> {
        let object = &self.object;
        let maps = place::create_maps(vm, instance, object, &self.max_entries, target.btf())?;
        let sections =
            place::create_sections(vm, instance, object, &self.globals, &maps, target.btf())?;
        let kconfig = place::create_kconfig(vm, instance, externs)?;
        let addresses = code::Addresses {
            maps: maps.iter().map(|id| vm.maps.get(*id).map_or(0, |m| m.addr)).collect(),
            sections: &sections,
            kconfig,
            externs,
        };
        code.relocate(object, &addresses)?;
        let funcs = code.funcs_by_object();
        let parts = code.finish(object, target, externs)?;
        vm.install(instance, InstanceParts { codes: self.codes.clone(), ..parts });
        Ok(Loaded {
            instance,
            object: Arc::clone(object),
            maps,
            sections,
            struct_ops: tables.into_iter().map(|t| t.bind(&funcs)).collect(),
            funcs,
        })
    }

    /// Returns the programs to load. If the user made a choice for a program, that choice decides.
    /// Otherwise, a struct_ops program to which any table of the object refers is loaded only if it
    /// is a callback in `tables`: the tables to be created, with the members that the kernel has.
    /// Any other program is loaded unless its section is optional (has a name that begins with
    /// `?`).
    fn programs_to_load(
        &self,
        tables: &[struct_ops::MatchedTable],
    ) -> Result<Vec<usize>, error::LinkErrorKind> {
        let bound = struct_ops::bound_programs(&self.object, tables);
        let mentioned = struct_ops::referenced_programs(&self.object, &self.tables);
        let mut chosen = Vec::new();
        for (index, function, kind) in self.object.programs() {
            let is_struct_ops = matches!(kind, ProgramKind::StructOps { .. });
            let by_table = is_struct_ops && mentioned[index] && self.autoload[index].is_none();
            let load = if by_table { bound[index] } else { self.is_loaded(index) };
            if !load {
                continue;
            }
            if *kind == ProgramKind::Other && !code::is_known_section(&function.section) {
                return Err(error::LinkErrorKind::ProgramType {
                    program: function.name.clone(),
                    section: function.section.clone(),
                });
            }
            if is_struct_ops && !mentioned[index] {
                return Err(error::LinkErrorKind::Unreferenced { program: function.name.clone() });
            }
            chosen.push(index);
        }
        Ok(chosen)
    }
}

impl Loaded {
    /// Address and type of a global variable, or of a part of one, such as `cfg.slice[3]`.
    pub fn global(&self, path: &str) -> Result<PlacedGlobal, GlobalError> {
        let found = self.find(path)?;
        Ok(PlacedGlobal {
            addr: self.sections[found.section].addr + found.offset,
            size: found.size,
            ty: found.field.ty,
        })
    }

    fn find(&self, path: &str) -> Result<GlobalRef, GlobalError> {
        globals::find(&self.object, path, |s| self.sections[s].size)
    }

    /// Current value of a global as text.
    pub fn read_global(&self, vm: &Vm, path: &str) -> Result<String, GlobalError> {
        let place = self.find(path)?;
        let addr = self.sections[place.section].addr + place.offset;
        let bytes = vm.mem.host_slice::<u8>(addr, place.extent().min(1 << 16) as usize);
        Ok(place.decode(&self.object.btf, bytes))
    }

    /// Sets a global from text, as a frontend does through its mapping of the section. The call
    /// refuses a read-only global.
    pub fn write_global(&self, vm: &mut Vm, path: &str, text: &str) -> Result<(), GlobalError> {
        let place = self.find(path)?;
        let addr = self.sections[place.section].addr + place.offset;
        let Ok(slot) = vm.mem.bytes_mut(addr, place.extent()) else {
            return Err(GlobalError::Frozen { path: path.to_owned() });
        };
        let bytes = place.encode(&self.object.btf, path, text, slot.to_vec())?;
        slot.copy_from_slice(&bytes);
        Ok(())
    }

    pub fn func(&self, name: &str) -> Option<FuncId> {
        self.object.function(name).and_then(|index| self.funcs[index])
    }

    pub fn map(&self, name: &str) -> Option<MapId> {
        self.object.map(name).map(|index| self.maps[index])
    }

    /// Loaded programs with the kind that says how they are started.
    pub fn programs(&self) -> impl Iterator<Item = (FuncId, &str, &ProgramKind)> {
        self.object
            .programs()
            .filter_map(|(index, f, kind)| Some((self.funcs[index]?, f.name.as_str(), kind)))
    }
}

/// A global variable in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedGlobal {
    pub addr: u64,
    pub size: u64,
    pub ty: TypeId,
}
