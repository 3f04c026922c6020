// SPDX-License-Identifier: GPL-2.0-only
//! Waits of chosen tasks, apart from those of all tasks: a run can watch the tasks whose names
//! match a pattern, and get distributions of their own.
//!
//! Owns: the patterns and the distributions. Does not: influence the run.

use scxlab_machine::id::Nanos;
use wildmatch::WildMatch;

use super::TimeHistogram;

/// The waits of all tasks whose names match a pattern.
#[derive(Clone, Debug)]
pub struct WatchedTasks {
    /// A task's name, in which `*` stands for any text and `?` for any character.
    pub pattern: String,
    matcher: WildMatch,
    /// Number of tasks so far whose names match.
    pub tasks: u64,
    /// As `Metrics::wakeup_latency`, of these tasks.
    pub wakeup_latency: TimeHistogram,
    /// As `Metrics::run_queue_wait`, of these tasks.
    pub run_queue_wait: TimeHistogram,
}

/// All watched groups of tasks of a run. A task remembers its groups in a bit mask.
#[derive(Clone, Debug, Default)]
pub struct Watched(Vec<WatchedTasks>);

impl Watched {
    /// Maximum number of patterns.
    pub const MAX: usize = u32::BITS as usize;

    /// Returns the groups of these patterns, of which there may be up to `MAX`.
    pub fn new(patterns: &[String]) -> Watched {
        assert!(patterns.len() <= Watched::MAX, "{} patterns", patterns.len());
        let group = |pattern: &String| WatchedTasks {
            pattern: pattern.clone(),
            matcher: WildMatch::new(pattern),
            tasks: 0,
            wakeup_latency: TimeHistogram::default(),
            run_queue_wait: TimeHistogram::default(),
        };
        Watched(patterns.iter().map(group).collect())
    }

    /// Returns the groups in the order of the patterns.
    pub fn groups(&self) -> &[WatchedTasks] {
        &self.0
    }

    /// Counts a new task, and returns the mask of its groups.
    pub(crate) fn admit(&mut self, name: &str) -> u32 {
        let mut mask = 0;
        for (at, group) in self.0.iter_mut().enumerate().filter(|(_, g)| g.matcher.matches(name)) {
            group.tasks += 1;
            mask |= 1 << at;
        }
        mask
    }

    /// Records a wait of a task with this mask, and the latency of the wake-up that began the wait.
    pub(crate) fn record(&mut self, mask: u32, wait: Nanos, latency: Option<Nanos>) {
        let groups = self.0.iter_mut().enumerate();
        for (_, group) in groups.filter(|(at, _)| mask >> at & 1 == 1) {
            group.run_queue_wait.record(wait);
            if let Some(latency) = latency {
                group.wakeup_latency.record(latency);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_recorded_in_each_group_of_its_task() {
        let mut watched = Watched::new(&["render*".into(), "*-1".into(), "video".into()]);
        let masks = ["render-1", "render-2", "sound-1", "Render-2"].map(|name| watched.admit(name));
        assert_eq!(masks, [0b011, 0b001, 0b010, 0]);
        watched.record(masks[0], 7, Some(5));
        watched.record(masks[1], 9, None);
        watched.record(masks[3], 11, Some(11));
        let counts =
            |g: &WatchedTasks| (g.tasks, g.run_queue_wait.count(), g.wakeup_latency.count());
        let all: Vec<_> = watched.groups().iter().map(counts).collect();
        assert_eq!(all, [(2, 2, 1), (2, 1, 1), (0, 0, 0)]);
        assert_eq!(watched.groups()[0].run_queue_wait.max(), 9);
    }
}
