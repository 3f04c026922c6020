// SPDX-License-Identifier: GPL-2.0-only
//! Bounds on the parts of a file for which the parser's time and memory grow more than linearly:
//! the attributes of one element, which it compares with each other; namespaces, which it copies to
//! each element below; and depth.
//!
//! Owns: one pass over the text before it is parsed. Does not: check that the text is XML. Text
//! that is no tag for this pass is no tag for the parser either.

use super::{DEPTH_MAX, LstopoError};

/// Maximum number of attributes of one element; lstopo writes about fifteen.
pub(super) const ATTRIBUTES_MAX: usize = 64;

/// Markup other than start tags, as pairs of beginning and end.
const OTHERS: [(&str, &str); 5] =
    [("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>"), ("<!", ">"), ("</", ">")];

pub(super) fn check(xml: &str) -> Result<(), LstopoError> {
    let mut depth = 0_usize;
    let mut rest = xml;
    while let Some(start) = rest.find('<') {
        rest = &rest[start..];
        if let Some((begin, end)) = OTHERS.iter().find(|(begin, _)| rest.starts_with(begin)) {
            depth = depth.saturating_sub(usize::from(*begin == "</"));
            let inside = &rest[begin.len()..];
            rest = inside.find(end).map_or("", |at| &inside[at + end.len()..]);
            continue;
        }
        let tag = StartTag::read(rest);
        depth += usize::from(!tag.is_empty);
        let line = || 1 + xml[..xml.len() - rest.len()].matches('\n').count();
        if tag.attributes > ATTRIBUTES_MAX {
            return Err(LstopoError::TooManyAttributes { line: line() });
        }
        if tag.has_namespace {
            return Err(LstopoError::Namespace { line: line() });
        }
        if depth > DEPTH_MAX {
            return Err(LstopoError::TooDeep { line: line() });
        }
        rest = &rest[tag.len..];
    }
    Ok(())
}

struct StartTag {
    len: usize,
    attributes: usize,
    has_namespace: bool,
    /// Whether the tag ends with `/>`, so that its element has no contents.
    is_empty: bool,
}

impl StartTag {
    /// Reads the tag at the start of the text. A tag that does not end extends over the whole text.
    fn read(text: &str) -> StartTag {
        let mut tag =
            StartTag { len: text.len(), attributes: 0, has_namespace: false, is_empty: false };
        let mut quote = None;
        let mut name_from = 0;
        for (at, byte) in text.bytes().enumerate() {
            match (quote, byte) {
                (Some(open), _) if open == byte => (quote, name_from) = (None, at),
                (None, b'"' | b'\'') => {
                    quote = Some(byte);
                    tag.attributes += 1;
                    tag.has_namespace |= text[name_from..at].contains("xmlns");
                }
                (None, b'>') => {
                    tag.is_empty = text[..at].ends_with('/');
                    tag.len = at + 1;
                    break;
                }
                _ => {}
            }
        }
        tag
    }
}
