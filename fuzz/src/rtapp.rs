// SPDX-License-Identifier: GPL-2.0-only
//! Files of rt-app: any text is either refused with a position and a reason, or runs.
//!
//! Promises: no panic and no endless loop, in the reader or in the executor; reading twice gives
//! the same program.

use scxlab_workload::{ExecConfig, Executor, load};

use crate::null_sys::NullSys;

const CPUS: u32 = 4;

pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let program = match load("fuzz.json", text) {
        Ok(program) => program,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "a refusal says why");
            return;
        }
    };
    assert_eq!(Ok(&program), load("fuzz.json", text).as_ref(), "reading is a function");
    let config = ExecConfig { nr_cpus: CPUS, ..ExecConfig::default() };
    if let Ok(mut executor) = Executor::new(&program, config) {
        NullSys::new(CPUS).run(&mut executor);
    }
}
