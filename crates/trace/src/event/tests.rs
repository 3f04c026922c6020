// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the hash of events: every field of every kind affects it, and kinds do not collide.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

pub(crate) fn task() -> impl Strategy<Value = TaskId> {
    prop_oneof![4 => 0u32..6, 1 => any::<u32>()].prop_map(TaskId)
}

fn cpu() -> impl Strategy<Value = CpuId> {
    prop_oneof![8 => 0u32..6, 1 => any::<u32>()].prop_map(CpuId)
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..6, 1 => any::<u64>()]
}

fn state() -> impl Strategy<Value = PrevState> {
    prop_oneof![Just(PrevState::Runnable), Just(PrevState::Sleeping), Just(PrevState::Exited)]
}

/// Generates events of any kind. Small values are frequent, so that an encoding that mixes up two
/// fields gives equal hashes to different events.
pub(crate) fn kind() -> impl Strategy<Value = EventKind> {
    let none_or = || prop::option::of(task());
    prop_oneof![
        (none_or(), none_or(), state()).prop_map(|(prev, next, prev_state)| EventKind::Switch {
            prev,
            next,
            prev_state
        }),
        (task(), cpu(), none_or()).prop_map(|(task, target, waker)| EventKind::Wakeup {
            task,
            target,
            waker
        }),
        (task(), cpu(), cpu()).prop_map(|(task, from, to)| EventKind::Migrate { task, from, to }),
        (any::<u8>(), number(), none_or()).prop_map(|(op, cost_ns, task)| EventKind::Op {
            op,
            cost_ns,
            task
        }),
        (task(), number(), number()).prop_map(|(task, dsq, flags)| EventKind::DsqInsert {
            task,
            dsq,
            flags
        }),
        (task(), number(), number()).prop_map(|(task, from, to)| EventKind::DsqMove {
            task,
            from,
            to
        }),
        (cpu(), number()).prop_map(|(target, flags)| EventKind::Kick { target, flags }),
        (number(), number()).prop_map(|(lock, wait_ns)| EventKind::LockWait { lock, wait_ns }),
        (0u32..6, any::<bool>())
            .prop_map(|(c, on)| EventKind::Throttle { cgroup: CgroupId(c), on }),
        (none_or(), task()).prop_map(|(parent, child)| EventKind::Fork { parent, child }),
        task().prop_map(|task| EventKind::Exit { task }),
        any::<bool>().prop_map(|online| EventKind::CpuOnline { online }),
        number().prop_map(|events| EventKind::Lost { events }),
        (0u32..3, 0u32..3, prop::option::of(0u32..3), any::<bool>()).prop_map(
            |(guest, vcpu, thread, spins)| EventKind::GuestRun { guest, vcpu, thread, spins }
        ),
        (0u32..6, -3i64..3).prop_map(|(kind, code)| EventKind::SchedExit { kind, code }),
        number().prop_map(|text_hash| EventKind::Printk { text_hash }),
    ]
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    (number(), cpu(), kind()).prop_map(|(time, cpu, kind)| Event { time, cpu, kind })
}

fn hash(events: &[Event]) -> u64 {
    let mut hash = TraceHash::default();
    events.iter().for_each(|event| event.fold_into(&mut hash));
    hash.finish()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Checks that of many events with few distinct values, only equal events have equal hashes.
    #[test]
    fn different_events_have_different_hashes(events in prop::collection::vec(event(), 100)) {
        let mut by_hash = BTreeMap::new();
        for event in events {
            let earlier = *by_hash.entry(hash(&[event])).or_insert(event);
            prop_assert_eq!(earlier, event);
        }
    }

    #[test]
    fn order_and_number_of_events_count(a in event(), b in event()) {
        prop_assert_ne!(hash(&[a, a]), hash(&[a]));
        if a != b {
            prop_assert_ne!(hash(&[a, b]), hash(&[b, a]));
        }
    }
}

/// A trace must have the same hash in every version of scxlab. A second implementation computed
/// `GOLDEN`, the expected hash of these three events. The first two words of each event are its
/// time and a word with its kind and CPU.
#[test]
fn values_never_change() {
    let wakeup = EventKind::Wakeup { task: TaskId(7), target: CpuId(2), waker: None };
    let switch =
        EventKind::Switch { prev: None, next: Some(TaskId(7)), prev_state: PrevState::Sleeping };
    let events = [
        Event { time: 1000, cpu: CpuId(1), kind: wakeup },
        Event { time: 2500, cpu: CpuId(2), kind: switch },
        Event { time: 2500, cpu: CpuId(2), kind: EventKind::SchedExit { kind: 1026, code: -1 } },
    ];
    assert_eq!(hash(&events), GOLDEN);
}

const GOLDEN: u64 = 0x6b9803a40726bb03;
