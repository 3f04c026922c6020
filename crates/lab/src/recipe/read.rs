// SPDX-License-Identifier: GPL-2.0-only
//! Reader of recipe files.
//!
//! Owns: the keys of the file, the line numbers in messages, the expansion of included recipes.
//! Does not: know the object; names and types are looked up when the recipe is applied.

use std::sync::Arc;

use indexmap::IndexMap;
use serde::Deserialize;
use toml::Spanned;

use super::expr::{Expr, Target};
use super::shipped;
use super::{
    Action, Assignment, Content, Default, Formula, Loop, Named, Param, Phase, Recipe, RecipeError,
    RecipeErrorKind, RecipeResult, RecipeStep, Run, SourcePos, Update, schedule,
};

/// Keys that select the action of a step.
pub(super) const ACTIONS: &str = "require, let, set, ops, resize, max_entries, autoload, inner_maps, run, \
                                  update, attach, include";

/// Maximum depth of nested includes.
const MAX_INCLUDES: usize = 4;

impl Recipe {
    /// Parses a recipe. `name` is used in messages only.
    pub fn parse(name: &str, text: &str) -> RecipeResult<Recipe> {
        let mut recipe = read(name, text, 0)?;
        schedule(&mut recipe.steps)?;
        Ok(recipe)
    }
}

fn read(name: &str, text: &str, depth: usize) -> RecipeResult<Recipe> {
    let lines = text.match_indices('\n').map(|(at, _)| at).collect();
    let reader = Reader { file: name.into(), lines, depth };
    let file: RecipeFile = toml::from_str(text).map_err(|e| {
        let at = e.span().unwrap_or(0..0).start;
        reader.error(at, RecipeErrorKind::Document(e.message().to_owned()))
    })?;
    let param = |(name, p): (String, Spanned<ParamFile>)| reader.param(name, p);
    let params: RecipeResult<Vec<Param>> = file.params.into_iter().map(param).collect();
    let mut recipe = Recipe {
        name: name.to_owned(),
        ops: file.ops,
        doc: file.doc,
        source: file.source,
        versions: file.versions,
        leaves_out: file.leaves_out,
        remark: file.remark,
        params: params?,
        steps: Vec::new(),
    };
    for step in file.step {
        reader.step(step, &mut recipe)?;
    }
    Ok(recipe)
}

// ---- the TOML form of a recipe file

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecipeFile {
    #[serde(default)]
    ops: Option<String>,
    doc: String,
    source: String,
    #[serde(default)]
    versions: Vec<String>,
    leaves_out: Vec<String>,
    #[serde(default)]
    remark: Option<String>,
    #[serde(default)]
    params: IndexMap<String, Spanned<ParamFile>>,
    #[serde(default)]
    step: Vec<Spanned<StepFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ParamFile {
    #[serde(default)]
    default: Option<Spanned<Raw>>,
    #[serde(default)]
    cpus: Option<String>,
    doc: String,
}

/// A value: a number, a boolean, or a formula in quotes.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Raw {
    Bool(bool),
    Int(i64),
    Text(String),
}

/// A single value, or one value per field of a struct.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawContent {
    Whole(Raw),
    Fields(IndexMap<String, Raw>),
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
    sort: Option<OneOrMore>,
    #[serde(default)]
    require: Option<Spanned<Raw>>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    r#let: Option<Pairs>,
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
    #[serde(default)]
    into: Option<IndexMap<String, Spanned<String>>>,
    #[serde(default)]
    cpu: Option<Spanned<Raw>>,
    #[serde(default)]
    update: Option<String>,
    #[serde(default)]
    key: Option<Spanned<RawContent>>,
    #[serde(default)]
    value: Option<Spanned<RawContent>>,
    #[serde(default)]
    attach: Option<bool>,
    #[serde(default)]
    include: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    fn all(this: Option<OneOrMore>) -> Vec<String> {
        match this {
            None => Vec::new(),
            Some(OneOrMore::One(one)) => vec![one],
            Some(OneOrMore::More(all)) => all,
        }
    }
}

struct Reader {
    file: Arc<str>,
    /// Offsets of the ends of the lines.
    lines: Vec<usize>,
    depth: usize,
}

impl Reader {
    fn place(&self, offset: usize) -> SourcePos {
        let line = 1 + self.lines.partition_point(|end| *end < offset);
        SourcePos { file: self.file.clone(), line }
    }

    fn error(&self, offset: usize, what: RecipeErrorKind) -> RecipeError {
        RecipeError::at(&self.place(offset), what)
    }

    fn formula(&self, raw: Spanned<Raw>) -> RecipeResult<Formula> {
        let place = self.place(raw.span().start);
        self.raw(&place, raw.into_inner())
    }

    fn raw(&self, place: &SourcePos, raw: Raw) -> RecipeResult<Formula> {
        let text = match raw {
            Raw::Bool(b) => u8::from(b).to_string(),
            Raw::Int(n) => n.to_string(),
            Raw::Text(text) => text,
        };
        self.text(place, text)
    }

