// SPDX-License-Identifier: GPL-2.0-only
//! Pages, and the places of claims in them: between `<!-- claim NAME -->` and
//! `<!-- end of claim -->`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::claim::Claim;
use crate::files;

const OPEN: &str = "<!-- claim ";
const NAME_END: &str = " -->\n";
const CLOSE: &str = "<!-- end of claim -->\n";

/// All documents that may name claims.
pub struct Pages(Vec<Page>);

struct Page {
    path: String,
    file: std::path::PathBuf,
    old: String,
    new: String,
}

impl Pages {
    pub fn read(root: &Path) -> Pages {
        let folders = ["docs", "bpf"];
        let found = folders.iter().flat_map(|folder| files(&root.join(folder), ".md"));
        let page = |file: std::path::PathBuf| {
            let old = fs::read_to_string(&file).unwrap();
            let path = file.strip_prefix(root).unwrap().display().to_string();
            Page { path, file, new: old.clone(), old }
        };
        Pages(found.map(page).collect())
    }

    /// Returns claims that no page names, and names on pages for which there is no claim.
    pub fn faults(&self, claims: &BTreeMap<String, Claim>) -> Vec<String> {
        let mut faults = Vec::new();
        let mut named = BTreeSet::new();
        for page in &self.0 {
            for name in names(&page.old) {
                if !claims.contains_key(name) {
                    faults.push(format!("{}: there is no cases/claims/{name}.toml", page.path));
                }
                named.insert(name);
            }
        }
        let absent = claims.keys().filter(|name| !named.contains(name.as_str()));
        faults.extend(absent.map(|name| format!("no page shows the claim {name}")));
        faults
    }

    pub fn put(&mut self, name: &str, text: &str) {
        for page in &mut self.0 {
            page.new = put(&page.new, name, text);
        }
    }

    /// Returns pages with figures that differ from the figures of the runs.
    pub fn stale(&self) -> Vec<&str> {
        self.0.iter().filter(|p| p.new != p.old).map(|p| p.path.as_str()).collect()
    }

    pub fn write(&self) {
        for page in self.0.iter().filter(|p| p.new != p.old) {
            fs::write(&page.file, &page.new).unwrap();
        }
    }
}

fn names(text: &str) -> Vec<&str> {
    let after = text.split(OPEN).skip(1);
    after.filter_map(|rest| rest.split_once(NAME_END)).map(|(name, _)| name).collect()
}

/// Returns the document with `text` in every place of the claim.
fn put(document: &str, name: &str, text: &str) -> String {
    let open = format!("{OPEN}{name}{NAME_END}");
    let mut new = String::new();
    let mut rest = document;
    while let Some(at) = rest.find(&open) {
        let (before, after) = rest.split_at(at + open.len());
        let end = after.find(CLOSE).unwrap_or_else(|| panic!("{name}: no {CLOSE}"));
        assert!(!after[..end].contains(OPEN), "{name}: another claim begins before its end");
        new.push_str(before);
        new.push_str(text);
        rest = &after[end..];
    }
    new + rest
}

#[test]
fn a_claims_place_is_what_lies_between_its_markers() {
    let page = "a\n<!-- claim x/y -->\nold\n<!-- end of claim -->\nb\n";
    assert_eq!(names(page), ["x/y"]);
    let new = put(page, "x/y", "new\n");
    assert_eq!(new, "a\n<!-- claim x/y -->\nnew\n<!-- end of claim -->\nb\n");
    assert_eq!(put(page, "x/z", "new\n"), page);
}

#[test]
fn a_claim_without_a_page_and_a_page_without_its_claim_are_faults() {
    let claim = "claim = 's'\nmachines = ['1c', '2c']\n[variants]\na = ''\n[[check]]\n\
                 metric = 'kicks'\nat_most = 1\n";
    let claims = BTreeMap::from([("x".to_owned(), Claim::parse(claim).unwrap())]);
    let text = "<!-- claim y -->\n<!-- end of claim -->\n".to_owned();
    let page = Page { path: "p".into(), file: "p".into(), new: text.clone(), old: text };
    let faults = Pages(vec![page]).faults(&claims);
    assert_eq!(faults, ["p: there is no cases/claims/y.toml", "no page shows the claim x"]);
}
