// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab report`: one page of HTML from folders of results, advice and predictions.
//!
//! Owns: which files of a folder belong together, and the page's name. The page is made by the
//! crate `page`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Result;
use scxlab_lab::results::{Manifest, Results};
use scxlab_lab::scheduler::SchedulerArg;
use scxlab_lab::session::Session;
use scxlab_machine::Machine;
use scxlab_page::data::{Page, Verdict};
use scxlab_page::{Collected, Document, IntervalSink, Packed};
use scxlab_results::folder::{Folder, MANIFEST};
use scxlab_results::inputs;
use scxlab_trace::import::import;
use serde::Deserialize;
use serde_json::Value;

use crate::args::ReportArgs;
use crate::exit::CliError;
use crate::{output, traces};

/// Name of the results in a folder of -o.
const RESULTS: &str = "results.json";

pub fn report(args: &ReportArgs) -> Result<()> {
    let mut page = PageBuilder::default();
    let mut unread = None;
    for path in &args.from {
        // A page of the others says which one is missing.
        if let Err(error) = page.add(path) {
            page.page.problems.push(format!("Not on this page: {error}"));
            unread.get_or_insert(error);
        }
    }
    if let Some(error) = unread.take_if(|_| page.is_empty()) {
        return Err(error);
    }
    page.find_problems();
    page.write(&args.output, &args.from)?;
    match unread {
        Some(error) => Err(error),
        None => page.failed(),
    }
}

/// A page whose parts are being read.
#[derive(Default)]
pub struct PageBuilder {
    page: Page,
    documents: Vec<Document>,
    verdicts: Vec<Verdict>,
    blocks: Vec<(String, Vec<u8>)>,
    /// Reason why the results do not belong together, or are none.
    unfit: Option<CliError>,
}

impl PageBuilder {
    /// Adds a folder of -o, or a JSON file of run, advise or reproduce.
    fn add(&mut self, path: &Path) -> Result<()> {
        if path.join(MANIFEST).is_file() {
            return self.add_folder(path);
        }
        let folders = folders(path)?;
        for folder in &folders {
            let file = folder.join(RESULTS);
            let json = parse(&file)?;
            self.add_json(&file, &json, folder)?;
            self.page.problems.push(format!(
                "{}: an earlier scxlab wrote this folder; all of it was read from {RESULTS}",
                folder.display()
            ));
        }
        if folders.is_empty() {
            let json = parse(path)?;
            let folder = path.parent().unwrap_or(Path::new(""));
            let all = match &json {
                Value::Array(all) => all.iter().collect(),
                one => vec![one],
            };
            for json in all {
                self.add_json(path, json, folder)?;
            }
        }
        Ok(())
    }

    /// Adds a folder with a manifest, which tells what belongs to it.
    fn add_folder(&mut self, path: &Path) -> Result<()> {
        let stored = Folder::read(path)?;
        let are_many = stored.manifests.len() > 1;
        for manifest in &stored.manifests {
            let machine = output::safe_name(&manifest.machine.machine);
            let folder = if are_many { path.join(machine) } else { path.to_owned() };
            let (document, is_whole) = match whole(&folder.join(RESULTS), manifest) {
                Some(document) => (document, true),
                None => {
                    (Document { manifest: manifest.clone(), runs: stored.runs_of(manifest) }, false)
                }
            };
            let packed = self.timelines(&document, &folder)?;
            self.add_session(document, packed);
            if let Some(session) = self.page.sessions.last_mut().filter(|_| !is_whole) {
                session.remarks.push(format!(
                    "Read from {MANIFEST} and the Parquet files, because there is no {RESULTS} \
                     that belongs to them. They have no cgroups, no notes, and no stories of ejections."
                ));
            }
        }
        Ok(())
    }

    /// Adds the results of a session, and the intervals of its runs by scheduler.
    pub fn add_results(
        &mut self,
        results: &Results,
        session: &Session,
        intervals: Vec<(usize, Collected)>,
    ) {
        let json = serde_json::to_value(results).expect("results are plain data");
        let document = Document::deserialize(json).expect("a page reads what a run writes");
        let pack = |(at, (scheduler, collected)): (usize, (usize, Collected))| {
            let label = session.schedulers[scheduler].label();
            let block = self.block(at);
            collected.pack(&session.machine.topology, label, session.seed, &block)
        };
        let packed: Vec<Packed> = intervals.into_iter().enumerate().map(pack).collect();
        self.add_session(document, packed);
    }

