// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the tracer: the hash does not depend on the sink, and the sink gets the emitted events.

use scxlab_machine::TaskId;

use super::*;
use crate::event::PrevState;
use crate::sink::VecSink;

fn run(tracer: &mut Tracer) {
    for time in 0..10 {
        tracer.emit(Event { time, cpu: CpuId(0), kind: EventKind::CpuOnline { online: true } });
    }
    tracer.printk(10, CpuId(1), "hello");
    let exit =
        Event { time: 11, cpu: CpuId(1), kind: EventKind::SchedExit { kind: 1026, code: 0 } };
    tracer.emit_with_text(exit, "runnable task stall");
    let kind =
        EventKind::Switch { prev: Some(TaskId(1)), next: None, prev_state: PrevState::Exited };
    tracer.emit(Event { time: 12, cpu: CpuId(1), kind });
}

#[test]
fn a_sink_does_not_change_the_hash() {
    let (mut plain, mut recording) = (Tracer::default(), Tracer::with_sink(VecSink::default()));
    run(&mut plain);
    run(&mut recording);
    assert_eq!((plain.hash(), plain.count()), (recording.hash(), 13));
    assert!(!plain.is_recording() && recording.is_recording());
    assert!(plain.finish().is_ok());
    let sink = recording.take_sink::<VecSink>().unwrap();
    assert_eq!(sink.events.len(), 13);
    assert_eq!(sink.texts, [(10, "hello".to_owned()), (11, "runnable task stall".to_owned())]);
    assert!(recording.take_sink::<VecSink>().is_none());
}

#[test]
fn a_printed_text_counts_and_a_message_does_not() {
    let printed = |text| {
        let mut tracer = Tracer::default();
        tracer.printk(0, CpuId(0), text);
        tracer.hash()
    };
    assert_ne!(printed("a"), printed("b"));
    let exited = |text| {
        let mut tracer = Tracer::default();
        let event =
            Event { time: 0, cpu: CpuId(0), kind: EventKind::SchedExit { kind: 1, code: 0 } };
        tracer.emit_with_text(event, text);
        tracer.hash()
    };
    assert_eq!(exited("a"), exited("b"));
}
