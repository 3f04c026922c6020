// SPDX-License-Identifier: GPL-2.0-only
//! Tests of an installation in a folder, with a systemctl that notes its calls.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use scxlab_lab::input::SchedulerInput;
use scxlab_results::inputs::Inputs;
use tempfile::TempDir;

use super::*;
use crate::exit::{Code, code_of};

const PROGRAM: &str = "/usr/local/bin/scxlab";

struct Fake {
    root: TempDir,
    calls: RefCell<Vec<String>>,
    /// Whether the service attaches its scheduler when it starts.
    attaches: bool,
    /// Whether what it attaches is a scheduler of sched_ext.
    enables: bool,
    running: Cell<bool>,
    /// Verb of systemctl that fails.
    fails: Option<&'static str>,
}

impl Fake {
    fn new() -> Fake {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join(BOOTED)).unwrap();
        let (calls, running) = (RefCell::default(), Cell::new(false));
        Fake { root, calls, attaches: true, enables: true, running, fails: None }
    }

    fn files(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for folder in [UNITS, COPIES] {
            let Ok(entries) = fs::read_dir(self.root.path().join(folder)) else { continue };
            for path in entries.map(|entry| entry.unwrap().path()) {
                let name = path.strip_prefix(self.root.path()).unwrap().display().to_string();
                found.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
        found
    }

    fn called(&self) -> Vec<String> {
        self.calls.take().into_iter().filter(|call| !call.starts_with("is-active")).collect()
    }
}

impl System for Fake {
    fn root(&self) -> &Path {
        self.root.path()
    }

    fn systemctl(&self, args: &[&str]) -> io::Result<Result<(), String>> {
        self.calls.borrow_mut().push(args.join(" "));
        match args[0] {
            verb if self.fails == Some(verb) => return Ok(Err("it said no".into())),
            "restart" => self.running.set(self.attaches),
            "disable" => self.running.set(false),
            "is-active" if !self.running.get() => return Ok(Err(String::new())),
            _ => {}
        }
        Ok(Ok(()))
    }

    fn is_enabled(&self) -> bool {
        self.running.get() && self.enables
    }
}

fn scheduler(text: &str) -> SchedulerInput {
    SchedulerInput::resolve(text, &Inputs::default()).unwrap()
}

fn installed(fake: &Fake, text: &str) -> Result<()> {
    install(fake, Path::new(PROGRAM), &scheduler(text))
}

const UNIT: &str = r#"# Written by `scxlab attach --install`; `scxlab attach --uninstall` removes it.
[Unit]
Description=CPU scheduler vtime,slice_ns=1000000, attached by scxlab
Documentation=man:scxlab-attach(1)
ConditionPathIsDirectory=/sys/kernel/sched_ext

[Service]
Type=exec
ExecStart="/usr/local/bin/scxlab" attach --interval 0s "vtime,slice_ns=1000000"
# If the kernel ejects the scheduler, the default class has all tasks again, and the log has the
# reason. The scheduler is not attached again before the next boot.
Restart=no
TimeoutStopSec=90
LimitMEMLOCK=infinity

[Install]
WantedBy=multi-user.target
"#;

#[test]
fn a_shipped_scheduler_needs_a_unit_only() {
    let fake = Fake::new();
    installed(&fake, "vtime,slice_ns=1000000").unwrap();
    let unit = format!("{UNITS}/{SERVICE}");
    assert_eq!(fake.files(), BTreeMap::from([(unit, UNIT.to_owned())]));
    let wanted = ["daemon-reload", "enable scxlab.service", "restart scxlab.service"];
    assert_eq!(fake.called(), wanted);
}

/// Tunables of the default class enable no scheduler, so only a service that ends has failed.
#[test]
fn tunables_need_a_service_that_stays() {
    let text = "eevdf,base_slice_ns=8000000";
    let fake = Fake { enables: false, ..Fake::new() };
    installed(&fake, text).unwrap();
    let unit = fake.files().remove(&format!("{UNITS}/{SERVICE}")).unwrap();
    assert!(unit.contains(&format!("attach --interval 0s \"{text}\"")), "{unit}");
    assert!(installed(&Fake { attaches: false, ..Fake::new() }, text).is_err());
}

/// The second installation replaces the first one, and leaves none of its files.
#[test]
fn files_are_copied_and_replaced() {
    let fake = Fake::new();
    let given = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = given.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (object, recipe) = (write("my own.bpf.o", "the object"), write("r.toml", "the recipe"));
    installed(&fake, &format!("{object},a=\"1,2\",recipe={recipe},ops=x")).unwrap();
    let files = fake.files();
    assert_eq!(files[&format!("{COPIES}/my_own.bpf.o")], "the object");
    assert_eq!(files[&format!("{COPIES}/r.toml")], "the recipe");
    let folder = format!("/{COPIES}");
    let line = format!(
        "ExecStart=\"{PROGRAM}\" attach --interval 0s \"{folder}/my_own.bpf.o,a=\\\"1,2\\\",recipe={folder}/r.toml,ops=x\"\n"
    );
    let unit = &files[&format!("{UNITS}/{SERVICE}")];
    assert!(unit.contains(&line), "{unit}");

    installed(&fake, "vtime").unwrap();
    assert_eq!(fake.files().into_keys().collect::<Vec<_>>(), [format!("{UNITS}/{SERVICE}")]);
    assert!(uninstall(&fake).unwrap());
    assert_eq!(fake.files(), BTreeMap::new());
    assert!(fake.called().ends_with(&[
        "disable --now scxlab.service".into(),
        "daemon-reload".into(),
        "reset-failed scxlab.service".into(),
    ]));
    assert!(!uninstall(&fake).unwrap());
    assert_eq!(fake.called(), Vec::<String>::new());
}

#[test]
fn failures_are_those_of_the_target() {
    let mut fake = Fake::new();
    fake.fails = Some("enable");
    let error = installed(&fake, "vtime").unwrap_err();
    assert_eq!(error.to_string(), "systemctl enable scxlab.service: it said no");
    assert_eq!(code_of(&error), Code::Target);
    fake = Fake::new();
    fake.attaches = false;
    let error = installed(&fake, "vtime").unwrap_err();
    assert!(error.to_string().contains("journalctl -u scxlab"), "{error}");
    fs::remove_dir(fake.root.path().join(BOOTED)).unwrap();
    let wrong = [installed(&fake, "vtime").unwrap_err(), uninstall(&fake).unwrap_err()];
    for error in wrong {
        assert!(error.to_string().contains("systemd"), "{error}");
        assert_eq!(code_of(&error), Code::Target);
    }
}

#[test]
fn words_are_quoted_for_systemd() {
    assert_eq!(quoted("a b\"c\\d%e$f\n"), r#""a b\"c\\d%%e$$f\U0000000a""#);
}

/// The unit is one that systemd accepts, if this host has systemd's checker.
#[test]
fn systemd_accepts_the_unit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(SERVICE);
    fs::write(&path, unit(Path::new("/bin/true"), "vtime,a=\"1,2\"")).unwrap();
    let Ok(output) =
        Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output()
    else {
        eprintln!("skipped: no systemd-analyze");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains(SERVICE), "{said}");
}
