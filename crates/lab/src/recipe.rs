// SPDX-License-Identifier: GPL-2.0-only
//! Recipes: what a scheduler's user-space frontend does before it attaches, said in a small TOML file.
//!
//! Owns: the form of the file, and the recipes that are shipped. A recipe is chosen by the name of the object's
//! ops, or by `recipe=`; no code knows a scheduler's name.
//! Does not: express a frontend that stays (a user-space scheduler), or that reads back what programs return.
//! Start at: `docs/reference/recipes.md`; the steps are carried out in `apply.rs`.

mod apply;
pub mod expr;
pub mod facts;
mod shipped;
#[cfg(test)]
mod tests;

use indexmap::IndexMap;
use scxlab_bpf::fault::Fault;
use scxlab_bpf::link::{GlobalError, TableError};
use serde::Deserialize;
use toml::Spanned;

pub use apply::{Applied, Subject};
use expr::{Expr, ExprError};
pub use shipped::{find, for_ops, shipped};

/// A recipe, read and checked as far as it can be without an object.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// For messages: its file.
    pub name: String,
    /// Name of the ops that it is for; it is then used unasked.
    pub ops: Option<String>,
    /// One sentence.
    pub doc: String,
    /// The frontend that it stands for.
    pub source: String,
    pub params: Vec<Param>,
    steps: Vec<Step>,
}

/// A value that the user may set as if it were a knob of the object.
#[derive(Clone, Debug)]
pub struct Param {
    pub name: String,
    pub doc: String,
    default: Formula,
}

impl Param {
    /// The default as written.
    pub fn default_text(&self) -> &str {
        &self.default.text
    }
}

/// One step: an action, for each value of some variables, under a condition.
#[derive(Clone, Debug)]
struct Step {
    line: usize,
    each: Vec<Loop>,
    when: Option<Formula>,
    action: Action,
}

/// A loop variable and the number of its values, which start at 0.
#[derive(Clone, Debug)]
struct Loop {
    var: String,
    count: Formula,
}

#[derive(Clone, Debug)]
enum Action {
    /// Fails with the message unless the condition holds.
    Require(Formula, String),
    /// Global variables, or parts of them.
    Set(Vec<Assignment>),
    /// Settings of the ops table.
    Ops(Vec<(String, Formula)>),
    /// Elements of array variables that end their section.
    Resize(Vec<(String, Formula)>),
    MaxEntries(Vec<(String, Formula)>),
    /// Whether programs are loaded.
    Autoload(Vec<(String, Formula)>),
    /// Fills that many slots of a map of maps with new maps.
    InnerMaps(Vec<(String, Formula)>),
    /// Runs a syscall program with that context, and checks what it returns.
    Run {
        program: String,
        ctx: Vec<(String, Formula)>,
        returns: Formula,
    },
}

/// `path[formula] = formula`; an optional one is skipped if the object has no such variable.
#[derive(Clone, Debug)]
struct Assignment {
    path: Vec<PathPart>,
    optional: bool,
    value: Formula,
}

#[derive(Clone, Debug)]
enum PathPart {
    Text(String),
    Index(Formula),
}

/// A formula with its place.
#[derive(Clone, Debug)]
struct Formula {
    line: usize,
    text: String,
    expr: Expr,
}

