// SPDX-License-Identifier: GPL-2.0-only
//! Topologies from hwloc's XML: `lstopo --of xml`, formats 2 and 1.
//!
//! Owns: the meaning of hwloc's objects. Does not: accept a DTD of the file's own, follow entities.
//! Models: hwloc's documented object tree. PUs (hardware threads) are leaves. A PU's core, caches
//! and node are among its ancestors. In format 2 a NUMA node is a memory child beside the objects
//! that are local to it; in format 1 it is an ancestor.
//!
//! ```text
//! Package            format 2            NUMANode           format 1
//!   NUMANode  (memory child)               Package
//!   L3Cache                                  Cache depth=3
//!     L2Cache > L1Cache > Core > PU            Cache depth=2 > Cache depth=1 > Core > PU
//! ```

mod bounds;
mod distances_and_kinds;

use std::collections::BTreeMap;

use roxmltree::{Document, Node, ParsingOptions};
use thiserror::Error;

use super::sysfs::{scale_capacities, split_llcs_by_node};
use super::{
    CPUS_MAX, CoreLayout, Layout, LlcLayout, NODES_MAX, NodeLayout, Topology, TopologyError,
};

/// Maximum length of a file in bytes. For a synthetic machine with 8192 CPUs lstopo wrote 9.0 MiB
/// in format 1, 5.1 MiB in format 2.
const BYTES_MAX: usize = 32 << 20;
/// Maximum number of XML nodes, including text between elements. A machine with 8192 CPUs has less
/// than 40,000, without objects for inner caches. The time for a hostile file is linear in this
/// number.
const XML_NODES_MAX: u32 = 400_000;
/// Maximum nesting depth of elements; a deep real machine has about fifteen.
const DEPTH_MAX: usize = 64;

/// The reason why an XML file describes no machine. The input is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LstopoError {
    /// The file is not well-formed, or has too many XML nodes.
    #[error("not usable as XML: {why}")]
    Xml {
        /// The parser's message.
        why: String,
    },
    /// A document type with declarations of its own, which could define entities.
    #[error("line {line}: the document declares a DTD of its own, which no lstopo file does")]
    OwnDtd {
        /// Line at which the document type starts.
        line: usize,
    },
    /// The file is too long.
    #[error("{bytes} bytes; at most {BYTES_MAX} are read")]
    TooLong {
        /// Length of the file.
        bytes: usize,
    },
    /// The file is well-formed, but not an lstopo file.
    #[error("the root element is <{root}>, not lstopo's <topology>")]
    NotTopology {
        /// Name of the root element.
        root: String,
    },
    /// Elements are nested too deeply.
    #[error("line {line}: more than {DEPTH_MAX} elements inside each other")]
    TooDeep {
        /// Line at which the element starts.
        line: usize,
    },
    /// One element has too many attributes.
    #[error("line {line}: an element has more than {} attributes", bounds::ATTRIBUTES_MAX)]
    TooManyAttributes {
        /// Line at which the element starts.
        line: usize,
    },
    /// An XML namespace is declared.
    #[error("line {line}: an XML namespace is declared, which no lstopo file does")]
    Namespace {
        /// Line at which the element starts.
        line: usize,
    },
    /// An attribute is missing or wrong.
    #[error("line {line}: <{element}> attribute {attribute}: {why}")]
    Attribute {
        /// Line at which the element starts.
        line: u32,
        /// Name of the element.
        element: String,
        /// Name of the attribute.
        attribute: &'static str,
        /// Description of the mistake.
        why: String,
    },
    /// A distance matrix does not fit the nodes.
    #[error("line {line}: {why}")]
    Distances {
        /// Line at which the matrix starts.
        line: u32,
        /// Description of the mistake.
        why: String,
    },
    /// The objects describe an impossible machine.
    #[error(transparent)]
    Impossible(#[from] TopologyError),
}

