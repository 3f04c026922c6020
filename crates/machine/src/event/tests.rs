// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the queue against a sorted list, on arbitrary sequences of pushes and pops.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Push(Nanos),
    PushIn(usize, Nanos),
    /// Pushes an event this long after the last popped one.
    PushAfter(usize, Nanos),
    Pop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few distinct times make ties common; an extreme time is rare.
    let time =
        || prop_oneof![8 => 0u64..8, 4 => 0u64..1000, 1 => any::<u64>(), 1 => Just(u64::MAX)];
    // One lane gets the most events, so that it grows and wraps around.
    let lane = || prop_oneof![2 => Just(1), 1 => 0..LANES];
    let step = prop_oneof![
        2 => time().prop_map(Step::Push),
        3 => (lane(), time()).prop_map(|(lane, at)| Step::PushIn(lane, at)),
        6 => (lane(), 0u64..8).prop_map(|(lane, delay)| Step::PushAfter(lane, delay)),
        9 => Just(Step::Pop)
    ];
    prop::collection::vec(step, 0..600)
}

proptest! {
    #[test]
    fn pops_in_order_of_time_then_insertion(steps in steps()) {
        let mut queue = EventQueue::new();
        let mut model = BTreeSet::new();
        let mut now: Nanos = 0;
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push(time) => {
                    queue.push(time, i);
                    model.insert((time, i));
                }
                Step::PushIn(lane, time) => {
                    queue.push_in(lane, time, i);
                    model.insert((time, i));
                }
                Step::PushAfter(lane, delay) => {
                    let time = now.saturating_add(delay);
                    queue.push_in(lane, time, i);
                    model.insert((time, i));
                }
                Step::Pop => {
                    let got = queue.pop().map(|e| (e.time, e.what));
                    prop_assert_eq!(got, model.pop_first());
                    now = got.map_or(now, |e| e.0);
                }
            }
            prop_assert_eq!(queue.len(), model.len());
            prop_assert_eq!(queue.is_empty(), model.is_empty());
            prop_assert_eq!(queue.nothing_due_by(now), model.first().is_none_or(|m| m.0 > now) && now < Nanos::MAX);
            if let Some(&(first, _)) = model.first() {
                prop_assert!(!queue.nothing_due_by(first) && (first == 0 || queue.nothing_due_by(first - 1)));
            }
        }
        let mut left: Vec<_> = queue.iter_unordered().map(|e| e.what).collect();
        left.sort();
        let mut expected: Vec<_> = model.iter().map(|m| m.1).collect();
        expected.sort();
        prop_assert_eq!(left, expected);
        let drained: Vec<_> = std::iter::from_fn(|| queue.pop().copied()).map(|e| (e.time, e.what)).collect();
        prop_assert_eq!(drained, model.into_iter().collect::<Vec<_>>());
    }
}

/// Covers a lane that grows while its front is not its first place, and events that are too early
/// for the lane and go to the heap.
#[test]
fn a_lane_grows_wherever_it_begins() {
    for taken in 0..40 {
        let mut queue = EventQueue::new();
        let mut expected = Vec::new();
        for i in 0..taken {
            queue.push_in(0, i, i);
            queue.pop();
        }
        for i in taken..taken + 100 {
            let time = i + 100 - if i % 10 == 9 { 9 * (i % 4) } else { 0 };
            queue.push_in(0, time, i);
            expected.push((time, i));
        }
        expected.sort();
        assert_eq!(queue.iter_unordered().count(), expected.len());
        let drained: Vec<_> =
            std::iter::from_fn(|| queue.pop().copied()).map(|e| (e.time, e.what)).collect();
        assert_eq!(drained, expected);
    }
}

#[test]
fn ahead_is_the_lane_from_which_the_last_event_came() {
    let mut queue = EventQueue::new();
    (0..40).for_each(|i| queue.push_in((i % 2) as usize, i, i));
    for taken in 0..40 {
        assert_eq!(queue.pop().map(|e| e.what), Some(taken));
        let ahead = taken + 2 * 3;
        assert_eq!(queue.peek_behind_head(2).map(|e| e.what), (ahead < 40).then_some(ahead));
    }
}
