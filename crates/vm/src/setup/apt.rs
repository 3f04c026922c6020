// SPDX-License-Identifier: GPL-2.0-only
//! Debian's backported kernel for virtual machines, fetched through an apt state of our own.
//!
//! Owns: the choice of package, its source and its verification. Does not: keep the result.
//! The server is the one that the machine's own sources name, with another suite; apt verifies the
//! signatures with the system's keys. `tools/kernel-objects.sh` does the same for the kernel's
//! source.
//!
//! The kernel is the version that this build of scxlab was tested with. Debian keeps one version at
//! a time; once the tested version is gone, `fetch` takes the newest instead and says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::SetupError;
use crate::nested;

const SUITE: &str = "trixie-backports";
/// Metapackage that depends on the newest kernel.
const META: &str = "linux-image-cloud-amd64";
/// Text of the pins, in which the lines `deb PACKAGE VERSION SHA256` pin Debian's packages.
const PINS: &str = include_str!("../../../../tools/pins.txt");
/// Paths of Debian's keyring; newer releases use the second name.
const KEYRINGS: [&str; 2] = [
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/debian-archive-keyring.pgp",
];
const TOOLS: [&str; 3] = ["apt-get", "apt-cache", "dpkg-deb"];
/// Number of lines of a tool's output that are shown, from its end.
const SAID_LINES: usize = 6;

/// The files of a fetched kernel.
pub(super) struct Fetched {
    pub image: PathBuf,
    /// Configuration, if found.
    pub config: Option<PathBuf>,
    /// Modules for KVM, if found.
    pub modules: Vec<PathBuf>,
}

/// Fetches a kernel into `dir`.
pub(super) fn fetch(dir: &Path, say: &mut dyn FnMut(&str)) -> Result<Fetched, SetupError> {
    if !cfg!(target_arch = "x86_64") {
        return Err(SetupError::Architecture { arch: std::env::consts::ARCH });
    }
    for tool in TOOLS {
        if !is_in_path(tool) {
            return Err(SetupError::NotDebian { tool });
        }
    }
    let keyring = KEYRINGS.into_iter().find(|path| Path::new(path).exists());
    let keyring = keyring.ok_or(SetupError::NoKeyring)?;
    let mirror = mirror()?;
    say(&format!("asking {SUITE} for its kernel"));
    let apt = Apt::new(dir, &mirror, keyring)?;
    apt.run("apt-get", &["-q", "update"])?;
    let packages = match apt.pinned()? {
        Some(packages) => packages,
        None => {
            say(&format!(
                "{SUITE} no longer has the kernel that this scxlab was tested with: taking its newest one"
            ));
            apt.newest()?
        }
    };
    say(&format!("downloading {}", packages.image));
    apt.run("apt-get", &["-q", "download", &packages.image])?;
    let others = || packages.config.iter().chain(&packages.modules);
    for package in others() {
        apt.run("apt-get", &["-q", "download", package])?;
    }
    say("unpacking");
    let image = apt.image(&packages.image)?;
    for package in others() {
        apt.unpack(package)?;
    }
    let unpacked = dir.join("unpacked");
    let is_config = |name: &str| name == "config" || name.starts_with("config-");
    let config = find_file(&unpacked, &is_config);
    let module = |name: String| find_file(&unpacked, &|found| found == name);
    Ok(Fetched { image, config, modules: nested::module_names().filter_map(module).collect() })
}

/// Packages to download, in apt's notation: a name, followed by `=` and a version if it is pinned.
struct Packages {
    image: String,
    /// Package of the kernel's configuration; None if the image's package contains it.
    config: Option<String>,
    /// Package of the kernel's modules; None if the image's package contains them.
    modules: Option<String>,
}

/// A package that is accepted only in this version and with this checksum.
#[derive(Debug, PartialEq, Eq)]
struct Pin<'a> {
    package: &'a str,
    version: &'a str,
    sha256: &'a str,
}

/// Returns the pin of the package whose name starts with `prefix`.
fn pin<'a>(pins: &'a str, prefix: &str) -> Option<Pin<'a>> {
    pins.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["deb", package, version, sha256] if package.starts_with(prefix) => {
            Some(Pin { package, version, sha256 })
        }
        _ => None,
    })
}

/// An apt that knows one suite and keeps its state in one directory.
struct Apt<'a> {
    dir: &'a Path,
    config: PathBuf,
}

