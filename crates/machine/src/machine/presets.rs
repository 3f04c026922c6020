// SPDX-License-Identifier: GPL-2.0-only
//! The machines that ship with the program: files under `machines/`, embedded.
//!
//! Owns: only the list. A test checks that each file loads and bears its machine's name.

macro_rules! embed {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../machines/", $name, ".toml")))),*]
    };
}

/// Returns all presets, as name and file text, in the order in which they are listed.
pub fn presets() -> &'static [(&'static str, &'static str)] {
    embed![
        "small",
        "laptop-4c8t",
        "desktop-8c16t",
        "hybrid-8p8e",
        "biglittle-4b4l",
        "intel-2s",
        "epyc-2s",
        "p3-8way",
        "x3650m2",
        "x3850x5",
        "numa-2n",
        "x3750m4",
        "x3950",
        "dbench-host",
        "xen-16",
        "arm-2c",
    ]
}