/// A recipe and what is wrong with it, or with its use on this object and machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{recipe}:{line}: {what}")]
pub struct RecipeError {
    pub recipe: String,
    pub line: usize,
    #[source]
    pub what: Box<What>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum What {
    #[error("{0}")]
    Document(String),
    #[error(transparent)]
    Formula(#[from] ExprError),
    #[error(transparent)]
    Global(#[from] GlobalError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("a step must have one of {ACTIONS}; this one has {found}")]
    Actions { found: String },
    #[error("\"{key}\" makes sense only beside \"run\"")]
    Lone { key: &'static str },
    #[error("each: \"{text}\" is neither cpu, core, llc, node nor NAME < FORMULA")]
    Each { text: String },
    #[error("{0}")]
    Required(String),
    #[error("the object has no {what} `{name}`; it has {present}")]
    Missing { what: &'static str, name: String, present: String },
    #[error("program `{program}` takes no struct that could be filled")]
    NoContext { program: String },
    #[error("context of `{program}`, field `{field}`: {why}")]
    Context { program: String, field: String, why: String },
    #[error("program `{program}` returned {value} instead of {wanted}{context}")]
    Returned { program: String, value: i32, wanted: i32, context: String },
    #[error("program `{program}`: {fault}")]
    Fault { program: String, fault: Box<Fault> },
    #[error("map `{map}`: {why}")]
    Map { map: String, why: String },
    #[error("more than {max} iterations")]
    Iterations { max: u64 },
    #[error(
        "this step cannot come after a program was run or a map was filled: the object is loaded by then"
    )]
    TooLate,
}

/// The keys that say what a step does.
const ACTIONS: &str = "require, set, ops, resize, max_entries, autoload, inner_maps, run";

impl Recipe {
    /// Reads a recipe. `name` is only for messages.
    pub fn parse(name: &str, text: &str) -> Result<Recipe, RecipeError> {
        let reader = Reader { name, text };
        let file: File = toml::from_str(text).map_err(|e| {
            let line = reader.line(e.span().unwrap_or(0..0).start);
            reader.error(line, What::Document(e.message().to_owned()))
        })?;
        let param = |(name, p): (String, ParamFile)| {
            Ok(Param { name, doc: p.doc, default: reader.formula(p.default)? })
        };
        let params: Result<Vec<Param>, RecipeError> = file.params.into_iter().map(param).collect();
        let steps: Result<Vec<Step>, RecipeError> =
            file.step.into_iter().map(|step| reader.step(step)).collect();
        let recipe = Recipe {
            name: name.to_owned(),
            ops: file.ops,
            doc: file.doc,
            source: file.source,
            params: params?,
            steps: steps?,
        };
        recipe.check_order()?;
        Ok(recipe)
    }

    /// What changes the object cannot come after what needs it loaded.
    fn check_order(&self) -> Result<(), RecipeError> {
        let mut loaded = false;
        for step in &self.steps {
            let needs_loaded = step.action.needs_loaded();
            if loaded && !needs_loaded && !matches!(step.action, Action::Require(..)) {
                return Err(self.error(step.line, What::TooLate));
            }
            loaded |= needs_loaded;
        }
        Ok(())
    }

    fn error(&self, line: usize, what: What) -> RecipeError {
        RecipeError { recipe: self.name.clone(), line, what: Box::new(what) }
    }
}

impl Action {
    fn needs_loaded(&self) -> bool {
        matches!(self, Action::InnerMaps(_) | Action::Run { .. })
    }
}

// ---- the file as TOML sees it

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    ops: Option<String>,
    doc: String,
    source: String,
    #[serde(default)]
    params: IndexMap<String, ParamFile>,
    #[serde(default)]
    step: Vec<Spanned<StepFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ParamFile {
    default: Spanned<Raw>,
    doc: String,
}

/// A value: a number, a truth, or a formula in quotes.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Raw {
    Bool(bool),
    Int(i64),
    Text(String),
}

type Pairs = IndexMap<String, Spanned<Raw>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepFile {
    #[serde(default)]
    each: Option<OneOrMore>,
    #[serde(default)]
    when: Option<Spanned<Raw>>,
    #[serde(default)]
    require: Option<Spanned<Raw>>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    set: Option<Pairs>,
    #[serde(default)]
    ops: Option<Pairs>,
    #[serde(default)]
    resize: Option<Pairs>,
    #[serde(default)]
    max_entries: Option<Pairs>,
    #[serde(default)]
    autoload: Option<Pairs>,
    #[serde(default)]
    inner_maps: Option<Pairs>,
    #[serde(default)]
    run: Option<String>,
    #[serde(default)]
    ctx: Option<Pairs>,
    #[serde(default)]
    returns: Option<Spanned<Raw>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

struct Reader<'a> {
    name: &'a str,
    text: &'a str,
}

impl Reader<'_> {
    fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().get(..offset).unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|b| **b == b'\n').count()
    }

    fn error(&self, line: usize, what: What) -> RecipeError {
        RecipeError { recipe: self.name.to_owned(), line, what: Box::new(what) }
    }

    fn formula(&self, raw: Spanned<Raw>) -> Result<Formula, RecipeError> {
        let line = self.line(raw.span().start);
        let text = match raw.into_inner() {
            Raw::Bool(b) => u8::from(b).to_string(),
            Raw::Int(n) => n.to_string(),
            Raw::Text(text) => text,
        };
        self.formula_text(line, text)
    }

    fn formula_text(&self, line: usize, text: String) -> Result<Formula, RecipeError> {
        let expr = Expr::parse(&text).map_err(|e| self.error(line, e.into()))?;
        Ok(Formula { line, text, expr })
    }

    fn pairs(&self, pairs: Pairs) -> Result<Vec<(String, Formula)>, RecipeError> {
        pairs.into_iter().map(|(key, raw)| Ok((key, self.formula(raw)?))).collect()
    }

    fn step(&self, step: Spanned<StepFile>) -> Result<Step, RecipeError> {
        let line = self.line(step.span().start);
        let mut step = step.into_inner();
        let each = match step.each.take() {
            None => Vec::new(),
            Some(OneOrMore::One(one)) => vec![one],
            Some(OneOrMore::More(all)) => all,
        };
        let each = each.into_iter().map(|text| self.each(line, &text)).collect::<Result<_, _>>()?;
        let when = step.when.take().map(|raw| self.formula(raw)).transpose()?;
        Ok(Step { line, each, when, action: self.action(line, step)? })
    }

    fn each(&self, line: usize, text: &str) -> Result<Loop, RecipeError> {
        let (var, count) = match text.trim() {
            name @ ("cpu" | "core" | "llc" | "node") => (name, format!("nr_{name}s")),
            other => match other.split_once('<') {
                Some((var, count)) if is_name(var.trim()) => (var.trim(), count.to_owned()),
                _ => return Err(self.error(line, What::Each { text: text.into() })),
            },
        };
        Ok(Loop { var: var.to_owned(), count: self.formula_text(line, count)? })
    }

    fn action(&self, line: usize, step: StepFile) -> Result<Action, RecipeError> {
        let StepFile {
            require,
            message,
            set,
            ops,
            resize,
            max_entries,
            autoload,
            inner_maps,
            run,
            ctx,
            returns,
            ..
        } = step;
        let lone = [("ctx", ctx.is_some()), ("returns", returns.is_some())];
        if let Some((key, _)) = lone.into_iter().find(|(_, given)| *given && run.is_none()) {
            return Err(self.error(line, What::Lone { key }));
        }
        let mut found = Vec::new();
        if let Some(condition) = require {
            let condition = self.formula(condition)?;
            let message = message.unwrap_or_else(|| format!("{} does not hold", condition.text));
            found.push(("require", Action::Require(condition, message)));
        }
        if let Some(pairs) = set {
            let all: Result<_, _> = pairs.into_iter().map(|(k, v)| self.assignment(k, v)).collect();
            found.push(("set", Action::Set(all?)));
        }
        type Make = fn(Vec<(String, Formula)>) -> Action;
        let tables: [(&str, Option<Pairs>, Make); 5] = [
            ("ops", ops, Action::Ops),
            ("resize", resize, Action::Resize),
            ("max_entries", max_entries, Action::MaxEntries),
            ("autoload", autoload, Action::Autoload),
            ("inner_maps", inner_maps, Action::InnerMaps),
        ];
        for (key, pairs, make) in tables {
            if let Some(pairs) = pairs {
                found.push((key, make(self.pairs(pairs)?)));
            }
        }
        if let Some(program) = run {
            let ctx = self.pairs(ctx.unwrap_or_default())?;
            let returns = match returns {
                Some(raw) => self.formula(raw)?,
                None => self.formula_text(line, "0".into())?,
            };
            found.push(("run", Action::Run { program, ctx, returns }));
        }
        if found.len() != 1 {
            let keys: Vec<_> = found.iter().map(|(key, _)| *key).collect();
            let found = if keys.is_empty() { "none".into() } else { keys.join(" and ") };
            return Err(self.error(line, What::Actions { found }));
        }
        Ok(found.swap_remove(0).1)
    }

    /// `name`, `name?` or `name[formula].field`.
    fn assignment(&self, key: String, value: Spanned<Raw>) -> Result<Assignment, RecipeError> {
        let value = self.formula(value)?;
        let (mut rest, optional) = match key.strip_suffix('?') {
            Some(name) => (name, true),
            None => (key.as_str(), false),
        };
        let mut path = Vec::new();
        while let Some((text, after)) = rest.split_once('[') {
            let syntax = || What::Document(format!("\"{key}\": \"[\" without \"]\""));
            let (index, tail) =
                after.split_once(']').ok_or_else(|| self.error(value.line, syntax()))?;
            path.push(PathPart::Text(text.to_owned()));
            path.push(PathPart::Index(self.formula_text(value.line, index.to_owned())?));
            rest = tail;
        }
        path.push(PathPart::Text(rest.to_owned()));
        Ok(Assignment { path, optional, value })
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
