// SPDX-License-Identifier: GPL-2.0-only
//! The queue against a sorted list, on arbitrary sequences of pushes and pops.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Push(Nanos),
    PushIn(usize, Nanos),
    Pop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few distinct times, so that ties are common; now and then an extreme one.
    let time =
        || prop_oneof![8 => 0u64..8, 4 => 0u64..1000, 1 => any::<u64>(), 1 => Just(u64::MAX)];
    let step = prop_oneof![
        2 => time().prop_map(Step::Push),
        3 => (0..LANES, time()).prop_map(|(lane, at)| Step::PushIn(lane, at)),
        3 => Just(Step::Pop)
    ];
    prop::collection::vec(step, 0..400)
}

proptest! {
    #[test]
    fn pops_in_order_of_time_then_insertion(steps in steps()) {
        let mut queue = EventQueue::new();
        let mut model = BTreeSet::new();
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push(time) => {
                    let seq = queue.push(time, i);
                    prop_assert!(model.insert((time, seq, i)));
                }
                Step::PushIn(lane, time) => {
                    let seq = queue.push_in(lane, time, i);
                    prop_assert!(model.insert((time, seq, i)));
                }
                Step::Pop => {
                    let got = queue.pop().map(|e| (e.time, e.seq, e.what));
                    prop_assert_eq!(got, model.pop_first());
                }
            }
            prop_assert_eq!(queue.len(), model.len());
            prop_assert_eq!(queue.is_empty(), model.is_empty());
            prop_assert_eq!(queue.peek_time(), model.first().map(|m| m.0));
            prop_assert_eq!(queue.peek().map(|e| e.what), model.first().map(|m| m.2));
        }
        let mut left: Vec<_> = queue.iter_unordered().map(|e| e.seq).collect();
        left.sort();
        let mut expected: Vec<_> = model.iter().map(|m| m.1).collect();
        expected.sort();
        prop_assert_eq!(left, expected);
        let drained: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|e| (e.time, e.seq, e.what)).collect();
        prop_assert_eq!(drained, model.into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn numbers_are_never_given_twice() {
    let mut queue = EventQueue::new();
    assert_eq!(queue.push(5, ()), 0);
    queue.pop();
    assert_eq!(queue.push(5, ()), 1);
    assert!(queue.pop().is_some());
    assert!(queue.pop().is_none());
}