/// Reads the topology from the text of an XML file.
pub fn parse(xml: &str) -> Result<Topology, LstopoError> {
    if xml.len() > BYTES_MAX {
        return Err(LstopoError::TooLong { bytes: xml.len() });
    }
    let xml = blank_doctype(xml)?;
    bounds::check(&xml)?;
    let options = ParsingOptions {
        allow_dtd: false,
        nodes_limit: XML_NODES_MAX,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(&xml, options)
        .map_err(|error| LstopoError::Xml { why: error.to_string() })?;
    let root = document.root_element();
    if !root.has_tag_name("topology") {
        return Err(LstopoError::NotTopology { root: root.tag_name().name().to_owned() });
    }
    let mut raw = LstopoObjects::collect(root)?.into_raw();
    distances_and_kinds::read_distances(root, &mut raw.nodes)?;
    let mut layout = raw.into_layout();
    layout.capacities = distances_and_kinds::read_capacities(root)?;
    scale_capacities(&mut layout.capacities);
    split_llcs_by_node(&mut layout);
    Ok(Topology::build(layout)?)
}

/// Replaces the document type that lstopo writes by blanks, so that the parser need not allow any
/// document type.
fn blank_doctype(xml: &str) -> Result<String, LstopoError> {
    let Some(start) = xml.find("<!DOCTYPE") else {
        return Ok(xml.to_owned());
    };
    let rest = &xml[start..];
    let end = rest.find('>').map_or(rest.len(), |end| end + 1);
    if rest[..end].contains('[') {
        let line = 1 + xml[..start].matches('\n').count();
        return Err(LstopoError::OwnDtd { line });
    }
    Ok(format!("{}{}{}", &xml[..start], " ".repeat(end), &rest[end..]))
}

/// Number of an XML node in its document.
type XmlId = u32;

fn id_of(node: Node<'_, '_>) -> XmlId {
    node.id().get()
}

/// A NUMA node with its number in the operating system.
struct NumaNode {
    os_index: u32,
    layout: NodeLayout,
}

/// A layout whose nodes still have the operating system's numbers. The distances in the file refer
/// to nodes by these numbers.
struct RawLayout {
    cores: Vec<CoreLayout>,
    llcs: Vec<LlcLayout>,
    nodes: Vec<NumaNode>,
}

impl RawLayout {
    fn into_layout(self) -> Layout {
        let nodes = self.nodes.into_iter().map(|node| node.layout).collect();
        Layout { cores: self.cores, llcs: self.llcs, nodes, capacities: Vec::new() }
    }
}

/// The cores, last-level caches and NUMA nodes of a file, by the XML node of each. A walk over all
/// PUs collects their CPUs.
#[derive(Default)]
struct LstopoObjects {
    cores: BTreeMap<XmlId, CoreLayout>,
    llcs: BTreeMap<XmlId, LlcLayout>,
    nodes: BTreeMap<XmlId, (u32, NodeLayout)>,
    /// Results of `node_local_to`, by object: the NUMA node at the object or among its memory
    /// children, if there is one.
    local_node: BTreeMap<XmlId, Option<XmlId>>,
    nr_cpus: usize,
}

impl LstopoObjects {
    fn collect(root: Node<'_, '_>) -> Result<LstopoObjects, LstopoError> {
        let mut objects = LstopoObjects::default();
        for node in root.descendants().filter(|node| is_object(*node, "NUMANode")) {
            let memory_bytes = number_or(node, "local_memory", 0)?;
            let layout = NodeLayout { memory_bytes, ..NodeLayout::default() };
            objects.nodes.insert(id_of(node), (os_index(node)?, layout));
            if objects.nodes.len() > NODES_MAX {
                let nr = objects.nodes.len() as u64;
                return Err(TopologyError::TooManyNodes { nr }.into());
            }
        }
        for pu in root.descendants().filter(|node| is_object(*node, "PU")) {
            objects.add_pu(pu, root)?;
        }
        Ok(objects)
    }

    fn add_pu<'a>(&mut self, pu: Node<'a, 'a>, root: Node<'a, 'a>) -> Result<(), LstopoError> {
        self.nr_cpus += 1;
        if self.nr_cpus > CPUS_MAX {
            return Err(TopologyError::TooManyCpus { nr: self.nr_cpus as u64 }.into());
        }
        let cpu = os_index(pu)?;
        let above: Vec<Node<'a, 'a>> = pu.ancestors().collect();
        // Without Core objects (single-threaded VMs) a PU is its own core.
        let core = above.iter().find(|node| is_object(**node, "Core")).unwrap_or(&above[0]);
        let mut caches = Vec::new();
        for node in &above {
            if let Some(level) = cache_level(*node)? {
                caches.push((level, *node));
            }
        }
        let size = |level| caches.iter().find(|cache| cache.0 == level).map(|cache| cache.1);
        let size = |level| size(level).map_or(Ok(0), |node| number_or(node, "cache_size", 0));
        let (l1d_bytes, l2_bytes) = (size(1)?, size(2)?);
        let entry = self.cores.entry(id_of(*core));
        entry.or_insert(CoreLayout { cpus: Vec::new(), l1d_bytes, l2_bytes }).cpus.push(cpu);

        let node = above.iter().find_map(|ancestor| self.node_local_to(*ancestor));
        // If the file has no cache, assume that the CPUs of a node share one, as the kernel does.
        let last = caches.iter().max_by_key(|cache| cache.0).map(|cache| cache.1);
        let llc = last.map(id_of).or(node).unwrap_or(id_of(root));
        let size_bytes = last.map_or(Ok(0), |node| number_or(node, "cache_size", 0))?;
        let entry = self.llcs.entry(llc);
        entry.or_insert(LlcLayout { cpus: Vec::new(), size_bytes }).cpus.push(cpu);
        if let Some((_, layout)) = node.and_then(|id| self.nodes.get_mut(&id)) {
            layout.cpus.push(cpu);
        }
        Ok(())
    }

    /// Returns the NUMA node at `object` (format 1) or among its memory children (format 2). If
    /// there are several, as on machines with two kinds of memory, CPUs belong to the one with the
    /// lowest number; the others are memory only.
    fn node_local_to(&mut self, object: Node<'_, '_>) -> Option<XmlId> {
        if let Some(known) = self.local_node.get(&id_of(object)) {
            return *known;
        }
        let found = if is_object(object, "NUMANode") {
            Some(id_of(object))
        } else {
            let beside = object.children().filter_map(memory_child);
            beside.min_by_key(|id| self.nodes.get(id).map(|node| node.0))
        };
        self.local_node.insert(id_of(object), found);
        found
    }

    fn into_raw(self) -> RawLayout {
        let mut nodes: Vec<NumaNode> = self
            .nodes
            .into_values()
            .map(|(os_index, layout)| NumaNode { os_index, layout })
            .collect();
        nodes.sort_by_key(|node| node.os_index);
        if nodes.is_empty() {
            // Add one node with all CPUs: format 1 names no node at all for machines without NUMA.
            let cpus = self.cores.values().flat_map(|core| core.cpus.iter().copied()).collect();
            nodes.push(NumaNode {
                os_index: 0,
                layout: NodeLayout { cpus, ..NodeLayout::default() },
            });
        }
        let (cores, llcs) = (self.cores.into_values(), self.llcs.into_values());
        RawLayout { cores: cores.collect(), llcs: llcs.collect(), nodes }
    }
}

