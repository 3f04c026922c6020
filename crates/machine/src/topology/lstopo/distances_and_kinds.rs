// SPDX-License-Identifier: GPL-2.0-only
//! The parts of hwloc's XML beside the object tree: distances between nodes, and kinds of CPUs.
//!
//! Owns: the two forms of distances and the form of kinds. Does not: guess. If a file has none of
//! these parts, the defaults apply.

use roxmltree::Node;

use super::{LstopoError, NumaNode, bad, line, number, shorten};
use crate::topology::CPUS_MAX;

/// hwloc's flag for a matrix of latencies.
const KIND_LATENCY: u64 = 4;

/// Fills in the nodes' distances from the first latency matrix of NUMA nodes, if there is one.
pub(super) fn read_distances(
    root: Node<'_, '_>,
    nodes: &mut [NumaNode],
) -> Result<(), LstopoError> {
    let elements = || root.descendants().filter(Node::is_element);
    for matrix in elements().filter(|node| node.has_tag_name("distances2")) {
        let of_nodes = matrix.attribute("type") == Some("NUMANode");
        if of_nodes && number(matrix, "kind")? & KIND_LATENCY != 0 {
            return read_format2(matrix, nodes);
        }
    }
    // Format 1 does not name the type of the listed objects. A matrix of another size than the
    // number of nodes is not about nodes.
    let about_nodes = |node: &Node<'_, '_>| {
        let listed = node.attribute("nbobjs").and_then(|nr| nr.parse().ok());
        node.has_tag_name("distances") && listed == Some(nodes.len())
    };
    match elements().find(about_nodes) {
        Some(matrix) => read_format1(matrix, nodes),
        None => Ok(()),
    }
}

/// Reads lists of numbers, which may be split over several elements.
fn read_format2(matrix: Node<'_, '_>, nodes: &mut [NumaNode]) -> Result<(), LstopoError> {
    let list = |name: &str| -> Result<Vec<u64>, LstopoError> {
        let parts = matrix.children().filter(|node| node.has_tag_name(name));
        let words = parts.flat_map(|part| part.text().unwrap_or("").split_whitespace());
        let number = |word: &str| {
            let why = || format!("\"{}\" in a distance matrix is no number", shorten(word));
            word.parse().map_err(|_| LstopoError::Distances { line: line(matrix), why: why() })
        };
        words.map(number).collect()
    };
    assign(matrix, nodes, &list("indexes")?, &list("u64values")?)
}

/// Reads a matrix with one element `<latency value="2.0"/>` per entry. Values are multiples of the
/// attribute `latency_base`; rows and columns follow the logical order of the nodes.
fn read_format1(matrix: Node<'_, '_>, nodes: &mut [NumaNode]) -> Result<(), LstopoError> {
    let millionths = |node: Node<'_, '_>, name| {
        let text = node.attribute(name).unwrap_or("");
        parse_millionths(text)
            .ok_or_else(|| bad(node, name, format!("\"{}\" is no decimal number", shorten(text))))
    };
    let base = millionths(matrix, "latency_base")?;
    let entries = matrix.children().filter(|node| node.has_tag_name("latency"));
    // The value and the base are below 2^42 (see parse_millionths), so their product fits 128 bits.
    let scaled = entries.map(|entry| {
        let product = u128::from(millionths(entry, "value")?) * u128::from(base);
        Ok(u64::try_from((product + 500_000_000_000) / 1_000_000_000_000).unwrap_or(u64::MAX))
    });
    let values = scaled.collect::<Result<Vec<u64>, LstopoError>>()?;
    let indexes: Vec<u64> = nodes.iter().map(|node| u64::from(node.os_index)).collect();
    assign(matrix, nodes, &indexes, &values)
}

