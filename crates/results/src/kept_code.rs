// SPDX-License-Identifier: GPL-2.0-only
//! Machine code of schedulers from earlier commands, as files in the user's cache folder.
//!
//! Owns: the folder, its size, and the check that nobody else can write to it: what it holds is
//! executed.
//! Does not: know the form of the code (`scxlab_bpf::jit` does).

use std::fs::{self, DirBuilder, File};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use scxlab_bpf::jit::{CodeKey, CodeStore};
use scxlab_lab::sim::SIMULATOR;

use crate::atomic;

/// Largest size of all files together. The code of the largest published scheduler takes 0.5 MB.
const MAX_BYTES: u64 = 128 << 20;

/// Largest size of a file that is read.
const MAX_FILE: u64 = 16 << 20;

/// The folder with one file for each image of a scheduler.
#[derive(Debug)]
pub struct KeptCode(PathBuf);

/// Returns the user's folder for files that can be made again.
pub fn cache_folder() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = var("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(var("HOME")?).join(".cache")))?;
    Some(base.join("scxlab"))
}

impl KeptCode {
    /// Returns the store of this user; None if the user has no home folder, or if somebody else
    /// can write to the folder.
    pub fn open() -> Option<Arc<dyn CodeStore>> {
        let folder = cache_folder()?.join("code");
        DirBuilder::new().recursive(true).mode(0o700).create(&folder).ok()?;
        let is_safe = is_own(&fs::symlink_metadata(&folder).ok()?);
        is_safe.then(|| Arc::new(KeptCode(folder)) as Arc<dyn CodeStore>)
    }

    fn path(&self, key: &CodeKey) -> PathBuf {
        self.0.join(key.to_string())
    }

    /// Removes the files that were used least recently, until all take half of the limit, if they
    /// take more than the limit.
    fn shrink(&self) {
        let Ok(entries) = fs::read_dir(&self.0) else { return };
        let about = |entry: fs::DirEntry| {
            let about = entry.metadata().ok()?;
            Some((about.modified().ok()?, about.len(), entry.path()))
        };
        let mut files: Vec<_> = entries.flatten().filter_map(about).collect();
        let mut size: u64 = files.iter().map(|(_, len, _)| len).sum();
        if size <= MAX_BYTES {
            return;
        }
        files.sort();
        for (_, len, path) in files {
            if size <= MAX_BYTES / 2 {
                break;
            }
            if fs::remove_file(path).is_ok() {
                size -= len;
            }
        }
    }
}

/// Whether a file or folder belongs to this user, and nobody else can write to it.
fn is_own(about: &fs::Metadata) -> bool {
    let user = fs::metadata("/proc/self").map(|process| process.uid());
    user.is_ok_and(|user| user == about.uid()) && about.mode() & 0o022 == 0 && !about.is_symlink()
}

fn read(path: &Path) -> Option<Vec<u8>> {
    if !is_own(&fs::symlink_metadata(path).ok()?) {
        return None;
    }
    let mut file = File::open(path).ok()?;
    let about = file.metadata().ok()?;
    if !is_own(&about) || about.len() > MAX_FILE {
        return None;
    }
    let mut bytes = Vec::with_capacity(about.len() as usize);
    file.read_to_end(&mut bytes).ok()?;
    // Only the order in which files are removed depends on it.
    let _ = file.set_modified(SystemTime::now());
    Some(bytes)
}

impl CodeStore for KeptCode {
    fn version(&self) -> &str {
        SIMULATOR
    }

    fn load(&self, key: &CodeKey) -> Option<Vec<u8>> {
        read(&self.path(key))
    }

    /// Without the file, the next command compiles again, so a failure needs no message.
    fn keep(&self, key: &CodeKey, bytes: &[u8]) {
        if atomic::write_file(&self.path(key), bytes).is_ok() {
            self.shrink();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn store(folder: &Path) -> KeptCode {
        KeptCode(folder.to_owned())
    }

    #[test]
    fn code_that_others_could_have_written_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let (store, key) = (store(folder.path()), CodeKey([7; 32]));
        store.keep(&key, b"code");
        let path = store.path(&key);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(store.load(&key).as_deref(), Some(&b"code"[..]));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        assert_eq!(store.load(&key), None);
        let link = store.path(&CodeKey([8; 32]));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&path, link).unwrap();
        assert_eq!(store.load(&CodeKey([8; 32])), None);
    }

    #[test]
    fn the_oldest_files_go_when_there_are_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let large = vec![0; (MAX_BYTES / 4) as usize];
        for n in 0..5u8 {
            let key = CodeKey([n; 32]);
            store.keep(&key, &large);
            let age = std::time::Duration::from_secs(100 - u64::from(n));
            if let Ok(file) = File::options().append(true).open(store.path(&key)) {
                file.set_modified(SystemTime::now() - age).unwrap();
            }
        }
        let left: Vec<bool> = (0..5u8).map(|n| store.path(&CodeKey([n; 32])).exists()).collect();
        assert_eq!(left.iter().filter(|exists| **exists).count(), 2, "{left:?}");
        assert!(!left[0] && left[4], "{left:?}");
    }
}
