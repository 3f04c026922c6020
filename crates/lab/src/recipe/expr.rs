// SPDX-License-Identifier: GPL-2.0-only
//! Formulas in recipes: whole numbers, names, functions and C's operators.
//!
//! Owns: the grammar and its checked arithmetic; overflow and division by zero are errors.
//! Does not: know any name or function (see `facts.rs`). Syntax errors state what was expected.
//!
//! ```text
//! formula  = or [ "?" formula ":" formula ]
//! or       = C's binary operators, lowest first: ||  &&  |  ^  &  == !=  < <= > >=  << >>  + -  * / %
//! unary    = ("-" | "!" | "~") unary | primary
//! primary  = NUMBER | place | ( "sizeof" | "exists" ) "(" NAME ")" | NAME "(" formula { "," formula } ")"
//!          | "(" formula ")"
//! place    = NAME { "[" formula "]" | "." NAME }
//! target   = place [ "?" ] | NAME "(" formula ")" { "[" formula "]" | "." NAME }
//! ```

#[cfg(test)]
mod tests;

use scxlab_loader::link::knob::parse_int;

/// A parsed formula.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    Number(i128),
    Name(String),
    /// A field or element of a named variable.
    Part(String, Vec<StepExpr>),
    Call(String, Vec<Expr>),
    /// Size in bytes of a type of the object.
    SizeOf(String),
    /// Whether the object has a variable, map or program of that name.
    Exists(String),
    Unary(&'static str, Box<Expr>),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    Choice(Box<Expr>, Box<Expr>, Box<Expr>),
}

/// One step on the path from a variable to a part of it, as written: `.field` or `[formula]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepExpr {
    Field(String),
    Index(Expr),
}

/// One step on the path from a variable to a part of it, with the index evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathStep {
    Field(String),
    Index(i128),
}

/// The left side of an assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of a variable or, if `at` is given, of a type.
    pub name: String,
    /// Formula for the address of the value that is assigned to, which has the type `name`.
    pub at: Option<Expr>,
    pub steps: Vec<StepExpr>,
    /// Whether the target ends in `?`, which drops the assignment if the variable does not exist.
    pub optional: bool,
}

/// Provides the values of a formula's names and functions.
pub trait NameResolver {
    fn name(&self, name: &str) -> Result<i128, ExprError>;
    fn part(&self, name: &str, steps: &[PathStep]) -> Result<i128, ExprError>;
    fn call(&self, name: &str, args: &[i128]) -> Result<i128, ExprError>;
    fn size_of(&self, ty: &str) -> Result<i128, ExprError>;
    fn exists(&self, name: &str) -> bool;
}

/// Reason why a formula has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExprError {
    #[error("\"{text}\": {found} where {expected} should be")]
    Syntax { text: String, found: String, expected: &'static str },
    #[error("a formula is longer than {max} bytes")]
    Length { max: usize },
    #[error("\"{text}\" is nested too deeply")]
    Depth { text: String },
    #[error("nothing is called `{name}`{}", hint(.candidates))]
    NoName { name: String, candidates: Vec<String> },
    #[error("no function is called `{name}`; there are {candidates}")]
    NoFunction { name: String, candidates: String },
    #[error("`{name}` takes {wanted} arguments, not {given}")]
    Arguments { name: String, wanted: usize, given: usize },
    #[error("`{name}({arg})`: the machine has {what} 0 to {max}")]
    OutOfRange { name: String, arg: i128, what: &'static str, max: i128 },
    #[error("`{place}` has no value{why}")]
    NoValue { place: String, why: String },
    #[error("division by zero")]
    DivisionByZero,
    #[error("a number exceeds 128 bits")]
    Overflow,
}

fn hint(candidates: &[String]) -> String {
    if candidates.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", candidates.join(", "))
    }
}

/// Maximum nesting depth of a formula, which bounds the stack; `MAX_LEN` is the maximum length in
/// bytes. Useful formulas stay far below both limits.
const MAX_DEPTH: u32 = 64;
const MAX_LEN: usize = 4096;

/// Binary operators by precedence, lowest first. Within a level, an operator comes before its
/// prefixes: `<=` before `<`.
const LEVELS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<=", ">=", "<", ">"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

impl Expr {
    pub fn parse(text: &str) -> Result<Expr, ExprError> {
        let mut parser = Parser::new(text)?;
        let expr = parser.choice()?;
        parser.end("an operator or the end")?;
        Ok(expr)
    }