impl<'a> Apt<'a> {
    fn new(dir: &'a Path, mirror: &str, keyring: &str) -> Result<Apt<'a>, SetupError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |why| SetupError::Cache { path, why }
        };
        for sub in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(sub)).map_err(at(&dir.join(sub)))?;
        }
        let config = dir.join("apt.conf");
        let sources = dir.join("debian.sources");
        fs::write(&sources, sources_text(mirror, keyring)).map_err(at(&sources))?;
        fs::write(&config, config_text(dir, &user())).map_err(at(&config))?;
        Ok(Apt { dir, config })
    }

    fn run(&self, tool: &str, args: &[&str]) -> Result<String, SetupError> {
        let mut command = Command::new(tool);
        command.args(args).current_dir(self.dir).env("APT_CONFIG", &self.config);
        run(&format!("{tool} {}", args.join(" ")), &mut command)
    }

    /// Returns the pinned kernel, if the suite still has it.
    fn pinned(&self) -> Result<Option<Packages>, SetupError> {
        let image = pin(PINS, "linux-binary-").map(|pin| self.offered(&pin)).transpose()?.flatten();
        let config = pin(PINS, "linux-base-").map(|pin| self.offered(&pin)).transpose()?.flatten();
        let modules = pin(PINS, "linux-modules-").map(|pin| self.offered(&pin)).transpose()?;
        let packages =
            |(image, config)| Packages { image, config: Some(config), modules: modules.flatten() };
        Ok(image.zip(config).map(packages))
    }

    /// Returns the package to download for a pin, if the suite has that version. The index that
    /// gives its checksum was signed, and apt compares the download with the index.
    fn offered(&self, pin: &Pin) -> Result<Option<String>, SetupError> {
        let wanted = format!("{}={}", pin.package, pin.version);
        let Ok(text) = self.run("apt-cache", &["show", &wanted]) else { return Ok(None) };
        let sum = text.lines().find_map(|line| line.strip_prefix("SHA256: "));
        match sum {
            Some(sum) if sum.trim() == pin.sha256 => Ok(Some(wanted)),
            Some(sum) => Err(SetupError::Sum { package: wanted, found: sum.trim().to_owned() }),
            None => Ok(None),
        }
    }

    fn newest(&self) -> Result<Packages, SetupError> {
        let release = self.release()?;
        let existing = |name: String| self.has(&name).then_some(name);
        Ok(Packages {
            image: self.package(&release),
            config: existing(format!("linux-base-{release}")),
            modules: existing(format!("linux-modules-{release}")),
        })
    }

    /// Returns the release of the newest kernel.
    fn release(&self) -> Result<String, SetupError> {
        let text = self.run("apt-cache", &["depends", META])?;
        let missing = || SetupError::Missing(format!("{SUITE} has no {META}"));
        release_of(&text).ok_or_else(missing)
    }

    /// Returns the name of the package with the image. Newer kernels have another name for it than
    /// older kernels.
    fn package(&self, release: &str) -> String {
        let newer = format!("linux-binary-{release}");
        if self.has(&newer) { newer } else { format!("linux-image-{release}") }
    }

    fn has(&self, package: &str) -> bool {
        self.run("apt-cache", &["show", package]).is_ok_and(|text| !text.trim().is_empty())
    }

    /// Returns the image inside a downloaded package.
    fn image(&self, package: &str) -> Result<PathBuf, SetupError> {
        let missing = || SetupError::Missing(format!("{package}: no vmlinuz in it"));
        let to = self.unpack(package)?;
        find_file(&to, &|name| name.starts_with("vmlinuz")).ok_or_else(missing)
    }

    /// Unpacks a downloaded package; returns the folder of its files.
    fn unpack(&self, package: &str) -> Result<PathBuf, SetupError> {
        let missing = |what: &str| SetupError::Missing(format!("{package}: no {what}"));
        let name = package.split_once('=').map_or(package, |(name, _)| name);
        let prefix = format!("{name}_");
        let deb = find_file(self.dir, &|name| name.starts_with(&prefix) && name.ends_with(".deb"));
        let deb = deb.ok_or_else(|| missing("package was downloaded"))?;
        let to = self.dir.join("unpacked");
        let mut command = Command::new("dpkg-deb");
        run("dpkg-deb -x", command.arg("-x").arg(&deb).arg(&to))?;
        Ok(to)
    }
}

fn sources_text(mirror: &str, keyring: &str) -> String {
    format!(
        "Types: deb\nURIs: {mirror}\nSuites: {SUITE}\nComponents: main\nArchitectures: amd64\n\
         Signed-By: {keyring}\n"
    )
}

/// Returns apt's configuration: every path that apt would read or write is in `dir`, except for the
/// machine's proxy settings.
fn config_text(dir: &Path, user: &str) -> String {
    let dir = dir.display();
    let mut text = String::from(
        "APT::Architecture \"amd64\";\nAPT::Architectures { \"amd64\"; };\n\
         Dir::State::status \"/dev/null\";\nDir::Etc::sourceparts \"/dev/null\";\n\
         Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n",
    );
    text += &format!("APT::Sandbox::User \"{user}\";\n");
    text += &format!("Dir::State \"{dir}\";\nDir::State::lists \"{dir}/lists\";\n");
    text +=
        &format!("Dir::Cache \"{dir}/cache\";\nDir::Etc::sourcelist \"{dir}/debian.sources\";\n");
    text
}

/// Returns the user who downloads; as root, apt would otherwise switch to a user who cannot write
/// here.
fn user() -> String {
    let name = run("id -un", Command::new("id").arg("-un"));
    name.map_or_else(|_| "root".to_owned(), |name| name.trim().to_owned())
}

