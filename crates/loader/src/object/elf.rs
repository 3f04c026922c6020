// SPDX-License-Identifier: GPL-2.0-only
//! The ELF container: sections, symbols and relocations, whose section indices are in range.
//!
//! Owns: everything that touches the `object` crate.
//! Does not: know what a section is for.

use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{FileHeader, Rel, SectionHeader, SectionTable, Sym, SymbolTable};

use rustc_hash::FxHashMap;

use super::error::ObjectErrorKind;
use crate::btf::Btf;

/// Largest number of symbols of an object, and of relocations of a section. Real objects have a few
/// thousand.
const MAX_SYMBOLS: usize = 1 << 20;
const MAX_RELOCS: usize = 1 << 20;

pub type SectionId = usize;

pub struct Section<'a> {
    pub name: &'a str,
    flags: elf::SectionFlags,
    kind: elf::SectionType,
    pub size: u64,
    pub align: u64,
    data: &'a [u8],
}

impl Section<'_> {
    /// Whether the section holds instructions. Debug sections do not, whatever their flags say, as
    /// in libbpf's `is_sec_name_dwarf()`.
    pub fn is_code(&self) -> bool {
        !self.name.starts_with(".debug_")
            && self.kind == elf::SHT_PROGBITS
            && self.flags.0 & elf::SHF_EXECINSTR.0 != 0
    }

    /// Whether the section holds data whose contents are in the file. As in libbpf, a section of
    /// another type is none, whatever its name.
    pub fn is_data(&self) -> bool {
        self.kind == elf::SHT_PROGBITS && !self.is_code() && self.size > 0
    }

    /// Whether the section holds data that are zero and not in the file.
    pub fn is_zeroed(&self) -> bool {
        self.kind == elf::SHT_NOBITS && self.size > 0
    }
}

#[derive(Clone, Copy)]
pub struct Symbol<'a> {
    pub name: &'a str,
    pub value: u64,
    pub size: u64,
    /// Section that defines the symbol; None if the symbol is undefined or in a reserved section.
    pub section: Option<SectionId>,
    pub undefined: bool,
    pub is_func: bool,
    pub weak: bool,
    pub local: bool,
    pub no_type: bool,
}

/// One relocation of a section: a byte offset in the section, and the index of a symbol.
#[derive(Clone, Copy)]
pub struct RawReloc {
    pub offset: u64,
    pub symbol: usize,
}

type RelocSection<'a> = (SectionId, &'a [elf::Rel64<LE>]);

pub struct Elf<'a> {
    pub sections: Vec<Section<'a>>,
    pub symbols: Vec<Symbol<'a>>,
    /// Relocation sections: (section that they apply to, records).
    reloc_sections: Vec<RelocSection<'a>>,
    by_name: FxHashMap<&'a str, SectionId>,
}

impl<'a> Elf<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Elf<'a>, ObjectErrorKind> {
        let elf_err = |e: object::read::Error| ObjectErrorKind::Elf(e.to_string());
        let header = elf::FileHeader64::<LE>::parse(bytes).map_err(elf_err)?;
        header.endian().map_err(elf_err)?;
        let table = header.sections(LE, bytes).map_err(elf_err)?;
        // libbpf does not look at the first header, which the format leaves without a section.
        if let Some(first) = header.section_headers(LE, bytes).map_err(elf_err)?.first()
            && first.sh_type(LE) != elf::SHT_NULL
        {
            let what = format!("section 0 has type {}, not SHT_NULL", first.sh_type(LE).0);
            return Err(ObjectErrorKind::Elf(what));
        }
        let symbols = table.symbols(LE, bytes, elf::SHT_SYMTAB).map_err(elf_err)?;
        let mut sections = Vec::with_capacity(table.len());
        for header in table.iter() {
            sections.push(read_section(&table, header, bytes)?);
        }
        let symbols = read_symbols(&symbols, sections.len())?;
        let reloc_sections = read_relocs(&table, bytes)?;
        let mut by_name = FxHashMap::default();
        for (id, section) in sections.iter().enumerate() {
            by_name.entry(section.name).or_insert(id);
        }
        Ok(Elf { sections, symbols, reloc_sections, by_name })
    }

    /// Refuses files for another machine than BPF. A kernel image that is read only for its types
    /// may be for any machine and is not checked.
    pub fn check_machine(bytes: &[u8]) -> Result<(), ObjectErrorKind> {
        let header = elf::FileHeader64::<LE>::parse(bytes)
            .map_err(|e| ObjectErrorKind::Elf(e.to_string()))?;
        let machine = header.e_machine.get(LE);
        if machine != elf::EM_BPF {
            return Err(ObjectErrorKind::Machine { machine: machine.0 });
        }
        Ok(())
    }

    pub fn section_by_name(&self, name: &str) -> Option<SectionId> {
        self.by_name.get(name).copied()
    }

    /// Contents of a section; empty if it has no bytes in the file.
    pub fn data(&self, id: SectionId) -> &'a [u8] {
        self.sections[id].data
    }

    /// Relocations that apply to a section, in file order.
    pub fn relocs(&self, id: SectionId) -> impl Iterator<Item = RawReloc> + '_ {
        self.reloc_sections.iter().filter(move |(s, _)| *s == id).flat_map(|(_, rels)| {
            rels.iter()
                .map(|rel| RawReloc { offset: rel.r_offset(LE), symbol: rel.r_sym(LE) as usize })
        })
    }

    pub fn symbol(&self, index: usize) -> Option<&Symbol<'a>> {
        self.symbols.get(index)
    }

    /// Reads the type table, and fills in the offsets of section variables. The compiler leaves the
    /// offsets of named variables to relocations.
    pub fn relocated_btf(&self, id: SectionId) -> Result<Btf, ObjectErrorKind> {
        let mut btf = Btf::parse(self.data(id))?;
        for reloc in self.relocs(id) {
            let bad = |what| ObjectErrorKind::BtfReloc { offset: reloc.offset, what };
            let symbol = self.symbol(reloc.symbol).ok_or_else(|| bad("has no symbol"))?;
            if !btf.move_section_var(reloc.offset, symbol.value as u32) {
                return Err(bad("is of something else than a section variable's offset"));
            }
        }
        Ok(btf)
    }

    pub fn license(&self) -> String {
        let data = self.section_by_name("license").map_or(&[][..], |id| self.data(id));
        let end = data.iter().position(|b| *b == 0).unwrap_or(data.len());
        String::from_utf8_lossy(&data[..end.min(128)]).into_owned()
    }
}

