// SPDX-License-Identifier: GPL-2.0-only
//! The progress bar, shown on standard error if that is a terminal and the work takes over a
//! second.

use std::io::{IsTerminal, stderr};
use std::sync::Condvar;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use scxlab_lab::session::Progress;
use scxlab_machine::plural;

const QUIET: Duration = Duration::from_secs(1);
const REFRESH: Duration = Duration::from_millis(100);

/// Work whose progress a bar can show.
pub trait Shown: Sync {
    /// Tells whether the remaining time can be estimated.
    fn has_end(&self) -> bool;
    /// Returns the completed part in thousandths.
    fn permille(&self) -> u64;
    /// Returns a few words beside the bar. `elapsed` is the time since the bar appeared.
    fn message(&self, elapsed: Duration) -> String;
}

impl Shown for Progress {
    fn has_end(&self) -> bool {
        Progress::has_end(self)
    }

    fn permille(&self) -> u64 {
        Progress::permille(self)
    }

    /// Without a known length, the message has the speed of the simulation instead of the remaining
    /// time.
    fn message(&self, elapsed: Duration) -> String {
        let runs = format!("{} of {}", self.runs_done(), plural(self.runs(), "run"));
        match self.has_end() {
            true => runs,
            false => {
                let seconds = self.virtual_ns() as f64 / 1e9;
                let rate = seconds / elapsed.as_secs_f64().max(1e-3);
                format!("{runs}, {seconds:.1} s simulated, {rate:.1} s per second")
            }
        }
    }
}

/// Does `work` while a bar shows `progress`.
pub fn with_bar<R>(progress: &impl Shown, work: impl FnOnce() -> R) -> R {
    if !stderr().is_terminal() {
        return work();
    }
    let done = Signal::default();
    thread::scope(|scope| {
        scope.spawn(|| show(progress, &done));
        // Tell the thread of the bar to end also when `work` panics, or else the scope would wait
        // for this thread for ever.
        let _told = OnDrop(&done);
        work()
    })
}

fn show(progress: &impl Shown, done: &Signal) {
    if done.wait(QUIET) {
        return;
    }
    let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr());
    let template = match progress.has_end() {
        true => "{bar:30} {msg} [{elapsed}, {eta} left]",
        false => "{spinner} {msg} [{elapsed}]",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let start = Instant::now();
    loop {
        bar.set_position(progress.permille());
        bar.set_message(progress.message(start.elapsed()));
        if done.wait(REFRESH) {
            break;
        }
    }
    bar.finish_and_clear();
}

#[derive(Default)]
struct Signal {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Waits at most `time` for the end of the work, and tells whether the work has ended.
    fn wait(&self, time: Duration) -> bool {
        let Ok(set) = self.set.lock() else { return true };
        self.changed.wait_timeout_while(set, time, |set| !*set).map_or(true, |(set, _)| *set)
    }
}

struct OnDrop<'a>(&'a Signal);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        if let Ok(mut set) = self.0.set.lock() {
            *set = true;
        }
        self.0.changed.notify_all();
    }
}
