// SPDX-License-Identifier: GPL-2.0-only
//! A rehearsal: whether a program's threads can each do two passes without waiting for ever.
//!
//! Owns: the ops without time: each takes none, and a thread goes on until it must wait for another
//! thread. Tokens, bytes and parties are as in the executor.
//! Does not: try every order. Programs whose every object has one waiter end in all orders if they
//! end in one. Where several threads wait on one semaphore, or read one channel, each may take what
//! another one takes in another order, so that a few orders are tried.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use scxlab_machine::Stream;
use scxlab_workload::program::{Op, Program};

/// Passes of each endless loop.
const PASSES: u32 = 2;

/// Largest number of orders that are tried if threads take from one another.
const ORDERS: u64 = 8;

/// Ops of a program times the orders that are tried, at most, if that is more than one order. A
/// rehearsal of a million ops takes about as long as reading the events that they come from.
const MAX_OPS: u64 = 4_000_000;

/// Returns whether all threads come to the end of their passes.
pub fn ends(program: &Program) -> bool {
    let ops: u64 = program.threads.iter().map(|thread| count(&thread.ops)).sum();
    let orders = if shares(program) { (MAX_OPS / ops.max(1)).clamp(1, ORDERS) } else { 1 };
    (0..orders).all(|order| ends_in(program, order))
}

/// Returns the number of ops in a list, each loop's once.
fn count(ops: &[Op]) -> u64 {
    let one = |op: &Op| if let Op::Loop { ops, .. } = op { count(ops) } else { 1 };
    ops.iter().map(one).sum()
}

/// Whether several threads wait on one semaphore, or read one channel.
fn shares(program: &Program) -> bool {
    let mut takers: BTreeMap<(&'static str, &str), usize> = BTreeMap::new();
    for thread in &program.threads {
        let mut taken = BTreeSet::new();
        takes(&thread.ops, &mut taken);
        for object in taken {
            *takers.entry(object).or_default() += 1;
        }
    }
    takers.into_values().any(|threads| threads > 1)
}

/// Collects the semaphores and channels from which ops take.
fn takes<'a>(ops: &'a [Op], taken: &mut BTreeSet<(&'static str, &'a str)>) {
    for op in ops {
        match op {
            Op::Loop { ops, .. } => takes(ops, taken),
            Op::SemWait(name) => _ = taken.insert(("semaphore", name)),
            Op::Read { pipe, .. } => _ = taken.insert(("pipe", pipe)),
            Op::Poll { pipes, .. } => {
                taken.extend(pipes.iter().map(|pipe| ("pipe", pipe.as_str())));
            }
            _ => {}
        }
    }
}

/// Returns whether all threads come to the end if they go on in one of the orders: 0 is that in
/// which they can go on, and the others are drawn.
fn ends_in(program: &Program, order: u64) -> bool {
    let mut stream = Stream::new(order, "rehearsal", 0);
    let mut stage = Stage::new(program);
    for (i, thread) in program.threads.iter().enumerate() {
        for _ in 0..thread.instances {
            stage.start(i);
        }
    }
    loop {
        if order > 0 && stage.ready.len() > 1 {
            let next = stream.below(stage.ready.len() as u64) as usize;
            stage.ready.swap(0, next);
        }
        let Some(actor) = stage.ready.pop_front() else { break };
        stage.run(actor);
    }
    stage.waiting == 0
}

/// A thread: the positions in nested lists of ops.
struct Actor<'a> {
    frames: Vec<Frame<'a>>,
    /// Bytes that its present transfer still has to move; None: the transfer has not begun.
    left: Option<u64>,
    /// Whether it waits. A poller that one of its pipes has woken is still in the others' lists.
    waits: bool,
}

struct Frame<'a> {
    ops: &'a [Op],
    at: usize,
    passes: u64,
}

#[derive(Default)]
struct Object {
    tokens: u64,
    capacity: u64,
    owned: bool,
    parties: u32,
    arrived: u32,
    waiters: VecDeque<usize>,
}

struct Stage<'a> {
    program: &'a Program,
    actors: Vec<Actor<'a>>,
    ready: VecDeque<usize>,
    waiting: usize,
    objects: BTreeMap<(&'static str, &'a str), Object>,
    templates: BTreeMap<&'a str, usize>,
}