/// Returns the NUMA node that `child` is, or the one under `child` if this is a memory-side cache.
fn memory_child(child: Node<'_, '_>) -> Option<XmlId> {
    let mut at = child;
    for _ in 0..DEPTH_MAX {
        if is_object(at, "NUMANode") {
            // A NUMA node of format 1 contains PUs, and `node_local_to` finds it as their ancestor,
            // so it does not count as a memory child.
            let has_pu = at.descendants().any(|node| is_object(node, "PU"));
            return (!has_pu).then_some(id_of(at));
        }
        if !is_object(at, "MemCache") {
            return None;
        }
        at = at
            .children()
            .find(|node| is_object(*node, "NUMANode") || is_object(*node, "MemCache"))?;
    }
    None
}

/// Returns the level of a data or unified cache: `L3Cache` in format 2, `Cache` with a depth in
/// format 1.
fn cache_level(node: Node<'_, '_>) -> Result<Option<u64>, LstopoError> {
    let kind = node.attribute("type").unwrap_or("");
    let format1 = kind == "Cache";
    let format2 = kind.len() == 7 && kind.starts_with('L') && kind.ends_with("Cache");
    // cache_type 2 is an instruction cache.
    if !node.has_tag_name("object")
        || !(format1 || format2)
        || node.attribute("cache_type") == Some("2")
    {
        return Ok(None);
    }
    number(node, "depth").map(Some)
}

fn is_object(node: Node<'_, '_>, kind: &str) -> bool {
    node.has_tag_name("object") && node.attribute("type") == Some(kind)
}

fn os_index(node: Node<'_, '_>) -> Result<u32, LstopoError> {
    let index = number(node, "os_index")?;
    u32::try_from(index)
        .map_err(|_| bad(node, "os_index", format!("{index} is no CPU or node number")))
}

fn number_or(node: Node<'_, '_>, name: &'static str, default: u64) -> Result<u64, LstopoError> {
    if node.has_attribute(name) { number(node, name) } else { Ok(default) }
}

fn number(node: Node<'_, '_>, name: &'static str) -> Result<u64, LstopoError> {
    let text = node.attribute(name).ok_or_else(|| bad(node, name, "is missing".to_owned()))?;
    text.parse().map_err(|_| bad(node, name, format!("\"{}\" is no number", shorten(text))))
}

fn bad(node: Node<'_, '_>, attribute: &'static str, why: String) -> LstopoError {
    let element = node.tag_name().name().to_owned();
    LstopoError::Attribute { line: line(node), element, attribute, why }
}

fn line(node: Node<'_, '_>) -> u32 {
    node.document().text_pos_at(node.range().start).row
}

/// Returns the beginning of a possibly hostile value, enough to recognise the value in a message.
fn shorten(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests;
