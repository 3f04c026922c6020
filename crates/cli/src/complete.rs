// SPDX-License-Identifier: GPL-2.0-only
//! Shell completion: candidates for flags, schedulers, machines, workloads and knobs.
//!
//! Owns: the candidates, and the joining of words that bash has split. To complete a word, the
//! shell runs scxlab with an environment variable set, which the constant `VARIABLE` names.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter, complete};
use clap_complete::env::{
    Bash as PlainBash, CompleteEnv, Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh,
};
use scxlab_lab::input;
use scxlab_lab::recipe;
use scxlab_lab::scheduler::{DEFAULT_CLASS, TUNABLES, Tunable};
use scxlab_loader::link::OpenObject;
use scxlab_loader::object::Object;
use scxlab_results::inputs::Inputs;

use crate::args::Cli;

const VARIABLE: &str = "SCXLAB_COMPLETE";
const SHELLS: &[&dyn EnvCompleter] = &[&Bash, &Elvish, &Fish, &Powershell, &Zsh];

/// Answers a shell's completion request, and tells whether there was one.
pub fn answer() -> bool {
    let asked = CompleteEnv::with_factory(Cli::command).var(VARIABLE).shells(Shells(SHELLS));
    // Errors are dropped, because a shell cannot use a message.
    asked.try_complete(std::env::args_os(), None).unwrap_or(true)
}

/// Returns the script that makes a shell call scxlab for completion.
pub fn registration(shell: Shell) -> io::Result<Vec<u8>> {
    let mut script = Vec::new();
    let shell = Shells(SHELLS).completer(&shell.to_string()).map(|s| s.name());
    let shell = SHELLS.iter().find(|s| Some(s.name()) == shell);
    let shell = shell.ok_or_else(|| io::Error::other("no completion for this shell"))?;
    shell.write_registration(VARIABLE, "scxlab", "scxlab", "scxlab", &mut script)?;
    Ok(script)
}

/// Returns candidates for `-s`.
pub fn schedulers(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(text) = current.to_str() else { return Vec::new() };
    let Some((name, typed)) = text.split_once(',') else {
        let mut all = vec![named(DEFAULT_CLASS, "the kernel's default class")];
        all.extend(scxlab_sched::shipped().iter().map(|s| named(s.name, s.summary())));
        return starting(text, all, |path| path.extension().is_some_and(|e| e == "o"));
    };
    let done = typed.rsplit_once(',').map_or("", |(done, _)| done);
    let before = if done.is_empty() { format!("{name},") } else { format!("{name},{done},") };
    let all = knobs(name).into_iter().map(|knob| knob.add_prefix(&before)).collect();
    starting_only(text, all)
}

/// Returns candidates for `-w`.
pub fn workloads(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(text) = current.to_str() else { return Vec::new() };
    let generators = scxlab_workload::benchmarks::list();
    let Some((name, typed)) = text.split_once(',') else {
        let all = generators.iter().map(|g| named(g.name, g.doc)).collect();
        return starting(text, all, |path| {
            path.extension().is_some_and(|e| e == "json" || e == "toml")
        });
    };
    let done = typed.rsplit_once(',').map_or("", |(done, _)| done);
    let before = if done.is_empty() { format!("{name},") } else { format!("{name},{done},") };
    let params = generators.iter().find(|g| g.name == name).map_or(&[][..], |g| g.params);
    let all = params.iter().map(|p| named(&format!("{before}{}=", p.name), p.doc)).collect();
    starting_only(text, all)
}

/// Returns candidates for `-m`.
pub fn machines(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(text) = current.to_str() else { return Vec::new() };
    let mut all = vec![named("host", "this machine")];
    all.extend(scxlab_machine::presets().iter().map(|(name, _)| CompletionCandidate::new(*name)));
    starting(text, all, |path| path.extension().is_some_and(|e| e == "toml" || e == "xml"))
}

/// Returns candidates for the thread of `reproduce`.
pub fn threads(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(text) = current.to_str() else { return Vec::new() };
    let names = scxlab_lab::reproduce::threads().map(CompletionCandidate::new);
    starting(text, names.collect(), |path| path.extension().is_some_and(|e| e == "toml"))
}

/// Returns the knobs of an object and of its recipe. A knob with named values gives one candidate
/// per value.
fn knobs(name: &str) -> Vec<CompletionCandidate> {
    if name == DEFAULT_CLASS {
        let help = |t: &Tunable| format!("{} to {}, in debugfs sched/{}", t.min, t.max, t.file);
        return TUNABLES.iter().map(|t| named(&format!("{}=", t.name), &help(t))).collect();
    }
    let Ok((_, bytes)) = input::object(name, &Inputs::default()) else { return Vec::new() };
    let Ok(object) = Object::parse(&bytes, name) else { return Vec::new() };
    let open = OpenObject::new(Arc::new(object));
    let mut all = Vec::new();
    for knob in open.globals.knobs() {
        if knob.values.is_empty() {
            let mut help = format!("{}, default {}", knob.ty, knob.default);
            if !knob.meaning.is_empty() {
                help = format!("{}; {help}", knob.meaning);
            }
            all.push(named(&format!("{}=", knob.name), &help));
        }
        let help = if knob.meaning.is_empty() { &knob.ty } else { &knob.meaning };
        all.extend(knob.values.iter().map(|v| named(&format!("{}={v}", knob.name), help)));
    }
    if let Some((recipe, _)) = recipe::for_ops(name) {
        all.extend(recipe.params.iter().map(|p| named(&format!("{}=", p.name), &p.doc)));
    }
    all.push(named("recipe=", "a recipe by name, a file of one, or none"));
    all
}