/// Stores a square matrix over `indexes` (node numbers of the operating system) in the nodes.
fn assign(
    matrix: Node<'_, '_>,
    nodes: &mut [NumaNode],
    indexes: &[u64],
    values: &[u64],
) -> Result<(), LstopoError> {
    let wrong = |why: String| LstopoError::Distances { line: line(matrix), why };
    let nr = nodes.len();
    if indexes.len() != nr || values.len() != nr * nr {
        let why = format!("{} distances among {} of {nr} nodes", values.len(), indexes.len());
        return Err(wrong(why));
    }
    let position = |node: &NumaNode| indexes.iter().position(|&i| i == u64::from(node.os_index));
    let places: Option<Vec<usize>> = nodes.iter().map(position).collect();
    let places =
        places.ok_or_else(|| wrong("a distance matrix does not name every node".to_owned()))?;
    for (node, &row) in nodes.iter_mut().zip(&places) {
        let row = places.iter().map(|&column| values[row * nr + column]);
        // A distance past 32 bits becomes u32::MAX. `Topology::build` refuses it, like any other
        // distance above 254.
        node.layout.distances = row.map(|d| u32::try_from(d).unwrap_or(u32::MAX)).collect();
    }
    Ok(())
}

/// Returns the capacity by CPU number, in the file's unit, 0 if unknown. It is the kernel's
/// capacity if hwloc recorded it, otherwise the maximum or the base frequency. A frequency
/// understates how much slower small cores are.
pub(super) fn read_capacities(root: Node<'_, '_>) -> Result<Vec<u32>, LstopoError> {
    let kinds: Vec<_> = root.children().filter(|node| node.has_tag_name("cpukind")).collect();
    for name in ["LinuxCapacity", "FrequencyMaxMHz", "FrequencyBaseMHz"] {
        let all: Option<Vec<_>> = kinds.iter().map(|kind| info(*kind, name)).collect();
        let Some(values) = all.filter(|values| !values.is_empty()) else {
            continue;
        };
        let mut capacities = Vec::new();
        for (kind, value) in kinds.iter().zip(values) {
            for cpu in parse_bitmap(*kind)? {
                capacities.resize(capacities.len().max(cpu + 1), 0);
                capacities[cpu] = value;
            }
        }
        return Ok(capacities);
    }
    Ok(Vec::new())
}

/// Returns the number in `<info name=".." value=".."/>` under a CPU kind.
fn info(kind: Node<'_, '_>, name: &str) -> Option<u32> {
    let mut infos = kind.children().filter(|node| node.has_tag_name("info"));
    infos.find(|node| node.attribute("name") == Some(name))?.attribute("value")?.parse().ok()
}

/// Parses one of hwloc's bitmaps: words of 32 bits in hexadecimal, most significant first:
/// `0x00000001,0xffff0000`.
fn parse_bitmap(node: Node<'_, '_>) -> Result<Vec<usize>, LstopoError> {
    let text = node.attribute("cpuset").unwrap_or("");
    let wrong = || bad(node, "cpuset", format!("\"{}\" is no bitmap", shorten(text)));
    let mut cpus = Vec::new();
    for (i, word) in text.rsplit(',').enumerate() {
        let digits = word.strip_prefix("0x").unwrap_or(word);
        let bits = if digits.is_empty() {
            0
        } else {
            u32::from_str_radix(digits, 16).map_err(|_| wrong())?
        };
        if bits != 0 && (i + 1) * 32 > CPUS_MAX {
            return Err(wrong());
        }
        cpus.extend((0..32).filter(|bit| bits >> bit & 1 != 0).map(|bit| i * 32 + bit));
    }
    Ok(cpus)
}

/// Parses `2.5` as 2500000. At most six digits before the point are allowed; decimals after the
/// sixth are cut.
fn parse_millionths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || whole.len() > 6 || !digits(whole) || !digits(fraction) {
        return None;
    }
    let fraction: String = fraction.chars().chain("000000".chars()).take(6).collect();
    Some(whole.parse::<u64>().ok()? * 1_000_000 + fraction.parse::<u64>().ok()?)
}
