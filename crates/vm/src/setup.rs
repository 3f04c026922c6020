// SPDX-License-Identifier: GPL-2.0-only
//! A kernel for guests: found through the machine's apt, checked, and kept in the user's cache.
//!
//! Owns: the contents of the cache. Does not: install anything, need root, or change the machine's
//! apt.
//!
//! ```text
//! CACHE/kernel/RELEASE/image     the kernel, unpacked if we can: it boots faster
//! CACHE/kernel/RELEASE/modules   its modules for KVM (see nested.rs), if it has some
//! CACHE/kernel/RELEASE/hash      of the image, compared whenever it is used
//! CACHE/kernel/current           the release that `find` returns; replaced in one step, last
//! CACHE/kernel/.new-PID          a kernel that is being prepared
//! ```

mod apt;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use scxlab_machine::hash::hash_bytes;
use thiserror::Error;

use crate::error::VmError;
use crate::image;
use crate::nested;

/// A kernel that is ready to boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelImage {
    /// Path of the image, for [`crate::VmSpec::kernel`].
    pub image: PathBuf,
    /// Release of the kernel.
    pub release: String,
    /// Path of the kernel's configuration, if known: programs may ask for options.
    pub config: Option<PathBuf>,
}

/// Returns the configuration file that belongs to an image, where distributions put it.
pub fn config_of(image: &Path) -> Option<PathBuf> {
    let name = image.file_name()?.to_str()?;
    let named = name.strip_prefix("vmlinuz").or_else(|| name.strip_prefix("vmlinux"));
    let names = ["config".to_owned(), format!("config{}", named.unwrap_or_default())];
    names.iter().rev().map(|name| image.with_file_name(name)).find(|path| path.is_file())
}

/// Why no kernel could be prepared or found.
#[derive(Debug, Error)]
pub enum SetupError {
    /// There is no directory for the cache.
    #[error("neither XDG_CACHE_HOME nor HOME is set: there is nowhere to keep a kernel")]
    NoCache,
    /// A file of the kernel cache, or one to be copied into it, cannot be accessed.
    #[error("{path}: {why}")]
    Cache {
        /// Path of the file.
        path: PathBuf,
        /// Error of the access.
        #[source]
        why: io::Error,
    },
    /// The cached kernel image has changed since it was prepared.
    #[error(
        "the prepared kernel {path} is damaged (its checksum differs): run `scxlab vm setup` again"
    )]
    Damaged {
        /// Path of the kernel image.
        path: PathBuf,
    },
    /// Debian offers a package in the pinned version, but not with the pinned checksum.
    #[error(
        "{package}: its SHA-256 in the suite's index is {found}, not the one that was pinned for it: the archive is not to be trusted, or \
         the pin is wrong"
    )]
    Sum {
        /// The package and its version.
        package: String,
        /// The package's checksum in the suite's index.
        found: String,
    },
    /// One of Debian's tools is missing, without which Debian's kernel cannot be fetched.
    #[error(
        "preparing a kernel needs Debian's {tool}, which is not installed: name a kernel with sched_ext and BTF by --kernel"
    )]
    NotDebian {
        /// Name of the missing tool.
        tool: &'static str,
    },
    /// Kernels are prepared for x86-64 only.
    #[error("a kernel is prepared for x86-64 only, and this is {arch}")]
    Architecture {
        /// Architecture that this executable is built for.
        arch: &'static str,
    },
    /// Debian's keys, with which apt verifies signatures, are missing.
    #[error("Debian's keys are missing: install debian-archive-keyring")]
    NoKeyring,
    /// The machine's apt sources name no Debian archive.
    #[error("this machine's apt sources name no Debian archive: name a kernel by --kernel")]
    NoMirror,
    /// A tool that `scxlab vm setup` calls failed.
    #[error("{what} failed: {said}")]
    Step {
        /// The command that failed.
        what: String,
        /// The end of the tool's output.
        said: String,
    },
    /// Debian's archive, a package or an image lacks an expected part, which the text names.
    #[error("{0}")]
    Missing(String),
    /// The fetched or given file is not a usable kernel image.
    #[error(transparent)]
    Image(#[from] VmError),
}

/// Returns this project's folder in the user's cache.
pub fn cache_dir() -> Result<PathBuf, SetupError> {
    let dir = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = dir("XDG_CACHE_HOME").or_else(|| Some(dir("HOME")?.join(".cache")));
    Ok(base.ok_or(SetupError::NoCache)?.join("scxlab"))
}

