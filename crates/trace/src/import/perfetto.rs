// SPDX-License-Identifier: GPL-2.0-only
//! Perfetto traces: packets, and what each of them holds for us.
//!
//! Owns: the framing of packets, process trees, lost events. Does not: map single events (see
//! `event.rs` and `compact.rs`).
//! Models: `Trace` of `perfetto_trace.proto`. Packets of other data sources are passed over.

mod compact;
mod event;

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};

use flate2::read::ZlibDecoder;

use scxlab_machine::CpuId;

use super::driver::Driver;
use super::imported::{Clock, End};
use super::input::Input;
use super::raw::{Comms, Raw, RawKind};
use crate::perfetto::schema::{
    FtraceEventBundle, FtraceStats, Process, ProcessTree, SystemInfo, TRACE_PACKET, Thread,
    TracePacket, Value,
};
use crate::perfetto::wire::{Broken, Fields, Wire, varint};

/// Greatest length of a packet that is read. Perfetto's own packets have at most a few MiB.
const PACKET_MAX: u64 = 16 << 20;
/// Greatest length of a message that is decoded as a whole, which bounds the memory for it.
const MESSAGE_MAX: usize = 1 << 20;
/// Values of `FtraceStats.phase`.
const START_OF_TRACE: i32 = 1;

pub fn read(input: &mut Input<'_>, driver: &mut Driver<'_>) -> io::Result<()> {
    driver.clock(Clock::Boot);
    let mut reader = Reader {
        driver,
        place: 0,
        inflating: false,
        comms: Comms::default(),
        stats: Stats::default(),
    };
    let end = reader.packets(&mut input.bytes)?;
    let Reader { stats, .. } = reader;
    stats.tell(driver);
    driver.ends(end);
    Ok(())
}

struct Reader<'a, 'b> {
    driver: &'a mut Driver<'b>,
    /// Offset of the packet in the file.
    place: u64,
    /// Whether the packets come from a compressed packet.
    inflating: bool,
    comms: Comms,
    stats: Stats,
}

/// Counters of lost events by CPU: the first values and the last ones.
#[derive(Default)]
struct Stats {
    first: BTreeMap<u64, u64>,
    last: BTreeMap<u64, u64>,
}

impl Stats {
    fn tell(self, driver: &mut Driver<'_>) {
        for (cpu, last) in self.last {
            let lost = last.saturating_sub(self.first.get(&cpu).copied().unwrap_or(0));
            let Some(cpu) = u32::try_from(cpu).ok().filter(|_| lost > 0) else { continue };
            let known = driver.imported().lost.entry(CpuId(cpu)).or_insert(0);
            *known = lost.max(*known);
        }
    }
}

impl Reader<'_, '_> {
    /// Reads all packets of a file. Returns how the file ends.
    fn packets(&mut self, input: &mut impl BufRead) -> io::Result<End> {
        let mut packet = Vec::new();
        let mut offset = 0;
        loop {
            if !self.inflating {
                self.place = offset;
            }
            let (tag, tag_length) = match read_varint(input)? {
                Number::Whole(tag, length) => (tag, length),
                Number::Nothing => return Ok(End::Whole),
                Number::Cut => return Ok(End::Cut(offset)),
                Number::TooLong => return Ok(End::Damaged(offset)),
            };
            if tag != u64::from(TRACE_PACKET << 3 | 2) {
                return Ok(End::Damaged(offset));
            }
            let (length, length_length) = match read_varint(input)? {
                Number::Whole(length, digits) => (length, digits),
                Number::Nothing | Number::Cut => return Ok(End::Cut(offset)),
                Number::TooLong => return Ok(End::Damaged(offset)),
            };
            packet.clear();
            let mut content = input.by_ref().take(length);
            let read = if length > PACKET_MAX {
                io::copy(&mut content, &mut io::sink())?
            } else {
                content.read_to_end(&mut packet)? as u64
            };
            if read < length {
                return Ok(End::Cut(offset));
            }
            if length > PACKET_MAX {
                self.driver.unknown(self.place, || format!("a packet of {length} bytes"));
            } else if self.packet(&packet).is_err() {
                self.driver.unknown(self.place, || "a broken packet".to_owned());
            }
            offset = offset.saturating_add(tag_length + length_length).saturating_add(length);
        }
    }

