// SPDX-License-Identifier: GPL-2.0-only
use super::*;

fn user() -> Dsq {
    Dsq::new(DsqKind::User { id: 1 })
}

fn order(dsq: &Dsq) -> Vec<u32> {
    dsq.iter().map(|t| t.0).collect()
}

#[test]
fn head_goes_before_and_tail_after() {
    let mut q = user();
    q.insert(TaskId(1), InsertAt::Tail);
    q.insert(TaskId(2), InsertAt::Tail);
    q.insert(TaskId(3), InsertAt::Head);
    q.insert(TaskId(4), InsertAt::Head);
    assert_eq!(order(&q), [4, 3, 1, 2]);
    assert_eq!(q.first(), Some(TaskId(4)));
}

#[test]
fn vtime_orders_by_signed_difference_and_arrival() {
    let mut q = user();
    q.insert(TaskId(1), InsertAt::Vtime(u64::MAX - 5));
    q.insert(TaskId(2), InsertAt::Vtime(10));
    q.insert(TaskId(3), InsertAt::Vtime(u64::MAX - 50));
    q.insert(TaskId(4), InsertAt::Vtime(10));
    assert_eq!(order(&q), [3, 1, 2, 4]);
}

#[test]
fn removal_from_the_middle_keeps_the_rest() {
    let mut q = user();
    let keys: Vec<_> = (0..5).map(|i| q.insert(TaskId(i), InsertAt::Tail)).collect();
    q.remove(keys[2], false);
    q.remove(keys[0], false);
    assert_eq!(order(&q), [1, 3, 4]);
    assert_eq!(q.len(), 3);
}

#[test]
fn an_iterator_does_not_see_what_came_after_it_began() {
    let mut q = user();
    q.insert(TaskId(1), InsertAt::Tail);
    let max_seq = q.seq;
    q.insert(TaskId(2), InsertAt::Tail);
    let (key, task) = q.next_after(None, max_seq, false).unwrap();
    assert_eq!(task, TaskId(1));
    assert_eq!(q.next_after(Some(key), max_seq, false), None);
    assert_eq!(q.next_after(None, max_seq, true).map(|e| e.1), Some(TaskId(1)));
}

#[test]
fn ids_are_unique_until_destroyed() {
    let mut table = DsqTable::new(2, 1);
    for id in [0, 7, SMALL_IDS as u64 - 1, SMALL_IDS as u64, u64::MAX] {
        let dsq = table.create(id).unwrap();
        assert_eq!((table.create(id), table.user(id)), (None, Some(dsq)));
        table.destroy(dsq);
        assert_eq!(table.user(id), None);
        assert!(matches!(table.get(dsq).kind, DsqKind::Gone { id: gone } if gone == id));
        assert!(table.create(id).is_some());
    }
}