    fn add_session(&mut self, document: Document, packed: Vec<Packed>) {
        self.page.sessions.push(scxlab_page::session(&document, &packed));
        self.blocks.extend(packed.into_iter().map(|p| (p.timeline.bytes, p.bytes)));
        self.documents.push(document);
    }

    /// Returns the name of the next block but `later`.
    fn block(&self, later: usize) -> String {
        format!("timeline-{}", self.blocks.len() + later)
    }

    /// Writes the page.
    pub fn write(&mut self, path: &Path, from: &[PathBuf]) -> Result<()> {
        output::write_file(path, self.html(from).as_bytes())?;
        output::say(&format!("{} is written; open it in a browser", path.display()));
        Ok(())
    }

    fn add_json(&mut self, file: &Path, json: &Value, folder: &Path) -> Result<()> {
        let malformed = |error: serde_json::Error| {
            let version = json.pointer("/manifest/scxlab/version").and_then(Value::as_str);
            let from = version.map(|v| format!(", written by scxlab {v}")).unwrap_or_default();
            CliError::NoResults { path: file.to_owned(), why: format!("{error}{from}") }
        };
        if json.get("recommendation").is_some() {
            let (advice, verdict) = scxlab_page::advice(json).map_err(malformed)?;
            self.page.advice = Some(advice);
            self.verdicts.push(verdict);
        } else if json.get("scores").is_some() {
            let (tables, verdict) = scxlab_page::published(json).map_err(malformed)?;
            self.page.published.extend(tables);
            self.verdicts.push(verdict);
        } else {
            let document = Document::deserialize(json).map_err(malformed)?;
            let packed = self.timelines(&document, folder)?;
            self.add_session(document, packed);
        }
        Ok(())
    }

    /// Reads the traces beside a results file.
    fn timelines(&self, document: &Document, folder: &Path) -> Result<Vec<Packed>> {
        let labels = document.manifest.schedulers.iter().map(|entry| entry.scheduler.as_str());
        let labels: Vec<&str> = labels.collect();
        let short = |label: &&str| {
            SchedulerArg::parse(label).map_or_else(|_| (*label).to_owned(), |arg| arg.short())
        };
        let shorts: Vec<String> = labels.iter().map(short).collect();
        let paths = traces::in_folder(folder, &shorts);
        let mut all = Vec::new();
        for (label, path) in labels.iter().zip(paths) {
            let Ok(file) = File::open(&path) else { continue };
            let (mut sink, collected) = IntervalSink::new();
            let imported = import(&path.display().to_string(), file, &mut sink)?;
            let text = imported.machine.as_deref();
            let Some(Ok(machine)) = text.map(|text| Machine::from_toml("machine", text)) else {
                continue;
            };
            let block = self.block(all.len());
            let seed = document.manifest.seed;
            all.push(collected.pack(&machine.topology, label, seed, &block));
        }
        Ok(all)
    }

    fn html(&mut self, from: &[PathBuf]) -> String {
        if !self.documents.is_empty() {
            self.verdicts.push(scxlab_page::verdict(&self.documents));
        }
        let mut verdicts = std::mem::take(&mut self.verdicts).into_iter();
        let mut first = verdicts.next().unwrap_or_default();
        for other in verdicts {
            first.reasons.push(format!("{} {}", other.sentence, other.sure));
            first.reasons.extend(other.reasons);
        }
        self.page.verdict = first;
        self.page.title = self.title(from);
        self.page.version = format!("scxlab {}", env!("CARGO_PKG_VERSION"));
        scxlab_page::html(&self.page, &self.blocks)
    }

    fn title(&self, from: &[PathBuf]) -> String {
        match &self.documents[..] {
            [] => {
                let names: Vec<String> =
                    from.iter().map(|path| path.display().to_string()).collect();
                names.join(", ")
            }
            [one] => {
                let manifest = &one.manifest;
                format!("{} on {}", manifest.workload.workload, manifest.machine.machine)
            }
            many => format!("{} comparisons of schedulers", many.len()),
        }
    }

