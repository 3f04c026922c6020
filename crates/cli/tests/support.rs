// SPDX-License-Identifier: GPL-2.0-only
//! What the end-to-end tests share.

pub mod schema;
pub mod trace;