    fn packet(&mut self, packet: &[u8]) -> Result<(), Broken> {
        for field in Fields::of(packet) {
            match field? {
                (TracePacket::ftrace_events, Wire::Bytes(bundle)) => self.bundle(bundle)?,
                (TracePacket::process_tree, Wire::Bytes(tree)) => self.tree(tree)?,
                (TracePacket::ftrace_stats, stats) => self.stats(stats)?,
                (TracePacket::system_info, info) => {
                    let info: SystemInfo = whole(info)?;
                    self.driver.imported().nr_cpus = info.num_cpus;
                }
                (TracePacket::compressed_packets, Wire::Bytes(packets)) => {
                    self.compressed(packets)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the packets in a packet. Their place is that of the whole.
    fn compressed(&mut self, packets: &[u8]) -> Result<(), Broken> {
        if std::mem::replace(&mut self.inflating, true) {
            return Err(Broken);
        }
        let place = self.place;
        let end = self.packets(&mut BufReader::new(ZlibDecoder::new(packets)));
        (self.place, self.inflating) = (place, false);
        match end {
            Ok(End::Whole) => Ok(()),
            _ => Err(Broken),
        }
    }

    fn bundle(&mut self, bundle: &[u8]) -> Result<(), Broken> {
        let (mut cpu, mut lost) = (0, false);
        for field in Fields::of(bundle) {
            match field? {
                (FtraceEventBundle::cpu, Wire::Varint(number)) => {
                    cpu = u32::try_from(number).unwrap_or(u32::MAX);
                }
                (FtraceEventBundle::lost_events, Wire::Varint(flag)) => lost = flag != 0,
                (FtraceEventBundle::ftrace_clock, Wire::Varint(clock)) => {
                    self.driver.clock(clock_of(clock));
                }
                _ => {}
            }
        }
        for field in Fields::of(bundle) {
            match field? {
                (FtraceEventBundle::event, event) => self.event(cpu, &mut lost, event)?,
                (FtraceEventBundle::compact_sched, Wire::Bytes(sched)) => {
                    compact::read(self, cpu, &mut lost, sched)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Passes an event on. If events are missing before it, passes that on first.
    fn push(&mut self, raw: Raw, lost: &mut bool) {
        if std::mem::take(lost) {
            let kind = RawKind::Lost { events: 0 };
            let missing = Raw { running: None, interrupt: None, kind, lane: raw.lane, ..raw };
            self.driver.imported().lost.entry(CpuId(raw.cpu)).or_insert(0);
            self.driver.event(missing, self.place);
        }
        self.driver.event(raw, self.place);
    }

    fn tree(&mut self, tree: &[u8]) -> Result<(), Broken> {
        let tid = |pid: Option<i32>| u32::try_from(pid?).ok().filter(|tid| *tid != 0);
        for field in Fields::of(tree) {
            match field? {
                (ProcessTree::processes, process) => {
                    let process: Process = whole(process)?;
                    if let Some(pid) = tid(process.pid) {
                        self.driver.tasks().describe(pid, Some(pid), None);
                    }
                }
                (ProcessTree::threads, thread) => {
                    let thread: Thread = whole(thread)?;
                    if let (Some(tid), Some(tgid)) = (tid(thread.tid), tid(thread.tgid)) {
                        let comm = thread.name.map(|name| self.comms.get(&name));
                        self.driver.tasks().describe(tid, Some(tgid), comm);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn stats(&mut self, stats: Wire<'_>) -> Result<(), Broken> {
        let stats = FtraceStats::read(stats).ok_or(Broken)?;
        for cpu in stats.cpu_stats {
            let lost = cpu.dropped_events.unwrap_or(0).saturating_add(cpu.overrun.unwrap_or(0));
            let number = cpu.cpu.unwrap_or(0);
            if stats.phase == Some(START_OF_TRACE) {
                self.stats.first.entry(number).or_insert(lost);
            } else {
                self.stats.last.insert(number, lost);
            }
        }
        Ok(())
    }
}

/// Decodes a message as a whole.
fn whole<T: Value>(from: Wire<'_>) -> Result<T, Broken> {
    match from {
        Wire::Bytes(bytes) if bytes.len() > MESSAGE_MAX => Err(Broken),
        _ => T::read(from).ok_or(Broken),
    }
}

fn clock_of(number: u64) -> Clock {
    match number {
        0 => Clock::Boot,
        2 => Clock::Global,
        3 => Clock::Local,
        4 => Clock::MonotonicRaw,
        _ => Clock::Unknown,
    }
}

/// A number at the front of a stream.
enum Number {
    /// The number, and its length in bytes.
    Whole(u64, u64),
    /// The stream has ended before the number.
    Nothing,
    /// The stream ends within the number.
    Cut,
    TooLong,
}

fn read_varint(input: &mut impl BufRead) -> io::Result<Number> {
    let mut digits = [0; 10];
    for at in 0..digits.len() {
        let mut byte = [0];
        match input.read(&mut byte)? {
            0 if at == 0 => return Ok(Number::Nothing),
            0 => return Ok(Number::Cut),
            _ => digits[at] = byte[0],
        }
        if byte[0] & 0x80 == 0 {
            let number = varint(&mut &digits[..=at]);
            return Ok(number.map_or(Number::TooLong, |n| Number::Whole(n, at as u64 + 1)));
        }
    }
    Ok(Number::TooLong)
}
