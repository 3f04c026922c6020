// SPDX-License-Identifier: GPL-2.0-only
//! Kernel images: their form, and their properties that can be read without booting.
//!
//! Owns: the header of a bzImage, its payload, and the detection of sched_ext and BTF.
//! Does not: boot; the guest reports the properties that an image does not show.
//! Models: `Documentation/arch/x86/boot.rst`, protocol 2.08 and later.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use object::elf::{FileHeader64, NoteType};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSection};
use thiserror::Error;

use crate::error::VmError;

/// Number of bytes that `check` reads to find the header of a bzImage or of an ELF file.
const HEAD_BYTES: u64 = 4096;
const ELF_MAGIC: &[u8] = b"\x7fELF";
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Maximum size in bytes of a bzImage's unpacked payload. A larger payload counts as damaged.
const PAYLOAD_BYTES_MAX: u64 = 1 << 30;

/// Why a file is not a bootable kernel.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ImageError {
    /// The file is neither a bzImage nor an ELF kernel that boots through PVH.
    #[error("it is no kernel image that QEMU boots (a bzImage, or vmlinux built with CONFIG_PVH)")]
    Form,
    /// The bzImage's payload is not where the image's header says, cannot be unpacked, or is no ELF
    /// file.
    #[error("its payload is damaged: {0}")]
    Payload(String),
    /// The bzImage's payload is not packed with Zstandard.
    #[error("its payload is packed in a form that is not read here")]
    Packing,
    /// The kernel lacks features that a scheduler needs.
    #[error("it has no {}", .0.join(" and no "))]
    Lacks(Vec<&'static str>),
}

/// Properties of a kernel image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The kernel's release, if the image contains it.
    pub release: Option<String>,
    /// The ELF kernel; None if it lies in a bzImage whose payload is not packed with Zstandard.
    pub vmlinux: Option<Vec<u8>>,
}

/// Refuses a file that QEMU could not boot.
pub fn check(path: &Path) -> Result<(), VmError> {
    let no_kernel = |why| VmError::NoKernel { path: path.to_owned(), why };
    let mut data = Vec::new();
    let mut file = File::open(path).map_err(no_kernel)?;
    file.by_ref().take(HEAD_BYTES).read_to_end(&mut data).map_err(no_kernel)?;
    let boots = if data.starts_with(ELF_MAGIC) {
        file.read_to_end(&mut data).map_err(no_kernel)?;
        has_pvh_entry(&data)
    } else {
        BzHeader::of(&data).is_some()
    };
    let wrong = || VmError::Kernel { path: path.to_owned(), why: ImageError::Form };
    if boots { Ok(()) } else { Err(wrong()) }
}