    fn text(&self, place: &SourcePos, text: String) -> RecipeResult<Formula> {
        let expr = Expr::parse(&text).map_err(|e| RecipeError::at(place, e.into()))?;
        Ok(Formula { place: place.clone(), text, expr })
    }

    fn param(&self, name: String, file: Spanned<ParamFile>) -> RecipeResult<Param> {
        let place = self.place(file.span().start);
        let file = file.into_inner();
        let default = match (file.default, file.cpus) {
            (Some(number), None) => Default::Number(self.formula(number)?),
            (None, Some(list)) => Default::Cpus(place, list),
            _ => return Err(RecipeError::at(&place, RecipeErrorKind::Param { param: name })),
        };
        Ok(Param { name, doc: file.doc, default })
    }

    fn pairs<K: From<String>>(&self, pairs: Pairs) -> RecipeResult<Vec<(K, Formula)>> {
        pairs.into_iter().map(|(key, raw)| Ok((key.into(), self.formula(raw)?))).collect()
    }

    fn target(&self, place: &SourcePos, text: &str) -> RecipeResult<Target> {
        Target::parse(text).map_err(|e| RecipeError::at(place, e.into()))
    }

    fn assignments(&self, pairs: Pairs) -> RecipeResult<Vec<Assignment>> {
        let one = |(key, raw): (String, Spanned<Raw>)| {
            let value = self.formula(raw)?;
            Ok(Assignment { target: self.target(&value.place, &key)?, value })
        };
        pairs.into_iter().map(one).collect()
    }

    fn content(&self, raw: Spanned<RawContent>) -> RecipeResult<Content> {
        let place = self.place(raw.span().start);
        Ok(match raw.into_inner() {
            RawContent::Whole(raw) => Content::Whole(self.raw(&place, raw)?),
            RawContent::Fields(fields) => {
                let one = |(key, raw): (String, Raw)| {
                    let target = self.target(&place, &key)?;
                    Ok(Assignment { target, value: self.raw(&place, raw)? })
                };
                Content::Fields(fields.into_iter().map(one).collect::<RecipeResult<_>>()?)
            }
        })
    }

    /// Appends a step to the recipe, or the steps and parameters of the recipe that it includes.
    fn step(&self, step: Spanned<StepFile>, recipe: &mut Recipe) -> RecipeResult<()> {
        let place = self.place(step.span().start);
        let mut step = step.into_inner();
        let looped = step.each.is_some() || step.when.is_some() || step.sort.is_some();
        let each = OneOrMore::all(step.each.take());
        let each =
            each.into_iter().map(|text| self.each(&place, &text)).collect::<RecipeResult<_>>()?;
        let when = step.when.take().map(|raw| self.formula(raw)).transpose()?;
        let sort = OneOrMore::all(step.sort.take());
        let sort =
            sort.into_iter().map(|text| self.text(&place, text)).collect::<RecipeResult<_>>()?;
        if let Some(name) = step.include.take() {
            if looped {
                return Err(RecipeError::at(
                    &place,
                    RecipeErrorKind::Include(
                        "a step with include takes no each, when or sort".into(),
                    ),
                ));
            }
            if step.actions() > 0 {
                let found = "include and something else".into();
                return Err(RecipeError::at(&place, RecipeErrorKind::Actions { found }));
            }
            return self.include(&place, &name, recipe);
        }
        let action = self.action(&place, step)?;
        recipe.steps.push(RecipeStep { place, phase: Phase::Open, each, when, sort, action });
        Ok(())
    }

    /// Inserts the parameters, steps and omissions of an included recipe. If both recipes define a
    /// parameter, the definition of the including recipe holds.
    fn include(&self, place: &SourcePos, name: &str, recipe: &mut Recipe) -> RecipeResult<()> {
        let refuse = |why: String| RecipeError::at(place, RecipeErrorKind::Include(why));
        let text = shipped::text(name)
            .ok_or_else(|| refuse(format!("\"{name}\" is no shipped recipe")))?;
        if self.depth >= MAX_INCLUDES {
            return Err(refuse("recipes include one another too deeply".into()));
        }
        let inner = read(&shipped::file(name), text, self.depth + 1)?;
        for param in inner.params {
            if recipe.params.iter().all(|p| p.name != param.name) {
                recipe.params.push(param);
            }
        }
        recipe.leaves_out.extend(inner.leaves_out);
        recipe.steps.extend(inner.steps);
        Ok(())
    }

    fn each(&self, place: &SourcePos, text: &str) -> RecipeResult<Loop> {
        let (var, count) = match text.trim() {
            name @ ("cpu" | "core" | "llc" | "node") => (name, format!("nr_{name}s")),
            other => match other.split_once('<') {
                Some((var, count)) if is_name(var.trim()) => (var.trim(), count.to_owned()),
                _ => {
                    return Err(RecipeError::at(
                        place,
                        RecipeErrorKind::Each { text: text.into() },
                    ));
                }
            },
        };
        Ok(Loop { var: var.to_owned(), count: self.text(place, count)? })
    }

