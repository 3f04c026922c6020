// SPDX-License-Identifier: GPL-2.0-only
//! Counters that a scheduler keeps itself and exposes by a convention that any object can follow.
//!
//! Owns: the convention. A per-CPU array (or plain array) named `stats` has one element, whose
//! value is a struct of `u64`; each field, summed over the CPUs, is the metric `sched.<field>`. A
//! hash named `task_stats` maps a pid to such a struct and holds the counters of that task. Fields
//! of a type other than `u64` are ignored, as are maps of other forms.
//! Does not: know a scheduler; the scheduler's README explains its fields.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use scxlab_bpf::map::map_type;
use scxlab_loader::btf::Btf;
use scxlab_loader::object::{MapSpec, Object};

use crate::metric::{COUNTER, MetricTable};
use crate::recipe::frontend::Frontend;

const TOTAL: &str = "stats";
const BY_TASK: &str = "task_stats";

/// Counter values at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Totals by field name, in the order of the struct.
    pub total: IndexMap<String, u64>,
    /// Counters of each task, by pid.
    pub tasks: BTreeMap<u32, IndexMap<String, u64>>,
}

impl Counters {
    /// Reads the counters of a loaded object. Elements that cannot be read are absent.
    pub fn read(frontend: &dyn Frontend) -> Counters {
        let object = frontend.object();
        let mut counters = Counters::default();
        if let Some(map) =
            CounterMap::named(object, TOTAL, &[map_type::PERCPU_ARRAY, map_type::ARRAY])
            && object.maps[map.index].max_entries == 1
            && let Ok(bytes) = frontend.lookup(map.index, &0u32.to_le_bytes(), None)
        {
            counters.total = map.sum(&bytes);
        }
        let hashes = [map_type::HASH, map_type::LRU_HASH];
        if let Some(map) = CounterMap::named(object, BY_TASK, &hashes) {
            for key in frontend.keys(map.index) {
                let pid = <[u8; 4]>::try_from(key.as_slice()).map(u32::from_le_bytes);
                let found = frontend.lookup(map.index, &key, None);
                if let (Ok(pid), Ok(bytes)) = (pid, found) {
                    counters.tasks.insert(pid, map.sum(&bytes));
                }
            }
        }
        counters
    }

    /// Adds the totals to a run's metrics.
    pub fn put(&self, table: &mut MetricTable) {
        for (name, value) in &self.total {
            table.count_part(&COUNTER, name, *value);
        }
    }

    /// Returns the counters of a task; empty if it has none.
    pub fn of(&self, pid: u32) -> IndexMap<String, u64> {
        self.tasks.get(&pid).cloned().unwrap_or_default()
    }
}

/// A map whose value is a struct of numbers.
struct CounterMap {
    index: usize,
    /// Size of one copy of an element in bytes, rounded up to a multiple of 8 as in per-CPU maps.
    stride: usize,
    fields: Vec<(String, usize)>,
}

impl CounterMap {
    fn named(object: &Object, name: &str, types: &[u32]) -> Option<CounterMap> {
        let index = object.map(name)?;
        let spec = &object.maps[index];
        let fields = fields(&object.btf, spec)?;
        let fits = types.contains(&spec.map_type) && spec.key_size == 4 && !fields.is_empty();
        let stride = (spec.value_size as usize).next_multiple_of(8);
        fits.then_some(CounterMap { index, stride, fields })
    }

    /// Sums each field over all per-CPU copies in `bytes`.
    fn sum(&self, bytes: &[u8]) -> IndexMap<String, u64> {
        let field = |(name, at): &(String, usize)| {
            let numbers = bytes.chunks(self.stride).filter_map(|copy| {
                let bytes = copy.get(*at..at + 8)?;
                Some(u64::from_le_bytes(bytes.try_into().ok()?))
            });
            (name.clone(), numbers.fold(0, u64::wrapping_add))
        };
        self.fields.iter().map(field).collect()
    }
}

fn fields(btf: &Btf, spec: &MapSpec) -> Option<Vec<(String, usize)>> {
    let ty = btf.resolve(spec.value_ty?).ok()?;
    let is_number = |ty| {
        let int = btf.resolve(ty).ok().and_then(|ty| btf.int(ty));
        int.is_some_and(|i| i.size == 8 && !i.signed)
    };
    let members = btf.members(ty).filter(|m| m.bitfield_bits == 0 && is_number(m.ty));
    Some(members.map(|m| (m.name.to_owned(), m.bit_off as usize / 8)).collect())
}
