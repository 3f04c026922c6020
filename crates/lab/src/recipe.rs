// SPDX-License-Identifier: GPL-2.0-only
//! Recipes: small TOML files that state what a scheduler's user-space frontend does before it
//! attaches the scheduler.
//!
//! Owns: the parts of a recipe and the errors in one. A recipe is chosen by the name of the
//! object's ops, or by `recipe=`; no code knows a scheduler's name.
//! Does not: express a frontend that keeps working while the scheduler runs; that part is left out.
//! Start at: `docs/reference/recipes.md`; `read.rs` reads the file, `apply.rs` carries out the
//! steps.

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

/// A recipe, parsed and checked as far as possible without an object.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The recipe's file name, for messages.
    pub name: String,
    /// Ops name (`sched_ext_ops.name`) of the schedulers that the recipe is for, which use it by
    /// default.
    pub ops: Option<String>,
    /// One sentence that describes the recipe.
    pub doc: String,
    /// The frontend that the recipe replaces.
    pub source: String,
    /// Versions of the scheduler with which the recipe is tested, the newest first.
    pub versions: Vec<String>,
    /// Scheduling work of the frontend that the recipe omits, as phrases that follow "not run:".
    pub leaves_out: Vec<String>,
    /// Further remark for the list of schedulers.
    pub remark: Option<String>,
    pub params: Vec<Param>,
    steps: Vec<RecipeStep>,
}

/// A value that the user may set like a knob of the object.
#[derive(Clone, Debug)]
pub struct Param {
    pub name: String,
    pub doc: String,
    default: Default,
}

/// A parameter's type, and its value if the user gives none.
#[derive(Clone, Debug)]
enum Default {
    Number(Formula),
    /// A set of CPUs, as a list such as `0-3,8`, `all` or `none`.
    Cpus(SourcePos, String),
}

impl Param {
    /// Returns the default as written in the recipe.
    pub fn default_text(&self) -> &str {
        match &self.default {
            Default::Number(formula) => &formula.text,
            Default::Cpus(_, list) => list,
        }
    }
}

/// Phase in which a step is carried out. The object is loaded before the first step that needs it
/// loaded. The scheduler is attached at the step `attach`, or after the last step if no step says
/// `attach`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Open,
    Loaded,
    Attached,
}

/// One step of a recipe: an action, repeated for each combination of values of the loop variables
/// for which the condition `when` holds.
#[derive(Clone, Debug)]
struct RecipeStep {
    place: SourcePos,
    phase: Phase,
    each: Vec<Loop>,
    when: Option<Formula>,
    /// Keys that order the iterations, ascending; iterations with equal keys keep their order.
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
    /// Ends the recipe with this error message if the formula is 0.
    Require(Formula, String),
    /// Assigns variables of the recipe.
    Let(Vec<Assignment>),
    /// Assigns values to global variables, to parts of global variables, or to typed memory.
    Set(Vec<Assignment>),
    /// Sets members of the ops table.
    Ops(Vec<(String, Formula)>),
    /// Sets the number of elements of array variables that are the last in their section.
    Resize(Vec<(Named, Formula)>),
    MaxEntries(Vec<(Named, Formula)>),
    /// Sets whether programs are loaded.
    Autoload(Vec<(Named, Formula)>),
    /// Fills the given number of slots of a map of maps with new maps.
    InnerMaps(Vec<(Named, Formula)>),
    Run(Run),
    Update(Update),
    /// Attaches the scheduler at this point.
    Attach,
}

/// Name of a map, a program or a variable of the object.
#[derive(Clone, Debug)]
struct Named {
    name: String,
    /// Whether the name ends in `?` in the recipe, because some versions of the scheduler have
    /// nothing of that name.
    optional: bool,
}

/// Runs a syscall program with a context, checks its return value and reads the context back.
#[derive(Clone, Debug)]
struct Run {
    program: Named,
    ctx: Vec<Assignment>,
    /// Expected return value; None accepts any value.
    returns: Option<Formula>,
    /// Pairs of a variable of the recipe and the context field whose value it gets.
    into: Vec<(Target, Target)>,
    /// CPU on which user space runs the program.
    cpu: Option<Formula>,
}

/// Writes an element of a map. Fields that are not named keep their value, or are zero in a new
/// element.
#[derive(Clone, Debug)]
struct Update {
    map: Named,
    key: Content,
    value: Content,
    /// CPU whose copy of a per-CPU map is written; None writes all copies.
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

/// A file and a line in it. A step may come from an included file.
#[derive(Clone, Debug)]
struct SourcePos {
    file: Arc<str>,
    line: usize,
}

/// A formula with its source position.
#[derive(Clone, Debug)]
struct Formula {
    place: SourcePos,
    text: String,
    expr: Expr,
}

type RecipeResult<T> = Result<T, RecipeError>;

/// An error in a recipe, or in its use on this object and machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{recipe}:{line}: {what}{advice}")]
pub struct RecipeError {
    pub recipe: String,
    pub line: usize,
    #[source]
    pub what: Box<RecipeErrorKind>,
    /// Advice to the user if the object lacks a name that the recipe uses; empty otherwise.
    pub advice: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecipeErrorKind {
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
    #[error("\"{key}\" is allowed only together with {beside}")]
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
    #[error("context of `{program}` has {size} bytes; the kernel takes {max} at most")]
    LargeContext { program: String, size: u64, max: u64 },
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
        "this step must come before all steps that run a program or fill a map, because those need the loaded object"
    )]
    TooLate,
    #[error("the recipe attaches the scheduler twice")]
    AttachedTwice,
}

impl RecipeError {
    fn at(place: &SourcePos, what: RecipeErrorKind) -> RecipeError {
        let (recipe, line) = (place.file.to_string(), place.line);
        RecipeError { recipe, line, what: Box::new(what), advice: String::new() }
    }

    /// Adds advice to the error if the error shows that the object is of another version: the
    /// versions that the recipe is for, and the user's alternatives.
    fn advised(mut self, recipe: &Recipe) -> RecipeError {
        let lacks = match &*self.what {
            RecipeErrorKind::Global(e) => {
                matches!(e, GlobalError::NoVariable { .. } | GlobalError::Path { .. })
            }
            RecipeErrorKind::Formula(e) => matches!(e, ExprError::NoName { .. }),
            RecipeErrorKind::Missing { .. }
            | RecipeErrorKind::Context { .. }
            | RecipeErrorKind::NoContext { .. } => true,
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
            // An assignment to an address needs a loaded object, because the memory there exists
            // only once a program has run.
            Action::Set(all) => all.iter().any(|a| a.target.at.is_some()),
            _ => false,
        }
    }

    /// Tells whether the action requires an object that is not loaded yet.
    fn needs_open(&self) -> bool {
        matches!(
            self,
            Action::Ops(_) | Action::Resize(_) | Action::MaxEntries(_) | Action::Autoload(_)
        )
    }
}

/// Assigns each step its phase. A step that changes the object before load must come before all
/// steps that need the object loaded.
fn schedule(steps: &mut [RecipeStep]) -> Result<(), RecipeError> {
    let mut phase = Phase::Open;
    for step in steps {
        if step.action.needs_loaded() {
            phase = phase.max(Phase::Loaded);
        } else if step.action.needs_open() && phase > Phase::Open {
            return Err(RecipeError::at(&step.place, RecipeErrorKind::TooLate));
        }
        step.phase = phase;
        if matches!(step.action, Action::Attach) {
            if phase == Phase::Attached {
                return Err(RecipeError::at(&step.place, RecipeErrorKind::AttachedTwice));
            }
            phase = Phase::Attached;
        }
    }
    Ok(())
}
