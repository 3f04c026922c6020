// SPDX-License-Identifier: GPL-2.0-only
//! Steps on a loaded object: they run its programs and write its maps, globals and memory.
//!
//! Owns: the bytes of contexts and elements. Does not: carry out actions that need an object before
//! its load (see `open.rs`).
//! Models: a frontend's `bpf_prog_test_run_opts()`, `bpf_map_update_elem()` and its mappings of
//! globals and arenas.

use scxlab_bpf::errno::ENOENT;
use scxlab_loader::btf::{Btf, BtfKind, FieldRef, TypeId};
use scxlab_loader::object::ProgramKind;
use scxlab_machine::CpuId;

use super::super::expr::path_text;
use super::super::frontend::{Frontend, RunFailure};
use super::super::{
    Action, Assignment, Content, Formula, RecipeError, RecipeErrorKind, Run, SourcePos, Update,
    layout,
};
use super::{ObjectState, RecipeExecution, RecipeResult, no_map, no_program};

/// Maximum size in bytes of a program's context: `bpf_prog_test_run_syscall()` of Linux 7.3 refuses
/// more than `U16_MAX`.
const CONTEXT_BYTES_MAX: u64 = u16::MAX as u64;

impl RecipeExecution<'_> {
    pub(super) fn use_loaded(
        &mut self,
        frontend: &mut dyn Frontend,
        action: &Action,
        place: &SourcePos,
    ) -> RecipeResult<()> {
        match action {
            Action::Set(all) => all.iter().try_for_each(|a| self.set_loaded(frontend, a)),
            Action::InnerMaps(pairs) => pairs.iter().try_for_each(|(map, formula)| {
                let slots = self.count(&ObjectState::Loaded(frontend), formula)?;
                fill_map_of_maps(frontend, &map.name, slots, &formula.place)
            }),
            Action::Run(run) => self.run(frontend, run, place),
            Action::Update(update) => self.update(frontend, update, place),
            _ => Ok(()),
        }
    }

    fn set_loaded(&self, frontend: &mut dyn Frontend, a: &Assignment) -> RecipeResult<()> {
        let Assignment { target, value: formula } = a;
        let side = ObjectState::Loaded(&mut *frontend);
        let steps = self.steps(&side, target, &formula.place)?;
        let value = self.value(&side, formula)?;
        let Some(at) = &target.at else {
            let path = path_text(&target.name, &steps);
            let set = frontend.set_global(&path, &value.to_string());
            return set.map_err(|e| RecipeError::at(&formula.place, (*e).into()));
        };
        let at = at.value(&self.scope(&side));
        let at = at.map_err(|e| RecipeError::at(&formula.place, e.into()))?;
        let place = path_text(&format!("{}({at:#x})", target.name), &steps);
        let refuse = |why: String| {
            RecipeError::at(&formula.place, RecipeErrorKind::Memory { place: place.clone(), why })
        };
        let btf = &frontend.object().btf;
        let ty = type_named(btf, &target.name)
            .ok_or_else(|| refuse("the object has no such type".into()))?;
        let field = btf.path(ty, &path_text("", &steps)).map_err(|e| refuse(e.to_string()))?;
        let address = u64::try_from(at).map_err(|_| refuse("no address".into()))?;
        poke(frontend, address, field, value).map_err(refuse)
    }

    fn run(
        &mut self,
        frontend: &mut dyn Frontend,
        run: &Run,
        place: &SourcePos,
    ) -> RecipeResult<()> {
        let program = &run.program.name;
        let is_syscall = |kind: &ProgramKind| *kind == ProgramKind::Syscall;
        let object = frontend.object();
        if !object.programs().any(|(_, f, kind)| f.name == *program && is_syscall(kind)) {
            return Err(no_program(object, place, program, is_syscall));
        }
        let ty = layout::context_type(object, program);
        let side = ObjectState::Loaded(&mut *frontend);
        let mut ctx = self.context(&side, run, ty, place)?;
        let wanted = run.returns.as_ref().map(|f| self.value(&side, f)).transpose()?;
        let cpu = run.cpu.as_ref().map(|f| self.cpu(&side, f)).transpose()?;
        let failed = |failure: RunFailure| {
            let program = program.clone();
            RecipeError::at(
                place,
                match failure {
                    RunFailure::Fault(fault) => RecipeErrorKind::Fault { program, fault },
                    RunFailure::NotLoaded => {
                        RecipeErrorKind::NotRun { program, why: "it is not loaded".into() }
                    }
                    RunFailure::Refused(why) => RecipeErrorKind::NotRun { program, why },
                },
            )
        };
        let value = frontend.run(program, &mut ctx, cpu).map_err(failed)?;
        let side = ObjectState::Loaded(frontend);
        if let Some(wanted) = wanted.filter(|wanted| *wanted != i128::from(value)) {
            let context = self.shown(&side, &run.ctx)?;
            let (program, wanted) = (program.clone(), wanted as i32);
            return Err(RecipeError::at(
                place,
                RecipeErrorKind::Returned { program, value, wanted, context },
            ));
        }
        self.read_back(&side, run, ty, &ctx, place)
    }

    /// Builds the bytes of a program's context struct.
    fn context(
        &self,
        side: &ObjectState<'_>,
        run: &Run,
        ty: Option<TypeId>,
        place: &SourcePos,
    ) -> RecipeResult<Vec<u8>> {
        let program = &run.program.name;
        let wants = !run.ctx.is_empty() || !run.into.is_empty();
        let size = ty.and_then(|ty| side.object().btf.size_of(ty).ok());
        let (Some(ty), Some(size)) = (ty, size) else {
            let what = RecipeErrorKind::NoContext { program: program.clone() };
            return if wants { Err(RecipeError::at(place, what)) } else { Ok(Vec::new()) };
        };
        if size > CONTEXT_BYTES_MAX {
            if !wants {
                return Ok(Vec::new());
            }
            let (program, max) = (program.clone(), CONTEXT_BYTES_MAX);
            let what = RecipeErrorKind::LargeContext { program, size, max };
            return Err(RecipeError::at(place, what));
        }
        let mut bytes = vec![0; size as usize];
        self.fill(side, ty, &mut bytes, &run.ctx, |field, why| RecipeErrorKind::Context {
            program: program.clone(),
            field,
            why,
        })?;
        Ok(bytes)
    }

    /// Copies fields of a program's context, as the program left them, into variables of the
    /// recipe.
    fn read_back(
        &mut self,
        side: &ObjectState<'_>,
        run: &Run,
        ty: Option<TypeId>,
        ctx: &[u8],
        place: &SourcePos,
    ) -> RecipeResult<()> {
        for (variable, field) in &run.into {
            let Some(ty) = ty else { break };
            let steps = self.steps(side, field, place)?;
            let btf = &side.object().btf;
            let value = layout::field(btf, ty, &field.name, &steps)
                .and_then(|found| layout::get(btf, ctx, found));
            let value = value.map_err(|why| {
                let field = path_text(&field.name, &steps);
                RecipeError::at(
                    place,
                    RecipeErrorKind::Context { program: run.program.name.clone(), field, why },
                )
            })?;
            self.assign(side, variable, value, place)?;
        }
        Ok(())
    }

    /// Formats the fields of a program's context, as the recipe filled them, for the error about a
    /// wrong return value.
    fn shown(&self, side: &ObjectState<'_>, fields: &[Assignment]) -> RecipeResult<String> {
        let mut shown = Vec::new();
        for Assignment { target, value } in fields {
            let name = path_text(&target.name, &self.steps(side, target, &value.place)?);
            shown.push(format!("{name} = {}", self.value(side, value)?));
        }
        Ok(if shown.is_empty() { String::new() } else { format!(" (with {})", shown.join(", ")) })
    }

    fn update(
        &self,
        frontend: &mut dyn Frontend,
        update: &Update,
        place: &SourcePos,
    ) -> RecipeResult<()> {
        let refuse = |why: String| {
            RecipeError::at(place, RecipeErrorKind::Map { map: update.map.name.clone(), why })
        };
        let Some(index) = frontend.object().map(&update.map.name) else {
            return Err(no_map(frontend.object(), place, &update.map.name));
        };
        let spec = frontend.object().maps[index].clone();
        let side = ObjectState::Loaded(&mut *frontend);
        let key = vec![0; spec.key_size as usize];
        let key = self.content(&side, spec.key_ty, key, &update.key, &refuse)?;
        let cpu = update.cpu.as_ref().map(|f| self.cpu(&side, f)).transpose()?;
        let copies = element(&side, index, &key, spec.value_size, cpu)
            .map_err(|errno| refuse(format!("errno {errno}")))?;
        let all_copies = cpu.is_none() && is_percpu(&side, index);
        let mut value = Vec::new();
        for copy in copies {
            let copy = self.content(&side, spec.value_ty, copy, &update.value, &refuse)?;
            value.extend_from_slice(&copy);
            if all_copies {
                value.resize(value.len().next_multiple_of(8), 0);
            }
        }
        let done = frontend.update(index, &key, &value, cpu);
        done.map_err(|errno| refuse(format!("errno {errno}")))
    }

    /// Writes the key or value given by `content` into `bytes`.
    fn content(
        &self,
        side: &ObjectState<'_>,
        ty: Option<TypeId>,
        mut bytes: Vec<u8>,
        content: &Content,
        refuse: &dyn Fn(String) -> RecipeError,
    ) -> RecipeResult<Vec<u8>> {
        let btf = &side.object().btf;
        match (content, ty) {
            (Content::Whole(formula), Some(ty)) => {
                let value = self.value(side, formula)?;
                let place = FieldRef { ty, bit_off: 0, bitfield_bits: 0 };
                layout::put(btf, &mut bytes, place, value).map_err(refuse)?;
            }
            // Without a BTF type, a map's key or value is a plain integer.
            (Content::Whole(formula), None) => {
                let value = self.value(side, formula)?;
                let len = bytes.len().min(16);
                bytes[..len].copy_from_slice(&value.to_le_bytes()[..len]);
            }
            (Content::Fields(fields), Some(ty)) => {
                let map = |field: String, why: String| RecipeErrorKind::Context {
                    program: "an element".into(),
                    field,
                    why,
                };
                self.fill(side, ty, &mut bytes, fields, map)?;
            }
            (Content::Fields(_), None) => return Err(refuse("its elements have no type".into())),
        }
        Ok(bytes)
    }

    fn fill(
        &self,
        side: &ObjectState<'_>,
        ty: TypeId,
        bytes: &mut [u8],
        fields: &[Assignment],
        wrong: impl Fn(String, String) -> RecipeErrorKind,
    ) -> RecipeResult<()> {
        let btf = &side.object().btf;
        for Assignment { target, value: formula } in fields {
            let steps = self.steps(side, target, &formula.place)?;
            let value = self.value(side, formula)?;
            let put = layout::field(btf, ty, &target.name, &steps)
                .and_then(|found| layout::put(btf, bytes, found, value));
            put.map_err(|why| {
                let field = path_text(&target.name, &steps);
                RecipeError::at(&formula.place, wrong(field, why))
            })?;
        }
        Ok(())
    }

    fn cpu(&self, side: &ObjectState<'_>, formula: &Formula) -> RecipeResult<CpuId> {
        let value = self.value(side, formula)?;
        let nr_cpus = self.subject.machine.topology.nr_cpus();
        let found = u32::try_from(value).ok().filter(|cpu| (*cpu as usize) < nr_cpus);
        found.map(CpuId).ok_or_else(|| {
            let why = format!("the machine has no CPU {value}");
            RecipeError::at(&formula.place, RecipeErrorKind::Required(why))
        })
    }
}