/// Returns the Debian mirror that this machine uses.
fn mirror() -> Result<String, SetupError> {
    let format = ["--format", "$(ORIGIN) $(RELEASE) $(REPO_URI)", "Created-By: Packages"];
    let mut command = Command::new("apt-get");
    let known = run("apt-get indextargets", command.arg("indextargets").args(format));
    // Before its first update, apt knows no origins, so read the sources files instead.
    let from_files = || mirror_of_sources(&sources_files());
    known
        .ok()
        .and_then(|text| mirror_of_targets(&text))
        .or_else(from_files)
        .ok_or(SetupError::NoMirror)
}

fn mirror_of_targets(text: &str) -> Option<String> {
    text.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["Debian", suite, uri] if !suite.contains("security") => Some(uri.to_owned()),
        _ => None,
    })
}

/// Returns the first address that ends as Debian's archives do.
fn mirror_of_sources(text: &str) -> Option<String> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let is_archive =
        |word: &&str| word.contains("://") && word.trim_end_matches('/').ends_with("/debian");
    lines.flat_map(str::split_whitespace).find(is_archive).map(str::to_owned)
}

fn sources_files() -> String {
    let dir = Path::new("/etc/apt");
    let parts = fs::read_dir(dir.join("sources.list.d")).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = parts.map(|entry| entry.path()).collect();
    files.sort();
    files.insert(0, dir.join("sources.list"));
    files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect::<Vec<_>>().join("\n")
}

/// Returns the release in the first image's name, from the output of `apt-cache depends`.
fn release_of(depends: &str) -> Option<String> {
    depends.lines().find_map(|line| {
        let name = line.trim().strip_prefix("Depends: linux-image-")?;
        name.starts_with(|c: char| c.is_ascii_digit()).then(|| name.to_owned())
    })
}

/// Returns the first file below `dir`, in the order of names, that `wanted` accepts.
fn find_file(dir: &Path, wanted: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(dir).ok()?.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    entries.iter().find_map(|entry| match entry.file_type().ok()? {
        kind if kind.is_dir() => find_file(&entry.path(), wanted),
        kind if kind.is_file() && wanted(&entry.file_name().to_string_lossy()) => {
            Some(entry.path())
        }
        _ => None,
    })
}

fn is_in_path(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(tool).is_file())
}

/// Runs a tool quietly. If the tool fails, the error contains the end of its output.
fn run(what: &str, command: &mut Command) -> Result<String, SetupError> {
    let failed = |said: String| SetupError::Step { what: what.to_owned(), said };
    // Make the tool speak English: its messages are only shown, but the callers parse its lists.
    command.env("LC_ALL", "C").stdin(std::process::Stdio::null());
    let Output { status, stdout, stderr } =
        command.output().map_err(|why| failed(why.to_string()))?;
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    if status.success() {
        return Ok(stdout);
    }
    let said = stdout + &String::from_utf8_lossy(&stderr);
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let end = &lines[lines.len().saturating_sub(SAID_LINES)..];
    Err(failed(format!("{}; {status}", end.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_machines_own() {
        let targets =
            "Debian stable-security http://a/debian-security/\nDebian stable http://b/debian/\n";
        assert_eq!(mirror_of_targets(targets).unwrap(), "http://b/debian/");
        assert_eq!(mirror_of_targets("Other x http://c/\n"), None);
        let sources = "# deb http://old/debian x\ndeb [arch=amd64] http://s/debian-security x\n\
                       Types: deb\nURIs: https://d/x/debian/\n";
        assert_eq!(mirror_of_sources(sources).unwrap(), "https://d/x/debian/");
        assert_eq!(mirror_of_sources("URIs: http://e/ubuntu\n"), None);
    }

    #[test]
    fn the_kernel_is_pinned() {
        for prefix in ["linux-binary-", "linux-base-", "linux-modules-"] {
            let pin = pin(PINS, prefix).expect("pinned");
            assert!(
                pin.package.contains(pin.version.split('-').next().expect("a version")),
                "{pin:?}"
            );
            assert!(pin.sha256.len() == 64 && pin.sha256.bytes().all(|b| b.is_ascii_hexdigit()));
        }
        let text = "# deb linux-x\ncrate a 1 b\ndeb linux-base-7.3 7.3.4-1 abc\n";
        let found = Pin { package: "linux-base-7.3", version: "7.3.4-1", sha256: "abc" };
        assert_eq!(pin(text, "linux-base-"), Some(found));
        assert_eq!(pin(text, "linux-x"), None);
    }

    #[test]
    fn the_release_is_that_of_the_image() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-7.3.4+deb13-cloud-amd64\n";
        assert_eq!(release_of(text).unwrap(), "7.3.4+deb13-cloud-amd64");
        assert_eq!(release_of("x\n  Depends: linux-image-generic\n"), None);
    }

    #[test]
    fn a_tool_that_fails_is_quoted() {
        let mut command = Command::new("sh");
        let refused = run("the tool", command.args(["-c", "echo out; echo err >&2; exit 3"]));
        let said = refused.unwrap_err().to_string();
        assert!(said.starts_with("the tool failed: out; err; exit"), "{said}");
        let refused = run("nothing", &mut Command::new("/nonexistent/tool"));
        assert!(matches!(refused, Err(SetupError::Step { .. })));
    }
}