    /// Tells whether nothing was read.
    fn is_empty(&self) -> bool {
        let Page { advice, published, .. } = &self.page;
        self.documents.is_empty() && advice.is_none() && published.is_empty()
    }

    /// Looks for sessions without runs, and for sessions that a reader could take for comparable.
    fn find_problems(&mut self) {
        let empty = self.documents.iter().filter(|document| document.runs.is_empty());
        let mut found: Vec<String> =
            empty.map(|empty| format!("{} has no runs", case(empty))).collect();
        for (at, later) in self.documents.iter().enumerate() {
            let before = &self.documents[..at];
            if let Some(what) = before.iter().find_map(|before| unlike(before, later)) {
                found.push(format!("{}: {what}; they are not compared", case(later)));
            }
        }
        let first = self.documents.first();
        let is_alone = |document: &Document| document.manifest.schedulers.len() < 2;
        let is_other =
            |document: &Document| first.is_some_and(|first| case(first) != case(document));
        if self.documents.iter().all(is_alone) && self.documents.iter().any(is_other) {
            let cases: Vec<String> = self.documents.iter().map(case).collect();
            found.push(format!(
                "Nothing can be compared: each folder has one scheduler, and their workloads or \
                 machines differ: {}",
                cases.join(", ")
            ));
        }
        if let Some(why) = found.first() {
            self.unfit = Some(CliError::Incomparable { why: why.clone() });
        }
        self.page.problems.extend(found);
    }

    /// Returns an error if the page compares less than its reader may expect.
    fn failed(&mut self) -> Result<()> {
        if let Some(unfit) = self.unfit.take() {
            return Err(unfit.into());
        }
        let runs = || self.documents.iter().flat_map(|document| &document.runs);
        match runs().filter(|run| !run.counts).count() {
            0 => Ok(()),
            lost => Err(CliError::NotAllCount { runs: lost, of: runs().count() }.into()),
        }
    }
}

/// Names the workload and the machine of a session.
fn case(document: &Document) -> String {
    let Manifest { workload, machine, .. } = &document.manifest;
    format!("{} on {}", workload.workload, machine.machine)
}

/// Tells how two sessions of the same names differ, if they do.
fn unlike(a: &Document, b: &Document) -> Option<&'static str> {
    let (a_is, b_is) = (&a.manifest, &b.manifest);
    if case(a) != case(b) {
        None
    } else if a_is.workload.hash != b_is.workload.hash {
        Some("there are two workloads of this name")
    } else if a_is.machine.fingerprint != b_is.machine.fingerprint {
        Some("there are two machines of this name")
    } else {
        None
    }
}

/// Reads a results file, if it exists and belongs to a manifest.
fn whole(file: &Path, manifest: &Manifest) -> Option<Document> {
    let document = Document::deserialize(&parse(file).ok()?).ok()?;
    let json = |manifest: &Manifest| serde_json::to_value(manifest).ok();
    (json(&document.manifest) == json(manifest)).then_some(document)
}

/// Returns the folders with results at or below a path; none if the path is a file.
fn folders(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(Vec::new());
    }
    if path.join(RESULTS).is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let unread = |error: std::io::Error| CliError::NoResults {
        path: path.to_owned(),
        why: error.to_string(),
    };
    let entries = fs::read_dir(path).map_err(unread)?;
    let mut below: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    below.retain(|folder| folder.join(RESULTS).is_file());
    below.sort();
    if below.is_empty() {
        let why =
            format!("neither it nor a folder in it has a {RESULTS}, as scxlab run -o writes it");
        return Err(CliError::NoResults { path: path.to_owned(), why }.into());
    }
    Ok(below)
}

fn parse(path: &Path) -> Result<Value> {
    let text = inputs::read(path)?;
    let json = serde_json::from_slice(&text);
    Ok(json.map_err(|error| {
        let why = format!("it is no JSON of run, advise or reproduce: {error}");
        CliError::NoResults { path: path.to_owned(), why }
    })?)
}
