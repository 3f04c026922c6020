// SPDX-License-Identifier: GPL-2.0-only
use super::*;

/// Returns a bzImage of the given release, with a payload that no test reads.
fn image(release: &str) -> Vec<u8> {
    let mut data = vec![0; 1024];
    data[0x1f1] = 1;
    data[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
    data[0x202..0x208].copy_from_slice(b"HdrS\x0f\x02");
    data[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
    data[0x300..0x300 + release.len()].copy_from_slice(release.as_bytes());
    data
}

fn adopt_release(cache: &Path, release: &str) -> Result<KernelImage, SetupError> {
    let file = cache.join("given");
    fs::create_dir_all(cache).unwrap();
    fs::write(&file, image(release)).unwrap();
    adopt(cache, &file, None, &[])
}

#[test]
fn what_was_adopted_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    assert_eq!(find(&cache).unwrap(), None);
    let kernel = adopt_release(&cache, "7.3.4-test").unwrap();
    assert_eq!(kernel.release, "7.3.4-test");
    assert_eq!(find(&cache).unwrap(), Some(kernel));
    let newer = adopt_release(&cache, "7.3.5-test").unwrap();
    assert_eq!(find(&cache).unwrap().unwrap().image, newer.image);
    assert!(adopt_release(&cache, "7.3.5-test").is_ok(), "again");
    let left: Vec<_> = fs::read_dir(cache.join("kernel")).unwrap().flatten().collect();
    assert_eq!(left.len(), 3, "two kernels and which is current: {left:?}");
}

#[test]
fn modules_lie_beside_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let (file, module) = (dir.path().join("given"), dir.path().join("kvm.ko.xz"));
    fs::write(&file, image("7.3.4")).unwrap();
    fs::write(&module, b"module").unwrap();
    let kernel = adopt(dir.path(), &file, None, &[module]).unwrap();
    let files = crate::nested_files(&kernel.image);
    // Without QEMU there is nothing to run the guests.
    let Ok(files) = files else { return };
    let found = files.iter().find(|file| file.path == "/scxlab/modules/kvm.ko.xz");
    assert_eq!(found.map(|file| file.data.as_slice()), Some(&b"module"[..]));
}

#[test]
fn a_damaged_image_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = adopt_release(dir.path(), "7.3.4").unwrap();
    let mut data = fs::read(&kernel.image).unwrap();
    data[900] ^= 1;
    fs::write(&kernel.image, data).unwrap();
    assert!(matches!(find(dir.path()), Err(SetupError::Damaged { .. })));
}

#[test]
fn half_done_is_not_done() {
    let dir = tempfile::tempdir().unwrap();
    // The state that a killed process leaves, under a pid that no process has.
    let abandoned = dir.path().join("kernel/.new-4294967295-0");
    fs::create_dir_all(abandoned.join("kernel")).unwrap();
    fs::write(abandoned.join("kernel/image"), b"half").unwrap();
    assert_eq!(find(dir.path()).unwrap(), None);
    adopt_release(dir.path(), "7.3.4").unwrap();
    assert!(!abandoned.exists());
}

#[test]
fn a_release_is_no_path() {
    let dir = tempfile::tempdir().unwrap();
    for release in ["../x", "..", "", "a/b"] {
        let refused = adopt_release(dir.path(), release);
        assert!(matches!(refused, Err(SetupError::Missing(_))), "{release}: {refused:?}");
    }
    assert_eq!(find(dir.path()).unwrap(), None);
}

#[test]
fn no_kernel_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text");
    fs::write(&file, "text").unwrap();
    assert!(matches!(
        adopt(dir.path(), &file, None, &[]),
        Err(SetupError::Image(VmError::Kernel { .. }))
    ));
    let refused = adopt(dir.path(), &dir.path().join("none"), None, &[]);
    assert!(matches!(refused, Err(SetupError::Image(VmError::NoKernel { .. }))));
}