/// Returns whether an ELF file has the note with the entry point for a hypervisor.
fn has_pvh_entry(data: &[u8]) -> bool {
    /// Type of the ELF note XEN_ELFNOTE_PHYS32_ENTRY, which holds the entry point.
    const PHYS32_ENTRY: NoteType = NoteType(18);
    let notes = || -> object::Result<bool> {
        let header = FileHeader64::<Endianness>::parse(data)?;
        let endian = header.endian()?;
        for segment in header.program_headers(endian, data)? {
            let Some(mut notes) = segment.notes(endian, data)? else { continue };
            while let Some(note) = notes.next()? {
                if note.name() == b"Xen" && note.n_type(endian) == PHYS32_ENTRY {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    };
    notes().unwrap_or(false)
}

/// Returns the properties of an image; refuses it if it lacks sched_ext or BTF.
pub fn inspect(path: &Path) -> Result<Facts, VmError> {
    let data =
        std::fs::read(path).map_err(|why| VmError::NoKernel { path: path.to_owned(), why })?;
    let wrong = |why| VmError::Kernel { path: path.to_owned(), why };
    let (release, vmlinux) = if data.starts_with(ELF_MAGIC) {
        (banner_release(&data), Some(data))
    } else {
        let header = BzHeader::of(&data).ok_or_else(|| wrong(ImageError::Form))?;
        match header.unpack(&data, PAYLOAD_BYTES_MAX) {
            Ok(vmlinux) => (header.release(&data), Some(vmlinux)),
            Err(ImageError::Packing) => (header.release(&data), None),
            Err(why) => return Err(wrong(why)),
        }
    };
    if let Some(vmlinux) = &vmlinux {
        check_features(vmlinux).map_err(wrong)?;
    }
    Ok(Facts { release, vmlinux })
}

/// Checks for BTF, which is a section, and for sched_ext, by the name of its ops structure in the
/// BTF strings.
fn check_features(vmlinux: &[u8]) -> Result<(), ImageError> {
    let elf: ElfFile64<'_, Endianness> =
        ElfFile64::parse(vmlinux).map_err(|why| ImageError::Payload(why.to_string()))?;
    let btf = elf.section_by_name(".BTF").and_then(|section| section.data().ok());
    let Some(btf) = btf.filter(|data| !data.is_empty()) else {
        return Err(ImageError::Lacks(vec!["BTF (CONFIG_DEBUG_INFO_BTF)"]));
    };
    if contains(btf, b"\0sched_ext_ops\0") {
        Ok(())
    } else {
        Err(ImageError::Lacks(vec!["sched_ext (CONFIG_SCHED_CLASS_EXT)"]))
    }
}

fn contains(data: &[u8], text: &[u8]) -> bool {
    find(data, text).is_some()
}

fn find(data: &[u8], text: &[u8]) -> Option<usize> {
    data.windows(text.len()).position(|window| window == text)
}

/// Returns the release from the kernel's banner line.
fn banner_release(vmlinux: &[u8]) -> Option<String> {
    const BANNER: &[u8] = b"Linux version ";
    let mut rest = vmlinux;
    // Skip other places in the kernel with the words "Linux version", after which no digit follows.
    while let Some(at) = find(rest, BANNER) {
        rest = &rest[at + BANNER.len()..];
        if rest.first().is_some_and(u8::is_ascii_digit) {
            let word = rest.split(|b| b.is_ascii_whitespace()).next()?;
            return std::str::from_utf8(word).ok().map(str::to_owned);
        }
    }
    None
}

/// Locations of a bzImage's parts, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BzHeader {
    version_at: usize,
    payload_at: usize,
    payload_len: usize,
}

impl BzHeader {
    fn of(data: &[u8]) -> Option<BzHeader> {
        let word = |at: usize| Some(u16::from_le_bytes(data.get(at..at + 2)?.try_into().ok()?));
        let long = |at: usize| Some(u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?));
        let is_one = word(0x1fe)? == 0xaa55 && data.get(0x202..0x206)? == b"HdrS";
        if !is_one || word(0x206)? < 0x208 {
            return None;
        }
        // Zero setup sectors stand for four, as in the first boot loaders.
        let setup_sectors = match data[0x1f1] {
            0 => 4,
            n => usize::from(n),
        };
        Some(BzHeader {
            version_at: usize::from(word(0x20e)?) + 0x200,
            payload_at: (setup_sectors + 1) * 512 + long(0x248)? as usize,
            payload_len: long(0x24c)? as usize,
        })
    }

    /// Returns the kernel's release, which is the first word of the image's version line.
    fn release(&self, data: &[u8]) -> Option<String> {
        let rest = data.get(self.version_at..)?;
        let line = rest.split(|&b| b == 0).next()?;
        let line = std::str::from_utf8(line).ok()?;
        line.split_whitespace().next().map(str::to_owned)
    }

    /// Unpacks the image's payload, which is damaged if it takes more than `max` bytes.
    fn unpack(&self, data: &[u8], max: u64) -> Result<Vec<u8>, ImageError> {
        let damaged = |why: String| ImageError::Payload(why);
        let end = self.payload_at.saturating_add(self.payload_len);
        let payload = data
            .get(self.payload_at..end)
            .ok_or_else(|| damaged("it ends past the file".to_owned()))?;
        if !payload.starts_with(ZSTD_MAGIC) {
            return Err(ImageError::Packing);
        }
        let stream = ruzstd::decoding::StreamingDecoder::new(payload)
            .map_err(|why| damaged(why.to_string()))?;
        let mut vmlinux = Vec::new();
        stream.take(max + 1).read_to_end(&mut vmlinux).map_err(|why| damaged(why.to_string()))?;
        if vmlinux.len() as u64 > max {
            return Err(damaged(format!("it takes more than {max} bytes when unpacked")));
        }
        Ok(vmlinux)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a bzImage around a payload.
    fn bz_image(payload: &[u8]) -> Vec<u8> {
        let mut data = vec![0; 1024];
        data[0x1f1] = 1;
        data[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
        data[0x202..0x206].copy_from_slice(b"HdrS");
        data[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
        data[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        data[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        let version = b"9.9.9-test (somebody) #1\0";
        data[0x300..0x300 + version.len()].copy_from_slice(version);
        data.extend_from_slice(payload);
        data
    }

    fn inspect_bytes(data: &[u8]) -> Result<Facts, VmError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, data).unwrap();
        inspect(&path)
    }

    fn refusal(data: &[u8]) -> ImageError {
        match inspect_bytes(data) {
            Err(VmError::Kernel { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }

    fn zstd(data: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(data, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn an_unread_packing_is_left_to_the_guest() {
        let facts = inspect_bytes(&bz_image(b"\xfd7zXZ\0")).unwrap();
        assert_eq!(facts, Facts { release: Some("9.9.9-test".to_owned()), vmlinux: None });
    }

    #[test]
    fn a_kernel_without_btf_is_refused() {
        let elf = std::fs::read("/proc/self/exe").unwrap();
        let refused = refusal(&bz_image(&zstd(&elf[..])));
        assert_eq!(refused, ImageError::Lacks(vec!["BTF (CONFIG_DEBUG_INFO_BTF)"]));
        assert_eq!(refusal(&elf), refused);
        assert!(!has_pvh_entry(&elf));
    }

    #[test]
    fn the_release_is_in_the_banner() {
        let data = b"..Linux version %s\0 Linux version 7.3.4+x (a@b) #1..";
        assert_eq!(banner_release(data).as_deref(), Some("7.3.4+x"));
        assert_eq!(banner_release(b"nothing"), None);
    }

    #[test]
    fn damage_is_named() {
        let mut cut = bz_image(&zstd(b"some kernel"));
        cut.truncate(cut.len() - 4);
        assert!(matches!(refusal(&cut), ImageError::Payload(_)));
        assert!(matches!(refusal(&bz_image(&zstd(b"some kernel"))), ImageError::Payload(_)));
        assert_eq!(refusal(b"no kernel"), ImageError::Form);
        assert_eq!(refusal(b""), ImageError::Form);
        let image = bz_image(&zstd(b"some kernel"));
        let header = BzHeader::of(&image).unwrap();
        assert_eq!(header.unpack(&image, 11), Ok(b"some kernel".to_vec()));
        let why = header.unpack(&image, 10).unwrap_err();
        assert!(why.to_string().contains("more than 10 bytes"), "{why}");
        for len in 0..1024 {
            assert!(BzHeader::of(&bz_image(b"")[..len]).is_none_or(|h| h.payload_at == 1024));
        }
    }
}