impl<'a> Stage<'a> {
    fn new(program: &'a Program) -> Stage<'a> {
        let mut objects: BTreeMap<(&'static str, &'a str), Object> = BTreeMap::new();
        for s in &program.semaphores {
            objects.entry(("semaphore", &s.name)).or_default().tokens = s.value.into();
        }
        for b in &program.barriers {
            objects.entry(("barrier", &b.name)).or_default().parties = b.parties;
        }
        for p in &program.pipes {
            // A message's overhead takes room, too; one message always fits.
            objects.entry(("pipe", &p.name)).or_default().capacity = p.capacity();
        }
        let templates = program.threads.iter().enumerate().map(|(i, t)| (&*t.name, i)).collect();
        let (actors, ready) = (Vec::new(), VecDeque::new());
        Stage { program, actors, ready, waiting: 0, objects, templates }
    }

    fn start(&mut self, template: usize) {
        let ops = &self.program.threads[template].ops;
        self.actors.push(Actor {
            frames: vec![Frame { ops, at: 0, passes: 1 }],
            left: None,
            waits: false,
        });
        self.ready.push_back(self.actors.len() - 1);
    }

    /// Lets a thread go on until it ends or waits.
    fn run(&mut self, actor: usize) {
        while let Some(op) = self.actors[actor].next() {
            if !self.act(actor, op) {
                self.waiting += 1;
                return;
            }
            self.actors[actor].advance();
        }
    }

    fn wake(&mut self, object: (&'static str, &'a str), most: usize) {
        let waiters = &mut self.objects.entry(object).or_default().waiters;
        for _ in 0..most {
            let Some(actor) = waiters.pop_front() else { return };
            if std::mem::replace(&mut self.actors[actor].waits, false) {
                self.waiting -= 1;
                self.ready.push_back(actor);
            }
        }
    }

    fn wait(&mut self, object: (&'static str, &'a str), actor: usize) -> bool {
        self.objects.entry(object).or_default().waiters.push_back(actor);
        self.actors[actor].waits = true;
        false
    }

    /// Executes an op; returns false if the thread must wait, and do it again when it is woken.
    fn act(&mut self, actor: usize, op: &'a Op) -> bool {
        match op {
            Op::SemPost(name) => {
                self.objects.entry(("semaphore", name)).or_default().tokens += 1;
                self.wake(("semaphore", name), 1);
            }
            Op::SemWait(name) => {
                let object = self.objects.entry(("semaphore", name)).or_default();
                if object.tokens == 0 {
                    return self.wait(("semaphore", name), actor);
                }
                object.tokens -= 1;
            }
            Op::Lock(name) => {
                let object = self.objects.entry(("mutex", name)).or_default();
                if std::mem::replace(&mut object.owned, true) {
                    return self.wait(("mutex", name), actor);
                }
            }
            Op::Unlock(name) => {
                self.objects.entry(("mutex", name)).or_default().owned = false;
                self.wake(("mutex", name), 1);
            }
            Op::Barrier(name) => return self.barrier(actor, name),
            Op::Write { pipe, bytes } => return self.write(actor, pipe, *bytes),
            Op::Read { pipe, bytes } => return self.read(actor, &[pipe], *bytes),
            Op::Poll { pipes, bytes, .. } => {
                let pipes: Vec<&'a String> = pipes.iter().collect();
                return self.read(actor, &pipes, *bytes);
            }
            Op::Fork(name) => {
                if let Some(&template) = self.templates.get(&**name) {
                    self.start(template);
                }
            }
            _ => {}
        }
        true
    }

    fn barrier(&mut self, actor: usize, name: &'a str) -> bool {
        let object = self.objects.entry(("barrier", name)).or_default();
        if self.actors[actor].left.take().is_some() {
            // The last party has woken this one.
            return true;
        }
        object.arrived += 1;
        if object.arrived < object.parties {
            self.actors[actor].left = Some(0);
            return self.wait(("barrier", name), actor);
        }
        object.arrived = 0;
        self.wake(("barrier", name), usize::MAX);
        true
    }

    fn write(&mut self, actor: usize, pipe: &'a str, bytes: u64) -> bool {
        let left = self.actors[actor].left.unwrap_or(bytes);
        let object = self.objects.entry(("pipe", pipe)).or_default();
        let moved = left.min(object.capacity.saturating_sub(object.tokens));
        object.tokens += moved;
        if moved > 0 {
            self.wake(("pipe", pipe), usize::MAX);
        }
        self.moved(actor, left - moved) || self.wait(("pipe", pipe), actor)
    }

    fn read(&mut self, actor: usize, pipes: &[&'a String], bytes: u64) -> bool {
        let left = self.actors[actor].left.unwrap_or(bytes);
        let holds = |pipe: &&&'a String| {
            self.objects.get(&("pipe", pipe.as_str())).is_some_and(|o| o.tokens > 0)
        };
        let Some(pipe) = pipes.iter().find(holds).or(pipes.first()).copied() else { return true };
        let object = self.objects.entry(("pipe", pipe)).or_default();
        let moved = left.min(object.tokens);
        object.tokens -= moved;
        if moved > 0 {
            self.wake(("pipe", pipe), usize::MAX);
        }
        let done = self.moved(actor, left - moved);
        for pipe in pipes.iter().filter(|_| !done) {
            self.wait(("pipe", pipe), actor);
        }
        done
    }

    /// Notes the rest of a transfer. Returns whether there is none.
    fn moved(&mut self, actor: usize, left: u64) -> bool {
        self.actors[actor].left = (left > 0).then_some(left);
        left == 0
    }
}

impl<'a> Actor<'a> {
    /// Returns the present op; None: the thread has ended.
    fn next(&mut self) -> Option<&'a Op> {
        loop {
            let frame = self.frames.last_mut()?;
            match frame.ops.get(frame.at) {
                None if frame.passes > 1 => (frame.at, frame.passes) = (0, frame.passes - 1),
                None => {
                    self.frames.pop();
                    if let Some(outer) = self.frames.last_mut() {
                        outer.at += 1;
                    }
                }
                Some(Op::Loop { times, ops }) => {
                    let passes = times.unwrap_or(PASSES.into()).min(PASSES.into());
                    self.frames.push(Frame { ops, at: 0, passes });
                }
                Some(op) => return Some(op),
            }
        }
    }