/// Returns the bytes of a map's element, one item per copy: in a per-CPU map, the copy of `cpu` if
/// given or else each CPU's copy; in another map, the only copy. An element that does not exist is
/// all zeros.
fn element(
    side: &ObjectState<'_>,
    map: usize,
    key: &[u8],
    size: u32,
    cpu: Option<CpuId>,
) -> Result<Vec<Vec<u8>>, i64> {
    let ObjectState::Loaded(frontend) = side else { return Ok(Vec::new()) };
    let size = size as usize;
    let bytes = match frontend.lookup(map, key, cpu) {
        Err(ENOENT) if cpu.is_some() => vec![0; size],
        Err(ENOENT) => vec![0; frontend.value_len(map)],
        found => found?,
    };
    let per_cpu = cpu.is_none() && frontend.is_per_cpu(map);
    let stride = if per_cpu { size.next_multiple_of(8) } else { size };
    Ok(bytes.chunks(stride.max(1)).map(|copy| copy[..size.min(copy.len())].to_vec()).collect())
}

fn is_percpu(side: &ObjectState<'_>, map: usize) -> bool {
    matches!(side, ObjectState::Loaded(frontend) if frontend.is_per_cpu(map))
}

fn type_named(btf: &Btf, name: &str) -> Option<TypeId> {
    let kinds = [BtfKind::Struct, BtfKind::Union, BtfKind::Typedef, BtfKind::Int];
    kinds.into_iter().find_map(|kind| btf.find(name, kind))
}