type ElfHeader = elf::FileHeader64<LE>;

fn read_section<'a>(
    table: &SectionTable<'a, ElfHeader>,
    header: &'a elf::SectionHeader64<LE>,
    bytes: &'a [u8],
) -> Result<Section<'a>, ObjectErrorKind> {
    let elf_err = |e: object::read::Error| ObjectErrorKind::Elf(e.to_string());
    let name = table.section_name(LE, header).map_err(elf_err)?;
    let kind = header.sh_type(LE);
    let name = std::str::from_utf8(name)
        .map_err(|_| ObjectErrorKind::Elf("bad section name".to_owned()))?;
    Ok(Section {
        name,
        flags: header.sh_flags(LE),
        kind,
        size: header.sh_size(LE),
        align: header.sh_addralign(LE).max(1),
        data: header.data(LE, bytes).map_err(elf_err)?,
    })
}

fn read_symbols<'a>(
    table: &SymbolTable<'a, ElfHeader>,
    sections: usize,
) -> Result<Vec<Symbol<'a>>, ObjectErrorKind> {
    if table.len() > MAX_SYMBOLS {
        return Err(ObjectErrorKind::TooMany {
            section: ".symtab".to_owned(),
            things: "symbols",
            max: MAX_SYMBOLS,
        });
    }
    let read = |sym: &'a elf::Sym64<LE>| {
        let name = table
            .symbol_name(LE, sym)
            .ok()
            .and_then(|n| std::str::from_utf8(n).ok())
            .ok_or_else(|| ObjectErrorKind::Elf("bad symbol name".to_owned()))?;
        let shndx = usize::from(sym.st_shndx(LE).0);
        Ok(Symbol {
            name,
            value: sym.st_value(LE),
            size: sym.st_size(LE),
            section: (shndx != 0 && shndx < sections).then_some(shndx),
            undefined: shndx == 0,
            is_func: sym.st_type() == elf::STT_FUNC,
            weak: sym.st_bind() == elf::STB_WEAK,
            local: sym.st_bind() == elf::STB_LOCAL,
            no_type: sym.st_type() == elf::STT_NOTYPE,
        })
    };
    table.iter().map(read).collect()
}

fn read_relocs<'a>(
    table: &SectionTable<'a, ElfHeader>,
    bytes: &'a [u8],
) -> Result<Vec<RelocSection<'a>>, ObjectErrorKind> {
    let elf_err = |e: object::read::Error| ObjectErrorKind::Elf(e.to_string());
    let mut found = Vec::new();
    for header in table.iter() {
        let Some((rels, _)) = header.rel(LE, bytes).map_err(elf_err)? else {
            continue;
        };
        let target = header.sh_info(LE) as usize;
        if target == 0 || target >= table.len() {
            return Err(ObjectErrorKind::Elf(
                "relocations for a section that does not exist".to_owned(),
            ));
        }
        if rels.len() > MAX_RELOCS {
            return Err(ObjectErrorKind::TooMany {
                section: String::from_utf8_lossy(
                    table.section_name(LE, header).unwrap_or_default(),
                )
                .into_owned(),
                things: "relocations",
                max: MAX_RELOCS,
            });
        }
        found.push((target, rels));
    }
    Ok(found)
}
