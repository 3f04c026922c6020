// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the kfuncs that create queues.

use super::*;
use crate::ext::idle::fixture::{kernel, load};

#[test]
fn a_refused_queue_takes_no_memory() {
    let mut k = kernel("1c1t", &[]);
    load(&mut k, 0, &[], |_, _, _| 0);
    assert_eq!(k.kf_create_dsq(7, -1), 0);
    k.vm.mem.set_limit(16 << 20);
    for nth in 0..(16 << 20) / DSQ_BYTES {
        assert_eq!(k.kf_create_dsq(7, -1), errno(EEXIST), "call {nth}");
    }
    assert_eq!(k.vm.mem.exceeded(), None);
    assert_eq!(k.kf_create_dsq(8, -1), 0);
}