fn named(value: &str, help: &str) -> CompletionCandidate {
    CompletionCandidate::new(value).help(Some(help.to_owned().into()))
}

fn starting_only(text: &str, all: Vec<CompletionCandidate>) -> Vec<CompletionCandidate> {
    let starts = |c: &CompletionCandidate| c.get_value().to_string_lossy().starts_with(text);
    all.into_iter().filter(starts).collect()
}

/// Returns the names that start with `text`, and matching files and folders.
fn starting(
    text: &str,
    all: Vec<CompletionCandidate>,
    is_wanted: fn(&Path) -> bool,
) -> Vec<CompletionCandidate> {
    let mut found = starting_only(text, all);
    let files = PathCompleter::any().filter(move |path| path.is_dir() || is_wanted(path));
    found.extend(files.complete(OsStr::new(text)));
    found
}

/// Completion for bash. Bash splits words at `=`, so `fair,load=pe` becomes three words, of which
/// bash replaces the last. This completer joins the words again, and returns only the part of each
/// candidate after the last `=`.
struct Bash;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        PlainBash.name()
    }

    fn is(&self, name: &str) -> bool {
        PlainBash.is(name)
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        PlainBash.write_registration(var, name, bin, completer, buf)
    }

    fn write_complete(
        &self,
        cmd: &mut clap::Command,
        args: Vec<OsString>,
        current_dir: Option<&Path>,
        buf: &mut dyn Write,
    ) -> io::Result<()> {
        // The completion script (`write_registration`) sets _CLAP_COMPLETE_INDEX and _CLAP_IFS.
        let index = std::env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|text| text.parse().ok());
        let separator = std::env::var("_CLAP_IFS").unwrap_or_else(|_| "\n".to_owned());
        let (args, index) = joined(args, index.unwrap_or_default());
        let typed = args.get(index).map(|word| word.to_string_lossy().into_owned());
        let kept = typed.as_deref().and_then(|word| word.rfind('=')).map_or(0, |at| at + 1);
        let dir: Option<PathBuf> = current_dir.map(Path::to_owned);
        let found = complete(cmd, args, index, dir.as_deref())?;
        let values = found.iter().map(|c| c.get_value().to_string_lossy().into_owned());
        let ends: Vec<String> = values.filter_map(|v| v.get(kept..).map(str::to_owned)).collect();
        write!(buf, "{}", ends.join(&separator))
    }
}

/// Joins the words that bash has split at a `=`. Returns the new list of words, and the index in it
/// of the word that contains the original word `index`.
fn joined(words: Vec<OsString>, index: usize) -> (Vec<OsString>, usize) {
    let mut all: Vec<OsString> = Vec::new();
    let mut at = 0;
    let mut continues = false;
    for (number, word) in words.into_iter().enumerate() {
        let is_sign = word == "=";
        match all.last_mut() {
            Some(last) if is_sign || continues => last.push(word),
            _ => all.push(word),
        }
        continues = is_sign;
        if number == index {
            at = all.len() - 1;
        }
    }
    (all, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(found: &[CompletionCandidate]) -> Vec<String> {
        found.iter().map(|c| c.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn every_name_is_offered() {
        let all = values(&schedulers(OsStr::new("")));
        for shipped in scxlab_sched::shipped() {
            assert!(all.iter().any(|name| name == shipped.name), "{} in {all:?}", shipped.name);
        }
        assert_eq!(values(&schedulers(OsStr::new("goo"))), ["goodness"]);
        assert_eq!(values(&machines(OsStr::new("laptop"))), ["laptop-4c8t"]);
        assert_eq!(values(&workloads(OsStr::new("hackb"))), ["hackbench"]);
    }

    #[test]
    fn knobs_come_after_those_that_are_set() {
        assert_eq!(values(&schedulers(OsStr::new("vtime,sli"))), ["vtime,slice_ns="]);
        let load = values(&schedulers(OsStr::new("fair,gang=v2,load=")));
        assert!(load.contains(&"fair,gang=v2,load=pelt".to_owned()), "{load:?}");
        assert_eq!(
            values(&workloads(OsStr::new("hackbench,loops=3,gro"))),
            ["hackbench,loops=3,groups="]
        );
        assert_eq!(values(&schedulers(OsStr::new("eevdf,base"))), ["eevdf,base_slice_ns="]);
        assert!(schedulers(OsStr::new("no/such.o,")).is_empty());
    }

    #[test]
    fn words_that_bash_cut_are_put_together() {
        let words = |all: &[&str]| all.iter().map(OsString::from).collect::<Vec<_>>();
        let cut = words(&["scxlab", "run", "-s", "fair,load", "=", "pe", "-n"]);
        let whole = words(&["scxlab", "run", "-s", "fair,load=pe", "-n"]);
        assert_eq!(joined(cut.clone(), 5), (whole.clone(), 3));
        assert_eq!(joined(cut, 6), (whole, 4));
        let open = words(&["scxlab", "fair,load", "="]);
        assert_eq!(joined(open, 2), (words(&["scxlab", "fair,load="]), 1));
    }
}
