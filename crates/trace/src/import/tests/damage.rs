// SPDX-License-Identifier: GPL-2.0-only
//! Damaged files: whatever the bytes, an import ends, and says what it could not read.

use proptest::prelude::*;
use scxlab_machine::{CpuId, Machine};

use super::*;
use crate::event::PrevState;
use crate::perfetto::PerfettoSink;
use crate::tracer::Tracer;

/// Returns a file in which the tasks 10 and 11 take turns on two CPUs.
fn file() -> Vec<u8> {
    let mut tracer =
        Tracer::with_sink(PerfettoSink::new(Vec::new(), &Machine::from_spec("2c").unwrap()));
    for (task, pid) in [(0, 10), (1, 11)] {
        let name = TaskName { pid, tgid: 10, comm: format!("t{pid}"), prio: 120 };
        tracer.names.set_task(TaskId(task), name);
    }
    for turn in 0..200u32 {
        let (cpu, task) = (CpuId(turn / 2 % 2), Some(TaskId(turn / 4 % 2)));
        let (prev, next) = if turn % 2 == 0 { (None, task) } else { (task, None) };
        let prev_state = if turn % 2 == 0 { PrevState::Runnable } else { PrevState::Sleeping };
        let kind = EventKind::Switch { prev, next, prev_state };
        tracer.note(Event { time: u64::from(turn) * 10, cpu, kind });
    }
    tracer.finish().unwrap();
    tracer.take_sink::<PerfettoSink<Vec<u8>>>().unwrap().into_inner()
}

/// Imports any bytes, which may be no trace.
fn try_read(bytes: &[u8]) -> Option<(usize, Imported)> {
    let mut reader = Reader::default();
    let imported = import("trace", bytes, &mut reader).ok()?;
    assert_eq!(imported.events.all(), reader.0.len() as u64);
    assert!(reader.0.is_sorted_by_key(|seen| seen.event.time));
    imported.missing().iter().chain(&imported.damage()).for_each(|text| assert!(!text.is_empty()));
    Some((reader.0.len(), imported))
}

#[test]
fn a_cut_file_gives_the_events_before_the_cut() {
    let file = file();
    let (all, whole) = try_read(&file).unwrap();
    assert_eq!((all, whole.end), (200, End::Whole));
    let mut most = 0;
    let mut cuts = 0;
    for end in 0..file.len() {
        let Some((events, imported)) = try_read(&file[..end]) else { continue };
        assert!(events >= most && events <= all, "cut at {end}");
        most = events;
        cuts += usize::from(imported.end != End::Whole);
        if imported.end != End::Whole {
            assert!(imported.damage().iter().any(|text| text.contains("cut off at byte")));
        }
    }
    assert!(cuts * 10 > file.len() * 9, "nearly every cut is within a packet");
}

#[test]
fn a_broken_packet_is_told_with_its_place() {
    let mut file = file();
    let place = file.len();
    file.extend(b"\x0a\x02\x0a\x7f");
    file.extend(b"\x0a\x03\x50\x01\x00\x08");
    let (events, imported) = try_read(&file).unwrap();
    assert_eq!(events, 200);
    assert_eq!(imported.unknown.count, 2);
    assert_eq!(imported.unknown.first.unwrap(), (place as u64, "a broken packet".to_owned()));
    assert_eq!(imported.end, End::Damaged(file.len() as u64 - 1));
}

/// A packet that claims more bytes than the file has must not take memory for them.
#[test]
fn a_huge_length_is_a_cut() {
    for length in [&b"\xff\xff\xff\xff\x7f"[..], b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"] {
        let mut file = file();
        let place = file.len() as u64;
        file.push(0x0a);
        file.extend(length);
        file.extend([0; 100]);
        let (events, imported) = try_read(&file).unwrap();
        assert_eq!((events, imported.end), (200, End::Cut(place)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_change_of_a_file_is_survived(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut file = file();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        try_read(&file);
    }

    #[test]
    fn any_bytes_are_survived(bytes: Vec<u8>) {
        let mut file = vec![0x0a, 0x02, 0x50, 0x01];
        file.extend(bytes);
        try_read(&file);
    }
}