    fn action(&self, place: &SourcePos, step: StepFile) -> RecipeResult<Action> {
        let refuse = |what| Err(RecipeError::at(place, what));
        if let Some((key, beside)) = step.lone() {
            return refuse(RecipeErrorKind::Lone { key, beside });
        }
        let count = step.actions();
        let names = step.names();
        if count != 1 {
            let found = if count == 0 { "none".into() } else { names.join(" and ") };
            return refuse(RecipeErrorKind::Actions { found });
        }
        Ok(if let Some(condition) = step.require {
            let condition = self.formula(condition)?;
            let message =
                step.message.unwrap_or_else(|| format!("{} does not hold", condition.text));
            Action::Require(condition, message)
        } else if let Some(pairs) = step.r#let {
            Action::Let(self.assignments(pairs)?)
        } else if let Some(pairs) = step.set {
            Action::Set(self.assignments(pairs)?)
        } else if let Some(pairs) = step.ops {
            Action::Ops(self.pairs(pairs)?)
        } else if let Some(pairs) = step.resize {
            Action::Resize(self.pairs(pairs)?)
        } else if let Some(pairs) = step.max_entries {
            Action::MaxEntries(self.pairs(pairs)?)
        } else if let Some(pairs) = step.autoload {
            Action::Autoload(self.pairs(pairs)?)
        } else if let Some(pairs) = step.inner_maps {
            Action::InnerMaps(self.pairs(pairs)?)
        } else if step.run.is_some() {
            Action::Run(self.run(place, step)?)
        } else if step.update.is_some() {
            Action::Update(self.update(place, step)?)
        } else {
            Action::Attach
        })
    }

    fn run(&self, place: &SourcePos, step: StepFile) -> RecipeResult<Run> {
        let returns = match step.returns {
            None => Some(self.text(place, "0".into())?),
            Some(raw) if matches!(raw.get_ref(), Raw::Text(text) if text == "any") => None,
            Some(raw) => Some(self.formula(raw)?),
        };
        let into = |(variable, field): (String, Spanned<String>)| {
            let at = self.place(field.span().start);
            Ok((self.target(&at, &variable)?, self.target(&at, field.get_ref())?))
        };
        Ok(Run {
            program: step.run.unwrap_or_default().into(),
            ctx: self.assignments(step.ctx.unwrap_or_default())?,
            returns,
            into: step
                .into
                .unwrap_or_default()
                .into_iter()
                .map(into)
                .collect::<RecipeResult<_>>()?,
            cpu: step.cpu.map(|raw| self.formula(raw)).transpose()?,
        })
    }

    fn update(&self, place: &SourcePos, step: StepFile) -> RecipeResult<Update> {
        let needs = |key| RecipeError::at(place, RecipeErrorKind::Needs { key });
        Ok(Update {
            map: step.update.unwrap_or_default().into(),
            key: self.content(step.key.ok_or_else(|| needs("key"))?)?,
            value: self.content(step.value.ok_or_else(|| needs("value"))?)?,
            cpu: step.cpu.map(|raw| self.formula(raw)).transpose()?,
        })
    }
}

impl From<String> for Named {
    fn from(text: String) -> Named {
        match text.strip_suffix('?') {
            Some(name) => Named { name: name.to_owned(), optional: true },
            None => Named { name: text, optional: false },
        }
    }
}

impl StepFile {
    /// Returns the names of the actions that the step has.
    fn names(&self) -> Vec<&'static str> {
        let all = [
            ("require", self.require.is_some()),
            ("let", self.r#let.is_some()),
            ("set", self.set.is_some()),
            ("ops", self.ops.is_some()),
            ("resize", self.resize.is_some()),
            ("max_entries", self.max_entries.is_some()),
            ("autoload", self.autoload.is_some()),
            ("inner_maps", self.inner_maps.is_some()),
            ("run", self.run.is_some()),
            ("update", self.update.is_some()),
            ("attach", self.attach == Some(true)),
            ("include", self.include.is_some()),
        ];
        all.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }

    fn actions(&self) -> usize {
        self.names().len()
    }

    /// Returns the first key of the step that has no meaning because another key is absent, and
    /// that other key.
    fn lone(&self) -> Option<(&'static str, &'static str)> {
        let (run, update) = (self.run.is_some(), self.update.is_some());
        let all = [
            ("message", self.message.is_some() && self.require.is_none(), "\"require\""),
            ("ctx", self.ctx.is_some() && !run, "\"run\""),
            ("returns", self.returns.is_some() && !run, "\"run\""),
            ("into", self.into.is_some() && !run, "\"run\""),
            ("key", self.key.is_some() && !update, "\"update\""),
            ("value", self.value.is_some() && !update, "\"update\""),
            ("cpu", self.cpu.is_some() && !run && !update, "\"run\" or \"update\""),
            ("attach", self.attach == Some(false), "\"true\""),
        ];
        all.into_iter().find(|(_, wrong, _)| *wrong).map(|(key, _, beside)| (key, beside))
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
