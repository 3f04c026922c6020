// SPDX-License-Identifier: GPL-2.0-only
//! The limit of page migrations for NUMA balancing, which Linux had from 3.8 to 4.19.
//!
//! Owns: the pages that came to each node in its window.
//! Models: `numamigrate_update_ratelimit()`, `migrate_ratelimited()`, migrate.c, 3.9.

use super::scan::Scanner;
use scxlab_machine::cost::to_jiffies;
use scxlab_machine::id::{Nanos, NodeId};

/// `migrate_interval_millisecs`: length of a window, ms.
const WINDOW_MS: u64 = 100;
/// `pteupdate_interval_millisecs`: time after a window after which scans go on, ms.
const SCANS_STOP_MS: u64 = 1000;
/// `ratelimit_pages`: pages that may come to a node in a window: 128 MiB.
const WINDOW_PAGES: u64 = 128 << 8;

/// The window of a node.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// Last jiffy of the window.
    end: u64,
    pages: u64,
}

/// The windows of all nodes.
#[derive(Debug)]
pub(crate) struct MigrationRates(Vec<Window>);

impl MigrationRates {
    pub(super) fn new(nr_nodes: usize) -> MigrationRates {
        MigrationRates(vec![Window::default(); nr_nodes])
    }

    /// Counts pages that are to move to a node. Returns false if they may not.
    pub(super) fn admit(
        &mut self,
        node: NodeId,
        pages: u64,
        (jiffies, tick_ns): (u64, Nanos),
    ) -> bool {
        let window = &mut self.0[node.idx()];
        if jiffies > window.end {
            *window = Window { end: jiffies + to_jiffies(WINDOW_MS, tick_ns), pages: 0 };
        }
        let admitted = window.pages <= WINDOW_PAGES;
        window.pages += if admitted { pages } else { 0 };
        admitted
    }

    /// Whether a CPU of the node may not scan, because too many pages have come to the node.
    pub(crate) fn stop_scans(&self, node: NodeId, by: &Scanner) -> bool {
        let window = &self.0[node.idx()];
        let over = by.jiffies > window.end + to_jiffies(SCANS_STOP_MS, by.tick_ns);
        !over && window.pages >= WINDOW_PAGES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_admits_128_mib_and_one_page_more() {
        let (node, tick_ns) = (NodeId(0), 1_000_000);
        let mut rates = MigrationRates::new(1);
        let admit =
            |rates: &mut MigrationRates, jiffies| rates.admit(node, 512, (jiffies, tick_ns));
        let admitted = (0..100).filter(|_| admit(&mut rates, 1)).count();
        assert_eq!(admitted, 65);
        assert!(!admit(&mut rates, 101), "the window lasts 100 ms");
        assert!(admit(&mut rates, 102));
    }
}
