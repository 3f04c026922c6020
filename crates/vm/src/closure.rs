// SPDX-License-Identifier: GPL-2.0-only
//! An executable with all files that it needs to start: interpreter and libraries, recursively.
//!
//! Owns: the search for libraries, and the paths under which the guest finds them.
//! Does not: find files that a program opens later (`dlopen`, data files): list those as files of
//! their own.
//!
//! A library keeps the host's path, and the host's loader cache is copied too, so that the guest's
//! loader finds each library where the host's did. A script brings its interpreter, but not the
//! programs that it calls.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::elf::{self, ElfError};
use crate::ldcache;

const CACHE: &str = "/etc/ld.so.cache";
/// Directories that a dynamic loader searches after its cache, in several distributions, which
/// differ in the loader's `$LIB`.
const DEFAULT_DIRS: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];
/// Maximum depth of scripts that are the interpreters of scripts, the same as the kernel's limit.
const SCRIPTS_MAX: usize = 4;

/// Why a program cannot be copied into the guest.
#[derive(Debug, Error)]
pub enum ClosureError {
    /// The program or a file that it needs cannot be read.
    #[error("{path}: {why}")]
    Read {
        /// Path of the file that cannot be read.
        path: PathBuf,
        /// Error of the read.
        #[source]
        why: io::Error,
    },
    /// The file is neither an executable of this machine nor a script.
    #[error("{path}: {why}")]
    Form {
        /// Path of the file.
        path: PathBuf,
        /// Reason why the file is no executable of this machine.
        #[source]
        why: ElfError,
    },
    /// A required library does not exist on this host.
    #[error("{path} needs {library}, which is not on this host")]
    Missing {
        /// The file that needs the library.
        path: PathBuf,
        /// Name of the missing library.
        library: String,
    },
    /// The program's path on this host cannot be its path in the guest.
    #[error("{path}: a program's path must be absolute, plain and UTF-8")]
    Path {
        /// The program's path on this host.
        path: PathBuf,
    },
}

/// Files that a program in the guest needs: contents by path.
#[derive(Debug, Default)]
pub(crate) struct Closure {
    pub files: BTreeMap<String, Vec<u8>>,
    cache: BTreeMap<String, String>,
}

impl Closure {
    /// Returns a closure without programs. If this host has a cache of the dynamic linker
    /// (`/etc/ld.so.cache`), the closure contains it and uses it to find libraries.
    pub fn new() -> Closure {
        let mut closure = Closure::default();
        // A missing cache is no error, because not every C library has one.
        if let Ok(data) = std::fs::read(CACHE) {
            closure.cache = ldcache::parse(&data);
            closure.files.insert(CACHE.to_owned(), data);
        }
        closure
    }

    /// Adds a program under its own path, with all files that it needs.
    pub fn program(&mut self, path: &Path) -> Result<(), ClosureError> {
        self.program_or_script(path, SCRIPTS_MAX)
    }

    /// Adds the files that an executable needs, but not the executable itself. `data` is the
    /// executable's contents, found at `path`.
    pub fn needs_of(&mut self, path: &Path, data: &[u8]) -> Result<(), ClosureError> {
        // As the loader does, breadth first: a library that is there already serves all that need
        // one of its name, wherever they would search for it themselves.
        let mut loaded = BTreeSet::new();
        let mut queue = VecDeque::from(self.load(path, data, &mut loaded)?);
        while let Some(library) = queue.pop_front() {
            let data = self.file(&library)?.to_vec();
            queue.extend(self.load(&library, &data, &mut loaded)?);
        }
        Ok(())
    }

    /// Adds the libraries that a file needs itself, and that are not among the names in `loaded`.
    /// Returns their paths.
    fn load(
        &mut self,
        path: &Path,
        data: &[u8],
        loaded: &mut BTreeSet<String>,
    ) -> Result<Vec<PathBuf>, ClosureError> {
        let form = |why| ClosureError::Form { path: path.to_owned(), why };
        let wants = elf::wants(data).map_err(form)?;
        if let Some(interpreter) = &wants.interpreter {
            self.file(Path::new(interpreter))?;
        }
        let mut found = Vec::new();
        for name in wants.needed {
            if !loaded.insert(name.clone()) {
                continue;
            }
            let library = self.find(path, &wants.run_path, &name);
            let missing = || ClosureError::Missing { path: path.to_owned(), library: name };
            let library = library.ok_or_else(missing)?;
            self.file(&library)?;
            found.push(library);
        }
        Ok(found)
    }

    fn program_or_script(&mut self, path: &Path, scripts: usize) -> Result<(), ClosureError> {
        let data = read(path)?;
        if self.files.contains_key(text(path)?) {
            return Ok(());
        }
        match script_interpreter(&data) {
            Some(interpreter) if scripts > 0 => {
                self.program_or_script(Path::new(&interpreter), scripts - 1)?;
            }
            _ => self.needs_of(path, &data)?,
        }
        self.files.insert(text(path)?.to_owned(), data);
        Ok(())
    }

    /// Adds a library or dynamic loader under the path by which it is found, even if that path is a
    /// symbolic link. Returns its contents.
    fn file(&mut self, path: &Path) -> Result<&[u8], ClosureError> {
        Ok(match self.files.entry(text(path)?.to_owned()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(read(path)?),
        })
    }