/// Writes a field of a value in the arena, as user space would through its mapping. `address` is
/// the address of the value.
fn poke(
    frontend: &mut dyn Frontend,
    address: u64,
    field: FieldRef,
    value: i128,
) -> Result<(), String> {
    let at = address.checked_add(field.byte_off()).ok_or("no address")?;
    let len = frontend.object().btf.size_of(field.ty).map_err(|e| e.to_string())?;
    let place = FieldRef { bit_off: field.bit_off % 8, ..field };
    let mut bytes = frontend.read_arena(at, len)?;
    layout::put(&frontend.object().btf, &mut bytes, place, value)?;
    frontend.write_arena(at, &bytes)
}

/// Creates `slots` maps like the template of a map of maps, and puts them into the first slots of
/// the map of maps.
fn fill_map_of_maps(
    frontend: &mut dyn Frontend,
    map: &str,
    slots: u64,
    place: &SourcePos,
) -> RecipeResult<()> {
    let refuse =
        |why: String| RecipeError::at(place, RecipeErrorKind::Map { map: map.to_owned(), why });
    let Some(index) = frontend.object().map(map) else {
        return Err(no_map(frontend.object(), place, map));
    };
    let slots = slots.min(u64::from(u32::MAX)) as u32;
    frontend.fill_map_of_maps(index, slots).map_err(refuse)
}
