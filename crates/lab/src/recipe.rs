// SPDX-License-Identifier: GPL-2.0-only
//! Recipes: what a scheduler's user-space frontend does before it attaches, said in a small TOML file.
//!
//! Owns: what a recipe consists of and what can be wrong with one. A recipe is chosen by the name of the object's
//! ops, or by `recipe=`; no code knows a scheduler's name.
//! Does not: express a frontend that stays: what it does once the scheduler runs is left out.
//! Start at: `docs/reference/recipes.md`; `read.rs` reads the file, `apply.rs` carries out the steps.

mod apply;
pub mod expr;
pub mod facts;
mod fit;
pub mod frontend;
mod layout;
mod read;
mod shipped;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use scxlab_bpf::fault::Fault;
use scxlab_loader::link::{GlobalError, TableError};

pub use apply::{Applied, Subject};
use expr::{Expr, ExprError, Target};
pub use facts::Vars;
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
    /// Versions of the scheduler with which it is tested, the newest first.
    pub versions: Vec<String>,
    /// What the frontend does for scheduling and the recipe does not, in phrases that follow "not run:".
    pub leaves_out: Vec<String>,
    /// What else a reader of the list of schedulers should know.
    pub remark: Option<String>,
    pub params: Vec<Param>,
    steps: Vec<Step>,
}

/// A value that the user may set as if it were a knob of the object.
#[derive(Clone, Debug)]
pub struct Param {
    pub name: String,
    pub doc: String,
    default: Default,
}

/// What a parameter is, and its value if the user gives none.
#[derive(Clone, Debug)]
enum Default {
    Number(Formula),
    /// A set of CPUs, as a list such as `0-3,8`, `all` or `none`.
    Cpus(Place, String),
}

impl Param {
    /// The default as written.
    pub fn default_text(&self) -> &str {
        match &self.default {
            Default::Number(formula) => &formula.text,
            Default::Cpus(_, list) => list,
        }
    }
}

/// When a step happens. The first step that needs the object loaded loads it; `attach` says where the scheduler is
/// attached, the end of the file otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Open,
    Loaded,
    Attached,
}

/// One step: an action, for each value of some variables, under a condition.
#[derive(Clone, Debug)]
struct Step {
    place: Place,
    phase: Phase,
    each: Vec<Loop>,
    when: Option<Formula>,
    /// Keys by which the passes are put in order, ascending; those that tie stay in order.
    sort: Vec<Formula>,
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
    /// Variables of the recipe.
    Let(Vec<Assignment>),
    /// Global variables, parts of them, or typed memory.
    Set(Vec<Assignment>),
    /// Settings of the ops table.
    Ops(Vec<(String, Formula)>),
    /// Elements of array variables that end their section.
    Resize(Vec<(Named, Formula)>),
    MaxEntries(Vec<(Named, Formula)>),
    /// Whether programs are loaded.
    Autoload(Vec<(Named, Formula)>),
    /// Fills that many slots of a map of maps with new maps.
    InnerMaps(Vec<(Named, Formula)>),
    Run(Run),
    Update(Update),
    /// Here the scheduler is attached.
    Attach,
}

/// A map, a program or a variable of the object.
#[derive(Clone, Debug)]
struct Named {
    name: String,
    /// It ends in `?`: not every version of the scheduler has it.
    optional: bool,
}

/// Runs a syscall program with that context, checks what it returns and reads the context back.
#[derive(Clone, Debug)]
struct Run {
    program: Named,
    ctx: Vec<Assignment>,
    /// None: whatever it returns is right.
    returns: Option<Formula>,
    /// Variables of the recipe, each from a field of the context.
    into: Vec<(Target, Target)>,
    /// The CPU that user space is on.
    cpu: Option<Formula>,
}

/// Writes an element of a map: what is not named keeps its value, or is zero in a new element.
#[derive(Clone, Debug)]
struct Update {
    map: Named,
    key: Content,
    value: Content,
    /// Whose copy of a per-CPU map; None: everyone's.
    cpu: Option<Formula>,
}

/// A key or a value: a number, or fields of a struct.
#[derive(Clone, Debug)]
enum Content {
    Whole(Formula),
    Fields(Vec<Assignment>),
}

#[derive(Clone, Debug)]
struct Assignment {
    target: Target,
    value: Formula,
}

/// A file and a line of it: a recipe may include another.
#[derive(Clone, Debug)]
struct Place {
    file: Arc<str>,
    line: usize,
}

/// A formula with its place.
#[derive(Clone, Debug)]
struct Formula {
    place: Place,
    text: String,
    expr: Expr,
}

