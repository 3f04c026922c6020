// SPDX-License-Identifier: GPL-2.0-only
//! The part of a recording that becomes the workload: a window of time, and some of the tasks.
//!
//! Owns: which events and tasks are in. Tasks that are out are the world around the workload, like
//! those of another machine.
//! Does not: store events. Outside the window and the tasks, nothing takes memory.

use scxlab_machine::Nanos;
use scxlab_trace::TaskAttributes;
use wildmatch::WildMatch;

/// A part of a recording. The default is all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Begin of the window, in ns since the first event.
    pub from: Nanos,
    /// Length of the window in ns; None: until the end.
    pub length: Option<Nanos>,
    /// Patterns of names, in which `*` stands for any text and `?` for one character. A task is in
    /// if its name matches one of them; without patterns, all are.
    pub tasks: Vec<String>,
    /// The cgroup of the tasks, which may be below it. Without attributes, no task is in a cgroup.
    pub cgroup: Option<String>,
}

impl Scope {
    /// Returns the end of the window.
    pub fn until(&self) -> Nanos {
        self.length.map_or(Nanos::MAX, |length| self.from.saturating_add(length))
    }

    /// Whether the scope leaves tasks out.
    pub fn selects_tasks(&self) -> bool {
        !self.tasks.is_empty() || self.cgroup.is_some()
    }

    /// Whether a task with this name and these attributes is in.
    pub fn has(&self, name: &str, attributes: Option<&TaskAttributes>) -> bool {
        let named = self.tasks.is_empty() || name_matches(&self.tasks, name);
        let below = |cgroup: &String| {
            let (cgroup, path) = (cgroup.trim_end_matches('/'), attributes?.cgroup.as_str());
            let rest = path.strip_prefix(cgroup)?;
            Some(rest.is_empty() || rest.starts_with('/'))
        };
        named && self.cgroup.as_ref().is_none_or(|cgroup| below(cgroup) == Some(true))
    }
}

/// Whether a name matches one of some patterns.
pub fn name_matches(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| WildMatch::new(pattern).matches(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_cgroups_select_tasks() {
        let in_cgroup = |path: &str| TaskAttributes { cgroup: path.into(), ..Default::default() };
        let scope = |tasks: &[&str], cgroup: Option<&str>| Scope {
            tasks: tasks.iter().map(|t| (*t).to_owned()).collect(),
            cgroup: cgroup.map(str::to_owned),
            ..Scope::default()
        };
        assert!(scope(&[], None).has("x", None));
        assert!(scope(&["web*", "db?"], None).has("db1", None));
        assert!(!scope(&["web*", "db?"], None).has("db10", None));
        let shop = scope(&[], Some("/shop"));
        assert!(shop.has("x", Some(&in_cgroup("/shop"))));
        assert!(shop.has("x", Some(&in_cgroup("/shop/web"))));
        assert!(!shop.has("x", Some(&in_cgroup("/shopping"))));
        assert!(!shop.has("x", None));
        assert!(scope(&[], Some("/")).has("x", Some(&in_cgroup("/a"))));
        assert!(!scope(&["y"], Some("/")).has("x", Some(&in_cgroup("/a"))));
    }
}