    pub fn value(&self, names: &dyn NameResolver) -> Result<i128, ExprError> {
        Ok(match self {
            Expr::Number(n) => *n,
            Expr::Name(name) => names.name(name)?,
            Expr::Part(name, steps) => names.part(name, &known(steps, names)?)?,
            Expr::SizeOf(ty) => names.size_of(ty)?,
            Expr::Exists(name) => names.exists(name).into(),
            Expr::Call(name, args) => {
                let args: Result<Vec<i128>, _> = args.iter().map(|a| a.value(names)).collect();
                names.call(name, &args?)?
            }
            Expr::Unary(op, inner) => unary(op, inner.value(names)?)?,
            Expr::Binary("&&", a, b) => i128::from(a.value(names)? != 0 && b.value(names)? != 0),
            Expr::Binary("||", a, b) => i128::from(a.value(names)? != 0 || b.value(names)? != 0),
            Expr::Binary(op, a, b) => binary(op, a.value(names)?, b.value(names)?)?,
            Expr::Choice(test, yes, no) => {
                let chosen = if test.value(names)? != 0 { yes } else { no };
                chosen.value(names)?
            }
        })
    }
}

impl Target {
    pub fn parse(text: &str) -> Result<Target, ExprError> {
        let mut parser = Parser::new(text)?;
        let name = parser.word("a name")?;
        let at = if parser.eat("(") { Some(parser.choice()?) } else { None };
        if at.is_some() && !parser.eat(")") {
            return Err(parser.unexpected("\")\""));
        }
        let steps = parser.steps()?;
        let optional = at.is_none() && parser.eat("?");
        parser.end("\".\", \"[\" or the end")?;
        Ok(Target { name, at, steps, optional })
    }

    /// Returns the steps from the variable to the assigned part, with their indices evaluated.
    pub fn steps(&self, names: &dyn NameResolver) -> Result<Vec<PathStep>, ExprError> {
        known(&self.steps, names)
    }
}

fn known(steps: &[StepExpr], names: &dyn NameResolver) -> Result<Vec<PathStep>, ExprError> {
    let known = |step: &StepExpr| {
        Ok(match step {
            StepExpr::Field(name) => PathStep::Field(name.clone()),
            StepExpr::Index(formula) => PathStep::Index(formula.value(names)?),
        })
    };
    steps.iter().map(known).collect()
}