/// Returns the prepared kernel, if there is one; reads its image and compares the checksum.
pub fn find(cache: &Path) -> Result<Option<KernelImage>, SetupError> {
    let current = cache.join("kernel/current");
    let release = match fs::read_to_string(&current) {
        Ok(release) => release.trim().to_owned(),
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(SetupError::Cache { path: current, why }),
    };
    let dir = cache.join("kernel").join(&release);
    let image = dir.join("image");
    let read = |path: &Path| {
        fs::read(path).map_err(|why| SetupError::Cache { path: path.to_owned(), why })
    };
    let wanted = read(&dir.join("hash"))?;
    if hash_line(&read(&image)?).as_bytes() != wanted {
        return Err(SetupError::Damaged { path: image });
    }
    let config = config_of(&image);
    Ok(Some(KernelImage { image, release, config }))
}

/// Fetches a kernel that Debian has backported, checks it and keeps it: the pinned version, or the
/// newest if Debian no longer has that version. Calls `say` at each step.
pub fn prepare(cache: &Path, say: &mut dyn FnMut(&str)) -> Result<KernelImage, SetupError> {
    let work = Work::new(cache)?;
    let apt::Fetched { image, config, modules } = apt::fetch(&work.dir, say)?;
    say("checking the image");
    adopt(cache, &image, config.as_deref(), &modules)
}

/// Keeps a copy of an existing image, as if `prepare` had fetched it.
pub fn adopt(
    cache: &Path,
    image: &Path,
    config: Option<&Path>,
    modules: &[PathBuf],
) -> Result<KernelImage, SetupError> {
    image::check(image)?;
    let facts = image::inspect(image)?;
    let unnamed = || SetupError::Missing(format!("{} does not say its release", image.display()));
    let release = facts.release.filter(|release| is_file_name(release)).ok_or_else(unnamed)?;
    let work = Work::new(cache)?;
    let at = |path: PathBuf| move |why| SetupError::Cache { path, why };
    let data = match facts.vmlinux {
        Some(vmlinux) => vmlinux,
        None => fs::read(image).map_err(at(image.to_owned()))?,
    };
    let new = work.dir.join("kernel");
    fs::create_dir(&new).map_err(at(new.clone()))?;
    for (name, data) in [("image", data.as_slice()), ("hash", hash_line(&data).as_bytes())] {
        fs::write(new.join(name), data).map_err(at(new.join(name)))?;
    }
    if let Some(config) = config {
        fs::copy(config, new.join("config")).map_err(at(config.to_owned()))?;
    }
    let folder = new.join(nested::FOLDER);
    fs::create_dir(&folder).map_err(at(folder.clone()))?;
    for module in modules {
        let name = module.file_name().unwrap_or_default();
        fs::copy(module, folder.join(name)).map_err(at(module.clone()))?;
    }
    let place = cache.join("kernel").join(&release);
    match fs::remove_dir_all(&place) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(at(place)(why)),
        _ => {}
    }
    fs::rename(&new, &place).map_err(at(place.clone()))?;
    // From the last rename on, `find` returns the new kernel; a rename is atomic.
    let current = work.dir.join("current");
    fs::write(&current, &release).map_err(at(current.clone()))?;
    fs::rename(&current, cache.join("kernel/current")).map_err(at(current))?;
    let image = place.join("image");
    let config = config_of(&image);
    Ok(KernelImage { image, release, config })
}

/// A working directory, which is removed when this value is dropped. If a killed process left such
/// a directory, the next setup removes it.
struct Work {
    dir: PathBuf,
}

impl Work {
    fn new(cache: &Path) -> Result<Work, SetupError> {
        let base = cache.join("kernel");
        let make = |path: &Path| {
            fs::create_dir_all(path).map_err(|why| SetupError::Cache { path: path.to_owned(), why })
        };
        make(&base)?;
        remove_abandoned(&base);
        // The number in the directory's name is needed, because `prepare` still has its directory
        // when it calls `adopt`, which makes another one.
        let free = |n: &u32| !base.join(work_name(*n)).exists();
        let dir = base.join(work_name((0..).find(free).expect("one of four billion is free")));
        make(&dir)?;
        Ok(Work { dir })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // If the directory cannot be removed now, the next setup removes it.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn work_name(n: u32) -> String {
    format!(".new-{}-{n}", std::process::id())
}

fn remove_abandoned(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(".new-").and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn hash_line(data: &[u8]) -> String {
    format!("{:016x} {}\n", hash_bytes(data), data.len())
}

fn is_file_name(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('.') && !text.contains('/')
}

#[cfg(test)]
mod tests;
