// SPDX-License-Identifier: GPL-2.0-only
//! The messages of Perfetto's trace format that scxlab writes and reads, as Rust types.
//!
//! Owns: field numbers. Does not: cover the whole format, or read files. A reader of large messages
//! goes through their fields itself (`wire.rs`), with the numbers that each type has as constants.
//! Models: the public format (`perfetto_trace.proto`). The crate `perfetto_protos` is not used,
//! because it generates all 2,000 messages at build time, which takes longer than building the
//! whole project, and because its licence, Apache-2.0, cannot be combined with ours in one program.
//! Tests may use the crate; they compare this file with it.

use std::borrow::Cow;

use quick_protobuf::Writer;

use super::wire::{Fields, Wire};

/// The content of a field: a number, a text or another message.
pub trait Value: Sized {
    /// The format's wire type: 0 is a varint, 2 is a length followed by that many bytes.
    const WIRE: u32;

    fn write(&self, to: &mut Vec<u8>);

    fn write_field(&self, number: u32, to: &mut Vec<u8>) {
        varint(u64::from(number << 3 | Self::WIRE), to);
        self.write(to);
    }

    /// Reads the content; None if it is broken or of another type.
    fn read(from: Wire<'_>) -> Option<Self>;
}

/// A field of a message, which may be absent or have several values.
pub trait Field {
    fn write_all(&self, number: u32, to: &mut Vec<u8>);

    /// Adds what the file holds for this field; None if it is broken.
    fn read_more(&mut self, from: Wire<'_>) -> Option<()>;
}

impl<T: Value> Field for Option<T> {
    fn write_all(&self, number: u32, to: &mut Vec<u8>) {
        self.iter().for_each(|value| value.write_field(number, to));
    }

    fn read_more(&mut self, from: Wire<'_>) -> Option<()> {
        *self = Some(T::read(from)?);
        Some(())
    }
}

impl<T: Value> Field for Vec<T> {
    fn write_all(&self, number: u32, to: &mut Vec<u8>) {
        self.iter().for_each(|value| value.write_field(number, to));
    }

    fn read_more(&mut self, from: Wire<'_>) -> Option<()> {
        self.push(T::read(from)?);
        Some(())
    }
}

/// A repeated number that is written without a tag for each value.
#[derive(Default)]
pub struct Packed<T>(pub Vec<T>);

impl<T: Value> Field for Packed<T> {
    fn write_all(&self, number: u32, to: &mut Vec<u8>) {
        if self.0.is_empty() {
            return;
        }
        varint(u64::from(number << 3 | 2), to);
        let start = begin(to);
        self.0.iter().for_each(|value| value.write(to));
        end(start, to);
    }

    fn read_more(&mut self, from: Wire<'_>) -> Option<()> {
        let Wire::Bytes(mut rest) = from else {
            self.0.push(T::read(from)?);
            return Some(());
        };
        while !rest.is_empty() {
            self.0.push(T::read(Wire::Varint(super::wire::varint(&mut rest)?))?);
        }
        Some(())
    }
}

/// Writing to a `Vec` fails only when memory runs out, and then the process aborts.
const GROWS: &str = "a Vec grows";

fn varint(value: u64, to: &mut Vec<u8>) {
    Writer::new(to).write_varint(value).expect(GROWS);
}

macro_rules! varints {
    ($($type:ty)*) => {$(
        impl Value for $type {
            const WIRE: u32 = 0;

            fn write(&self, to: &mut Vec<u8>) {
                varint(*self as u64, to);
            }

            fn read(from: Wire<'_>) -> Option<Self> {
                match from {
                    Wire::Varint(value) => Some(value as $type),
                    _ => None,
                }
            }
        }
    )*};
}

// The format sign-extends negative numbers to 64 bits, and so does the cast to u64 in the macro.
varints! { u32 u64 i32 i64 }

impl Value for bool {
    const WIRE: u32 = 0;

    fn write(&self, to: &mut Vec<u8>) {
        varint(u64::from(*self), to);
    }

    fn read(from: Wire<'_>) -> Option<Self> {
        u64::read(from).map(|value| value != 0)
    }
}

impl Value for String {
    const WIRE: u32 = 2;

    fn write(&self, to: &mut Vec<u8>) {
        Writer::new(to).write_string(self).expect(GROWS);
    }

    /// Bytes that are no UTF-8 are replaced: the kernel does not check the names of tasks.
    fn read(from: Wire<'_>) -> Option<Self> {
        match from {
            Wire::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }
}

/// A text that is often a constant.
pub type Text = Cow<'static, str>;

impl Value for Text {
    const WIRE: u32 = 2;