/// Formats a variable's name and the steps to a part of it as a BTF path, such as `a.b[2]`.
pub fn path_text(name: &str, steps: &[PathStep]) -> String {
    let mut text = name.to_owned();
    for step in steps {
        match step {
            PathStep::Field(field) => text.extend([".", field]),
            PathStep::Index(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

fn unary(op: &str, n: i128) -> Result<i128, ExprError> {
    match op {
        "-" => n.checked_neg().ok_or(ExprError::Overflow),
        "~" => Ok(!n),
        _ => Ok(i128::from(n == 0)),
    }
}

fn binary(op: &str, a: i128, b: i128) -> Result<i128, ExprError> {
    let truth = |yes| Ok(i128::from(yes));
    let result = match op {
        "|" => return Ok(a | b),
        "^" => return Ok(a ^ b),
        "&" => return Ok(a & b),
        "==" => return truth(a == b),
        "!=" => return truth(a != b),
        "<" => return truth(a < b),
        "<=" => return truth(a <= b),
        ">" => return truth(a > b),
        ">=" => return truth(a >= b),
        "/" | "%" if b == 0 => return Err(ExprError::DivisionByZero),
        "/" => a.checked_div(b),
        "%" => a.checked_rem(b),
        "<<" => shift_left(a, b),
        ">>" => u32::try_from(b).ok().and_then(|by| a.checked_shr(by)),
        "+" => a.checked_add(b),
        "-" => a.checked_sub(b),
        _ => a.checked_mul(b),
    };
    result.ok_or(ExprError::Overflow)
}

/// Shifts left. A result that does not fit 128 bits is an overflow, as for `*`.
fn shift_left(a: i128, by: i128) -> Option<i128> {
    let factor = 1i128.checked_shl(u32::try_from(by).ok()?).filter(|f| *f > 0)?;
    a.checked_mul(factor)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Result<Parser<'a>, ExprError> {
        if text.len() > MAX_LEN {
            return Err(ExprError::Length { max: MAX_LEN });
        }
        Ok(Parser { text, at: 0, depth: 0 })
    }

    fn end(&mut self, expected: &'static str) -> Result<(), ExprError> {
        self.skip_space();
        if self.at < self.text.len() { Err(self.unexpected(expected)) } else { Ok(()) }
    }

    fn choice(&mut self) -> Result<Expr, ExprError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(ExprError::Depth { text: self.text.into() });
        }
        let test = self.binary(0)?;
        let expr = if self.eat("?") {
            let yes = self.choice()?;
            if !self.eat(":") {
                return Err(self.unexpected("\":\""));
            }
            Expr::Choice(Box::new(test), Box::new(yes), Box::new(self.choice()?))
        } else {
            test
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn binary(&mut self, level: usize) -> Result<Expr, ExprError> {
        let Some(ops) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut left = self.binary(level + 1)?;
        while let Some(op) = self.operator(ops) {
            let right = self.binary(level + 1)?;
            left = Expr::Binary(op, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    /// Reads one of the operators `ops`, unless the text begins with a longer operator, such as
    /// `<<` where `<` is looked for.
    fn operator(&mut self, ops: &[&'static str]) -> Option<&'static str> {
        self.skip_space();
        let rest = &self.text[self.at..];
        let longest = LEVELS
            .iter()
            .flat_map(|level| level.iter())
            .filter(|op| rest.starts_with(**op))
            .max_by_key(|op| op.len())?;
        let op = ops.iter().find(|op| *op == longest)?;
        self.at += op.len();
        Some(op)
    }

    fn unary(&mut self) -> Result<Expr, ExprError> {
        self.skip_space();
        for op in ["-", "!", "~"] {
            if self.text[self.at..].starts_with(op) {
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err(ExprError::Depth { text: self.text.into() });
                }
                self.at += 1;
                let inner = self.unary()?;
                self.depth -= 1;
                return Ok(Expr::Unary(op, Box::new(inner)));
            }
        }
        self.primary()
    }

    fn primary(&mut self) -> Result<Expr, ExprError> {
        if self.eat("(") {
            let inner = self.choice()?;
            return if self.eat(")") { Ok(inner) } else { Err(self.unexpected("\")\"")) };
        }
        let word = self.word("a number, a name or \"(\"")?;
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return parse_int(&word).map(Expr::Number).ok_or_else(|| {
                self.at -= word.len();
                self.unexpected("a number")
            });
        }
        if !self.eat("(") {
            let steps = self.steps()?;
            return Ok(if steps.is_empty() { Expr::Name(word) } else { Expr::Part(word, steps) });
        }
        if word == "sizeof" || word == "exists" {
            let name = self.word("a name")?;
            if !self.eat(")") {
                return Err(self.unexpected("\")\""));
            }
            return Ok(if word == "sizeof" { Expr::SizeOf(name) } else { Expr::Exists(name) });
        }
        let mut args = Vec::new();
        while !self.eat(")") {
            if !args.is_empty() && !self.eat(",") {
                return Err(self.unexpected("\",\" or \")\""));
            }
            args.push(self.choice()?);
        }
        Ok(Expr::Call(word, args))
    }

    /// Reads the steps after a variable's name: any number of `[formula]` and `.field`.
    fn steps(&mut self) -> Result<Vec<StepExpr>, ExprError> {
        let mut steps = Vec::new();
        loop {
            if self.eat("[") {
                steps.push(StepExpr::Index(self.choice()?));
                if !self.eat("]") {
                    return Err(self.unexpected("\"]\""));
                }
            } else if self.eat(".") {
                steps.push(StepExpr::Field(self.word("a field's name")?));
            } else {
                return Ok(steps);
            }
        }
    }

    /// Reads a word of letters, digits and underscores.
    fn word(&mut self, expected: &'static str) -> Result<String, ExprError> {
        self.skip_space();
        let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let rest = &self.text[self.at..];
        let len = rest.bytes().take_while(|b| is_word(*b)).count();
        if len == 0 {
            return Err(self.unexpected(expected));
        }
        self.at += len;
        Ok(rest[..len].to_owned())
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip_space();
        let found = self.text[self.at..].starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn skip_space(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn unexpected(&self, expected: &'static str) -> ExprError {
        let found = match self.text[self.at..].chars().next() {
            None => "the end".to_owned(),
            Some(c) => format!("\"{c}\""),
        };
        ExprError::Syntax { text: self.text.into(), found, expected }
    }
}
