// SPDX-License-Identifier: GPL-2.0-only
//! The threads that ship with the program: files under `published/` and `experiments/`, embedded.
//!
//! Owns: only the list. A test checks that every figure of every thread has its rule.

/// A thread's two files.
#[derive(Clone, Copy, Debug)]
pub struct ThreadFiles {
    pub name: &'static str,
    /// Text of the thread's file in `published/`.
    pub published: &'static str,
    /// Text of the thread's file in `experiments/`.
    pub experiment: &'static str,
}

macro_rules! embed {
    ($($name:literal),* $(,)?) => {
        &[$(ThreadFiles {
            name: $name,
            published: include_str!(concat!("../../../../published/", $name, ".toml")),
            experiment: include_str!(concat!("../../../../experiments/", $name, ".toml")),
        }),*]
    };
}

/// Returns the files of all threads, by date.
pub fn experiments() -> &'static [ThreadFiles] {
    embed!["o1-2002", "gang-2011", "pelt-2012", "tickle-2012", "numa-2013"]
}

/// Returns the names of all threads, by date.
pub fn threads() -> impl Iterator<Item = &'static str> {
    experiments().iter().map(|thread| thread.name)
}