    fn write(&self, to: &mut Vec<u8>) {
        Writer::new(to).write_string(self).expect(GROWS);
    }

    fn read(from: Wire<'_>) -> Option<Self> {
        String::read(from).map(Cow::Owned)
    }
}

/// Bytes that are no text.
#[derive(Default)]
pub struct Bytes(pub Vec<u8>);

impl Value for Bytes {
    const WIRE: u32 = 2;

    fn write(&self, to: &mut Vec<u8>) {
        Writer::new(to).write_bytes(&self.0).expect(GROWS);
    }

    fn read(from: Wire<'_>) -> Option<Self> {
        match from {
            Wire::Bytes(bytes) => Some(Bytes(bytes.to_vec())),
            _ => None,
        }
    }
}

/// Begins a message: leaves room for its length, which is less than 128 in most messages.
fn begin(to: &mut Vec<u8>) -> usize {
    to.push(0);
    to.len() - 1
}

/// Writes the length of the message that began at `start`. Moving a long message by a byte or two
/// is cheaper than computing all lengths first, because each message would compute the lengths of
/// its inner messages again.
fn end(start: usize, to: &mut Vec<u8>) {
    let content = start + 1;
    let length = to.len() - content;
    if length < 0x80 {
        to[start] = length as u8;
        return;
    }
    let old = to.len();
    varint(length as u64, to);
    let (first, more) = (to[old], to.len() - old - 1);
    to[start] = first;
    to.remove(old);
    to[content..].rotate_right(more);
}

/// Declares messages. An `Option` is an optional field, a `Vec` or a `Packed` a repeated one. An
/// alternative of `oneof` has the name of its message. Each message has a constant with the number
/// of each field, under the field's name.
macro_rules! messages {
    ($(
        $(#[$meta:meta])*
        struct $name:ident {
            $($(#[$doc:meta])* $field:ident: $type:ty = $number:literal,)*
        } $(oneof $one:ident: $enum:ident { $($alternative:ident = $tag:literal,)* })?
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Default)]
            pub struct $name {
                $($(#[$doc])* pub $field: $type,)*
                $(pub $one: $enum,)?
            }

            $(#[allow(clippy::enum_variant_names, reason = "the format names its messages")]
            #[derive(Default)]
            pub enum $enum {
                /// None, or one that this file does not declare. It is not written.
                #[default]
                Unknown,
                $($alternative($alternative),)*
            })?

            #[allow(dead_code, non_upper_case_globals, reason = "the names of the format")]
            impl $name {
                $(pub const $field: u32 = $number;)*
            }

            impl Value for $name {
                const WIRE: u32 = 2;

                fn write(&self, to: &mut Vec<u8>) {
                    let start = begin(to);
                    $(self.$field.write_all($number, to);)*
                    $(match &self.$one {
                        $enum::Unknown => {}
                        $($enum::$alternative(value) => value.write_field($tag, to),)*
                    })?
                    end(start, to);
                }

                fn read(from: Wire<'_>) -> Option<Self> {
                    let Wire::Bytes(bytes) = from else { return None };
                    let mut message = Self::default();
                    for field in Fields::of(bytes) {
                        let (number, wire) = field.ok()?;
                        match number {
                            $($number => message.$field.read_more(wire)?,)*
                            $($($tag => {
                                message.$one = $enum::$alternative(Value::read(wire)?);
                            })*)?
                            _ => {}
                        }
                    }
                    Some(message)
                }
            }
        )*

        /// Every field that a message of this file declares: message, name, type and number. A test
        /// compares the fields with Perfetto's own definitions.
        #[cfg(test)]
        pub const FIELDS: &[(&str, &str, &str, u32)] = &[$(
            $((stringify!($name), stringify!($field), stringify!($type), $number),)*
            $($((stringify!($name), stringify!($alternative), stringify!($alternative), $tag),)*)?
        )*];
    };
}

/// Field number of a packet in a file. A file is one message that consists of packets, so it can be
/// written as a stream.
pub const TRACE_PACKET: u32 = 1;
/// Bit of `sequence_flags`: the names interned so far on this sequence become invalid.
pub const SEQ_INCREMENTAL_STATE_CLEARED: u32 = 1;
/// Bit of `sequence_flags`: the packet refers to interned names.
pub const SEQ_NEEDS_INCREMENTAL_STATE: u32 = 2;

messages! {
    /// A packet. `trusted_packet_sequence_id` identifies its sequence, and interned names belong to
    /// one sequence.
    struct TracePacket {
        ftrace_events: Option<FtraceEventBundle> = 1,
        process_tree: Option<ProcessTree> = 2,
        timestamp: Option<u64> = 8,
        trusted_packet_sequence_id: Option<u32> = 10,
        track_event: Option<TrackEvent> = 11,
        interned_data: Option<InternedData> = 12,
        sequence_flags: Option<u32> = 13,
        ftrace_stats: Option<FtraceStats> = 34,
        system_info: Option<SystemInfo> = 45,
        /// Packets, as in a file, compressed by zlib.
        compressed_packets: Option<Bytes> = 50,
        track_descriptor: Option<TrackDescriptor> = 60,
    }

    struct SystemInfo {
        num_cpus: Option<u32> = 8,
        machine_name: Option<String> = 17,
    }

    struct ProcessTree {
        processes: Vec<Process> = 1,
        threads: Vec<Thread> = 2,
    }

    struct Process {
        pid: Option<i32> = 1,
        ppid: Option<i32> = 2,
        cmdline: Vec<String> = 3,
    }

    struct Thread {
        tid: Option<i32> = 1,
        name: Option<String> = 2,
        tgid: Option<i32> = 3,
    }

    /// Events of one CPU, as the kernel's ftrace would have recorded them.
    struct FtraceEventBundle {
        cpu: Option<u32> = 1,
        event: Vec<FtraceEvent> = 2,
        /// Whether events are missing before the first of the bundle.
        lost_events: Option<bool> = 3,
        compact_sched: Option<CompactSched> = 4,
        /// Clock of the timestamps: absent or 0 is CLOCK_BOOTTIME, 2 `global`, 3 `local`, 4
        /// CLOCK_MONOTONIC_RAW.
        ftrace_clock: Option<i32> = 5,
    }

    /// The switches and wake-ups of a bundle as one list per field. Timestamps but the first are
    /// differences to the one before; names are indices of `intern_table`.
    struct CompactSched {
        switch_timestamp: Packed<u64> = 1,
        switch_prev_state: Packed<i64> = 2,
        switch_next_pid: Packed<i32> = 3,
        switch_next_prio: Packed<i32> = 4,
        intern_table: Vec<String> = 5,
        switch_next_comm_index: Packed<u32> = 6,
        waking_timestamp: Packed<u64> = 7,
        waking_pid: Packed<i32> = 8,
        waking_target_cpu: Packed<i32> = 9,
        waking_prio: Packed<i32> = 10,
        waking_comm_index: Packed<u32> = 11,
        waking_common_flags: Packed<u32> = 12,
    }

    struct FtraceEvent {
        timestamp: Option<u64> = 1,
        /// Pid of the task that was running at the time of the event.
        pid: Option<u32> = 2,
        /// The kernel's `TRACE_FLAG_*`; 8 (`TRACE_FLAG_HARDIRQ`): an interrupt caused the event.
        common_flags: Option<u32> = 5,
    } oneof event: Ftrace {
        Print = 3,
        SchedSwitch = 4,
        SchedWakeup = 17,
        SchedCpuHotplug = 19,
        SchedWaking = 20,
        SchedWakeupNew = 114,
        TaskNewtask = 235,
        TaskRename = 236,
        SchedProcessExec = 237,
        SchedProcessExit = 238,
        SchedProcessFork = 239,
        SchedProcessFree = 240,
        Generic = 327,
        SchedMigrateTask = 491,
    }

    /// An event that the format has no message for.
    struct Generic {
        event_name: Option<Text> = 1,
        field: Vec<GenericField> = 2,
    }

    /// A field of a generic event, with one of the three values.
    struct GenericField {
        name: Option<Text> = 1,
        str_value: Option<Text> = 3,
        int_value: Option<i64> = 4,
        uint_value: Option<u64> = 5,
    }

    struct TaskNewtask {
        pid: Option<i32> = 1,
        comm: Option<String> = 2,
        /// Bit 16 (`CLONE_THREAD`): the task is a thread of its parent's process.
        clone_flags: Option<u64> = 3,
    }

    /// Counters of the kernel's buffers, at the start or the end of the trace.
    struct FtraceStats {
        phase: Option<i32> = 1,
        cpu_stats: Vec<FtraceCpuStats> = 2,
    }

    struct FtraceCpuStats {
        cpu: Option<u64> = 1,
        /// Number of events that newer ones replaced in the kernel's buffer.
        overrun: Option<u64> = 3,
        /// Number of events for which the kernel's buffer had no room.
        dropped_events: Option<u64> = 8,
    }

    struct SchedSwitch {
        prev_comm: Option<String> = 1,
        prev_pid: Option<i32> = 2,
        prev_prio: Option<i32> = 3,
        /// State of the previous task: 0 runnable, 1 sleeping, 2 uninterruptible, 16 dead.
        prev_state: Option<i64> = 4,
        next_comm: Option<String> = 5,
        next_pid: Option<i32> = 6,
        next_prio: Option<i32> = 7,
    }

    struct SchedWaking {
        comm: Option<String> = 1,
        pid: Option<i32> = 2,
        prio: Option<i32> = 3,
        success: Option<i32> = 4,
        target_cpu: Option<i32> = 5,
    }

    struct SchedWakeup {
        comm: Option<String> = 1,
        pid: Option<i32> = 2,
        prio: Option<i32> = 3,
        success: Option<i32> = 4,
        target_cpu: Option<i32> = 5,
    }

    struct SchedWakeupNew {
        comm: Option<String> = 1,
        pid: Option<i32> = 2,
        prio: Option<i32> = 3,
        success: Option<i32> = 4,
        target_cpu: Option<i32> = 5,
    }

    /// A line that a program wrote into `trace_marker`.
    struct Print {
        ip: Option<u64> = 1,
        buf: Option<String> = 2,
    }

    struct TaskRename {
        pid: Option<i32> = 1,
        oldcomm: Option<String> = 2,
        newcomm: Option<String> = 3,
    }

    struct SchedProcessExec {
        filename: Option<String> = 1,
        pid: Option<i32> = 2,
        old_pid: Option<i32> = 3,
    }

    struct SchedProcessExit {
        comm: Option<String> = 1,
        pid: Option<i32> = 2,
        tgid: Option<i32> = 3,
        prio: Option<i32> = 4,
    }

    struct SchedProcessFork {
        parent_comm: Option<String> = 1,
        parent_pid: Option<i32> = 2,
        child_comm: Option<String> = 3,
        child_pid: Option<i32> = 4,
    }

    struct SchedProcessFree {
        comm: Option<String> = 1,
        pid: Option<i32> = 2,
        prio: Option<i32> = 3,
    }

    struct SchedMigrateTask {
        comm: Option<String> = 1,
        pid: Option<i32> = 2,
        prio: Option<i32> = 3,
        orig_cpu: Option<i32> = 4,
        dest_cpu: Option<i32> = 5,
    }

    struct SchedCpuHotplug {
        affected_cpu: Option<i32> = 1,
        error: Option<i32> = 2,
        status: Option<i32> = 3,
    }

    /// A track of scxlab's own in the UI's tree of tracks.
    struct TrackDescriptor {
        uuid: Option<u64> = 1,
        name: Option<String> = 2,
        parent_uuid: Option<u64> = 5,
        /// Set only for the track of a counter. The fields of Perfetto's `CounterDescriptor` that
        /// this file leaves out have useful defaults.
        counter: Option<CounterDescriptor> = 8,
        /// Order of the child tracks; 3 is by `sibling_order_rank`.
        child_ordering: Option<i32> = 11,
        sibling_order_rank: Option<i32> = 12,
    }

    struct CounterDescriptor {
        unit_name: Option<String> = 6,
    }

    struct TrackEvent {
        debug_annotations: Vec<DebugAnnotation> = 4,
        /// Type of the event: 1 begin of a slice, 2 end of a slice, 3 instant, 4 value of a
        /// counter.
        r#type: Option<i32> = 9,
        name_iid: Option<u64> = 10,
        track_uuid: Option<u64> = 11,
        name: Option<String> = 23,
        counter_value: Option<i64> = 30,
    }

    struct DebugAnnotation {
        name_iid: Option<u64> = 1,
        uint_value: Option<u64> = 3,
        int_value: Option<i64> = 4,
        string_value: Option<String> = 6,
        /// A number that the UI shows in hexadecimal.
        pointer_value: Option<u64> = 7,
    }

    /// Names that later packets of the sequence refer to by id.
    struct InternedData {
        event_names: Vec<InternedString> = 2,
        debug_annotation_names: Vec<InternedString> = 3,
    }

    struct InternedString {
        iid: Option<u64> = 1,
        name: Option<String> = 2,
    }
}
