// SPDX-License-Identifier: GPL-2.0-only
//! Tests of directories and their types on a real cgroup2 mount, without controllers. The rest of
//! the module cannot be tested where a v1 hierarchy holds the controllers, as in many containers
//! (see `tests/native/cgroups.rs`).

use super::*;

/// Returns the cgroup2 mount point if this process can create directories there.
fn writable() -> Option<PathBuf> {
    let mount = find_mount()?;
    let probe = mount.join(format!("scxlab-probe-{}", std::process::id()));
    match fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe)) {
        Ok(()) => Some(mount),
        Err(e) => {
            println!("skipped: {}: {e}", probe.display());
            None
        }
    }
}

fn place(mount: &Path, name: &str) -> CgroupPlace {
    let base = mount.join(format!("scxlab-unit-{}-{name}", std::process::id()));
    CgroupPlace { mount: mount.display().to_string(), base: base.display().to_string() }
}

#[test]
fn a_tree_is_threaded_and_goes_away() {
    let Some(mount) = writable() else { return };
    let place = place(&mount, "tree");
    let defs = [CgroupDef::new("/a"), CgroupDef::new("/a/b")];
    let tree = Tree::create(&place, &defs, &[]).unwrap();
    let inner = Path::new(&place.base).join("a/b");
    assert_eq!(fs::read_to_string(inner.join("cgroup.type")).unwrap(), "threaded\n");
    assert_eq!(tree.threads.len(), 3);
    drop(tree);
    assert!(!Path::new(&place.base).exists());
}

#[test]
fn what_is_not_ours_stays() {
    let Some(mount) = writable() else { return };
    let place = place(&mount, "ours");
    let base = PathBuf::from(&place.base);
    fs::create_dir_all(base.join("a")).unwrap();
    let defs = [CgroupDef::new("/a")];
    let error = Tree::create(&place, &defs, &[]).err().map(|e| e.to_string()).unwrap_or_default();
    let kept = base.join("a").exists();
    fs::remove_dir(base.join("a")).and_then(|()| fs::remove_dir(&base)).unwrap();
    assert!(error.contains("does not belong to this run"), "{error}");
    assert!(kept);
}

#[test]
fn a_base_elsewhere_is_refused() {
    let Some(mount) = writable() else { return };
    let place = CgroupPlace { mount: mount.display().to_string(), base: "/elsewhere".to_owned() };
    assert!(Tree::create(&place, &[], &[]).is_err());
    assert!(Tree::create(&place, &[], &["no-such-controller"]).is_err());
}