    /// Searches for a library in the loader's order, but not in directories from the user's
    /// environment.
    fn find(&self, user: &Path, run_path: &[String], name: &str) -> Option<PathBuf> {
        if name.contains('/') {
            return Some(PathBuf::from(name)).filter(|path| path.exists());
        }
        let own_dir = user.parent().map(|dir| dir.to_string_lossy().into_owned());
        let origin = own_dir.unwrap_or_default();
        let run_dirs = run_path.iter().map(|dir| {
            PathBuf::from(dir.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin))
        });
        let cached = self.cache.get(name).map(PathBuf::from);
        let default_dirs = DEFAULT_DIRS.iter().map(PathBuf::from);
        let mut candidates = run_dirs
            .filter(|dir| dir.is_absolute())
            .map(|dir| plain(&dir.join(name)))
            .chain(cached)
            .chain(default_dirs.map(|dir| dir.join(name)));
        candidates.find(|path| path.is_file())
    }
}

/// Turns `/a/b/../c` into `/a/c`, because the guest's archive takes no path with `.` or `..`.
fn plain(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                result.pop();
            }
            std::path::Component::CurDir => {}
            part => result.push(part),
        }
    }
    result
}

/// Returns the program that a script's first line names.
fn script_interpreter(data: &[u8]) -> Option<String> {
    let line = data.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    Some(line.split_whitespace().next()?.to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>, ClosureError> {
    std::fs::read(path).map_err(|why| ClosureError::Read { path: path.to_owned(), why })
}

fn text(path: &Path) -> Result<&str, ClosureError> {
    let absolute = Some(path).filter(|path| path.is_absolute()).and_then(Path::to_str);
    absolute.ok_or_else(|| ClosureError::Path { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_brings_its_loader_and_libraries() {
        let mut closure = Closure::new();
        closure.program(Path::new("/bin/sh")).unwrap();
        let paths: Vec<&str> = closure.files.keys().map(String::as_str).collect();
        assert!(paths.contains(&"/bin/sh"));
        assert!(paths.iter().any(|path| path.contains("/ld-linux")), "{paths:?}");
        assert!(paths.iter().any(|path| path.ends_with("/libc.so.6")), "{paths:?}");
        let nr = closure.files.len();
        closure.program(Path::new("/bin/sh")).unwrap();
        assert_eq!(closure.files.len(), nr);
    }

    #[test]
    fn a_script_brings_its_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        std::fs::write(&script, "#! /bin/sh -e\ntrue\n").unwrap();
        let mut closure = Closure::new();
        closure.program(&script).unwrap();
        assert!(closure.files.contains_key("/bin/sh"));
        assert!(closure.files.contains_key(script.to_str().unwrap()));
    }

    #[test]
    fn a_script_that_interprets_itself_ends() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        std::fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        let refused = Closure::new().program(&script);
        assert!(matches!(refused, Err(ClosureError::Form { .. })), "{refused:?}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let refused = Closure::new().program(&dir.path().join("nothing")).unwrap_err();
        assert!(refused.to_string().contains("nothing"), "{refused}");
        let text = dir.path().join("text");
        std::fs::write(&text, "no program").unwrap();
        let refused = Closure::new().program(&text);
        assert!(matches!(refused, Err(ClosureError::Form { .. })), "{refused:?}");
        assert!(matches!(
            Closure::new().program(Path::new("Cargo.toml")),
            Err(ClosureError::Path { .. })
        ));
    }

    #[test]
    fn a_missing_library_is_named_with_who_needs_it() {
        let mut data = std::fs::read("/proc/self/exe").unwrap();
        let at = data.windows(10).position(|window| window == b"libc.so.6\0").unwrap();
        data[at..at + 9].copy_from_slice(b"libq.so.6");
        let refused = Closure::new().needs_of(Path::new("/some/program"), &data).unwrap_err();
        assert_eq!(refused.to_string(), "/some/program needs libq.so.6, which is not on this host");
    }

    /// `libouter.so` finds `libinner.so` only because the program, which knows where both are, has
    /// loaded it.
    #[test]
    fn a_library_finds_what_the_program_has_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let compile = |source: &str, args: &[&str]| {
            std::fs::write(dir.path().join("source.c"), source).unwrap();
            let cc = std::process::Command::new("cc").current_dir(&dir).args(args).output();
            let output = cc.expect("cc, with which Rust links");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        let library = ["-shared", "-fPIC", "source.c", "-Wl,--no-as-needed", "-L."];
        compile("int inner;", &[&library[..], &["-o", "libinner.so"]].concat());
        compile("int outer;", &[&library[..], &["-linner", "-o", "libouter.so"]].concat());
        let program = ["source.c", "-Wl,--no-as-needed,--enable-new-dtags,-rpath,$ORIGIN", "-L."];
        let needs = ["-louter", "-linner", "-o", "program"];
        compile("int main(void) { return 0; }", &[&program[..], &needs].concat());
        let mut closure = Closure::new();
        closure.program(&dir.path().join("program")).unwrap();
        for name in ["libinner.so", "libouter.so"] {
            assert!(closure.files.contains_key(dir.path().join(name).to_str().unwrap()), "{name}");
        }
    }

    #[test]
    fn paths_become_plain() {
        assert_eq!(plain(Path::new("/a/./b/../c")), Path::new("/a/c"));
    }
}