/// A recipe and what is wrong with it, or with its use on this object and machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{recipe}:{line}: {what}{advice}")]
pub struct RecipeError {
    pub recipe: String,
    pub line: usize,
    #[source]
    pub what: Box<What>,
    /// What else the user can do; empty unless the object is not one that the recipe is for.
    pub advice: String,
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
    #[error("a step must have one of {}; this one has {found}", read::ACTIONS)]
    Actions { found: String },
    #[error("\"{key}\" makes sense only beside {beside}")]
    Lone { key: &'static str, beside: &'static str },
    #[error("\"update\" needs \"{key}\"")]
    Needs { key: &'static str },
    #[error(
        "parameter \"{param}\" needs either \"default\", a number, or \"cpus\", a list of CPUs"
    )]
    Param { param: String },
    #[error("each: \"{text}\" is neither cpu, core, llc, node nor NAME < FORMULA")]
    Each { text: String },
    #[error("include: {0}")]
    Include(String),
    #[error("{0}")]
    Required(String),
    #[error("object \"{object}\" has no {what} `{name}`; it has {present}")]
    Missing { object: String, what: &'static str, name: String, present: String },
    #[error("program `{program}` takes no struct that could be filled")]
    NoContext { program: String },
    #[error("context of `{program}`, field `{field}`: {why}")]
    Context { program: String, field: String, why: String },
    #[error("program `{program}` returned {value} instead of {wanted}{context}")]
    Returned { program: String, value: i32, wanted: i32, context: String },
    #[error("program `{program}` could not be run: {why}")]
    NotRun { program: String, why: String },
    #[error("program `{program}`: {fault}")]
    Fault { program: String, fault: Box<Fault> },
    #[error("map `{map}`: {why}")]
    Map { map: String, why: String },
    #[error("memory `{place}`: {why}")]
    Memory { place: String, why: String },
    #[error("`{param}={list}`: {why}")]
    Cpus { param: String, list: String, why: String },
    #[error("more than {max} iterations")]
    Iterations { max: u64 },
    #[error(
        "this step cannot come after a program was run or a map was filled: the object is loaded by then"
    )]
    TooLate,
    #[error("the scheduler is attached once")]
    AttachedTwice,
}

impl RecipeError {
    fn at(place: &Place, what: What) -> RecipeError {
        let (recipe, line) = (place.file.to_string(), place.line);
        RecipeError { recipe, line, what: Box::new(what), advice: String::new() }
    }

    /// Says which objects the recipe is for, if this is none of them.
    fn advised(mut self, recipe: &Recipe) -> RecipeError {
        let lacks = match &*self.what {
            What::Global(e) => {
                matches!(e, GlobalError::NoVariable { .. } | GlobalError::Path { .. })
            }
            What::Formula(e) => matches!(e, ExprError::NoName { .. }),
            What::Missing { .. } | What::Context { .. } | What::NoContext { .. } => true,
            _ => false,
        };
        if lacks && !recipe.versions.is_empty() {
            self.advice = format!(
                ". The recipe is for versions {} of the scheduler; -s OBJECT,recipe=none runs the object without what its \
                 frontend does, and recipe=FILE with a recipe of yours",
                recipe.versions.join(", ")
            );
        }
        self
    }
}

impl Action {
    fn needs_loaded(&self) -> bool {
        match self {
            Action::InnerMaps(_) | Action::Run(_) | Action::Update(_) | Action::Attach => true,
            // Memory at an address exists once something has run.
            Action::Set(all) => all.iter().any(|a| a.target.at.is_some()),
            _ => false,
        }
    }

    /// Whether it can only be done to an object that is not loaded.
    fn needs_open(&self) -> bool {
        matches!(
            self,
            Action::Ops(_) | Action::Resize(_) | Action::MaxEntries(_) | Action::Autoload(_)
        )
    }
}

/// Gives each step its time. What changes the object cannot come after what needs it loaded.
fn schedule(steps: &mut [Step]) -> Result<(), RecipeError> {
    let mut phase = Phase::Open;
    for step in steps {
        if step.action.needs_loaded() {
            phase = phase.max(Phase::Loaded);
        } else if step.action.needs_open() && phase > Phase::Open {
            return Err(RecipeError::at(&step.place, What::TooLate));
        }
        step.phase = phase;
        if matches!(step.action, Action::Attach) {
            if phase == Phase::Attached {
                return Err(RecipeError::at(&step.place, What::AttachedTwice));
            }
            phase = Phase::Attached;
        }
    }
    Ok(())
}