    fn advance(&mut self) {
        if let Some(frame) = self.frames.last_mut() {
            frame.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    fn ends(text: &str) -> bool {
        super::ends(&scxlab_workload::load("a.toml", text).unwrap())
    }

    fn thread(name: &str, ops: &str) -> String {
        format!("[[thread]]\nname = '{name}'\nops = [{{ loop = {{ ops = [{ops}] }} }}]\n")
    }

    #[test]
    fn a_ring_of_semaphores_ends_if_one_begins() {
        let post = |s: &str| format!("{{ sem_post = '{s}' }}");
        let wait = |s: &str| format!("{{ sem_wait = '{s}' }}");
        let b = thread("b", &format!("{}, {}", wait("b"), post("a")));
        let first = thread("a", &format!("{}, {}", post("b"), wait("a")));
        let never = thread("a", &format!("{}, {}", wait("a"), post("b")));
        assert!(ends(&(first + &b)));
        assert!(!ends(&(never + &b)));
    }

    #[test]
    fn a_reader_needs_its_bytes_and_a_writer_room() {
        let pipe = "[[pipe]]\nname = 'p'\ncapacity = 100\n";
        let write = thread("w", "{ write = { pipe = 'p', bytes = 300 } }");
        let read = |bytes| thread("r", &format!("{{ read = {{ pipe = 'p', bytes = {bytes} }} }}"));
        assert!(ends(&format!("{pipe}{write}{}", read(300))));
        assert!(!ends(&format!("{pipe}{write}{}", read(301))));
        assert!(!ends(&format!("{pipe}{write}")));
    }

    /// Writers that wait for room do not wake one another for ever.
    #[test]
    fn a_full_pipe_ends_the_rehearsal() {
        let pipe = "[[pipe]]\nname = 'p'\ncapacity = 100\n";
        let write = |name| thread(name, "{ write = { pipe = 'p', bytes = 300 } }");
        assert!(!ends(&format!("{pipe}{}{}", write("v"), write("w"))));
    }

    #[test]
    fn a_poller_waits_for_all_its_pipes() {
        let pipes = "[[pipe]]\nname = 'p'\n[[pipe]]\nname = 'q'\n";
        let poll = thread("a", "{ poll = { pipes = ['p', 'q'], bytes = 8 } }, { sem_post = 's' }");
        let write = thread("b", "{ write = { pipe = 'q', bytes = 8 } }, { sem_wait = 's' }");
        assert!(ends(&format!("{pipes}{poll}{write}")));
    }

    /// Of two threads that wait on one semaphore, `a` needs `b` to go on, and `c` needs either.
    #[test]
    fn threads_that_take_from_one_another_end_in_all_orders() {
        let wait = |rest: &str| format!("{{ sem_wait = 'go' }}, {rest}");
        let a = thread("a", &wait("{ sem_wait = 'more' }, { sem_post = 'done' }"));
        let b = thread("b", &wait("{ sem_post = 'more' }, { sem_post = 'done' }"));
        let (post, done) = ("{ sem_post = 'go' }", "{ sem_wait = 'done' }");
        let with = |ops: [&str; 4]| thread("c", &ops.join(", ")) + &b + &a;
        assert!(ends(&with([post, post, done, done])));
        assert!(!ends(&with([post, done, post, done])));
    }

    #[test]
    fn mutexes_in_opposite_orders_can_end() {
        let ops = |a: &str, b: &str| {
            format!(
                "{{ lock = '{a}' }}, {{ lock = '{b}' }}, {{ unlock = '{b}' }}, {{ unlock = '{a}' }}"
            )
        };
        // Without time, one thread is through before the other begins.
        assert!(ends(&(thread("x", &ops("m", "n")) + &thread("y", &ops("n", "m")))));
    }
}
