// SPDX-License-Identifier: GPL-2.0-only
//! What a file may have of anything that the parser's time and memory are more than linear in: attributes of one element, which
//! it compares with each other, namespaces, which it copies to each element below, and depth.
//!
//! Owns: one pass over the text before it is parsed. Does not: say whether it is XML; what is no tag here is none for the parser.

use super::{DEPTH_MAX, LstopoError};

/// Attributes of one element at most; lstopo writes about fifteen.
pub(super) const ATTRIBUTES_MAX: usize = 64;

/// Markup that is no start tag: how it begins and ends.
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
    /// It ends with `/>`: there is nothing inside.
    is_empty: bool,
}

impl StartTag {
    /// The tag at the start of the text, or all of it if the tag does not end.
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
