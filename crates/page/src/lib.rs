// SPDX-License-Identifier: GPL-2.0-only
//! The report page: results, traces, advice and predictions as one file of HTML, which a browser
//! opens from disk and which requests nothing.
//!
//! Owns: what the page says (`session.rs`, `verdict.rs`, `others.rs`), the data of its charts
//! (`data.rs`, `intervals.rs`), and the program that draws them (`web/`).
//! Does not: read files, or run anything.

pub mod data;
mod intervals;
mod others;
mod session;
mod verdict;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use data::Page;
pub use intervals::{Collected, IntervalSink, Packed};
pub use others::{advice, published};
pub use session::{Document, session};
pub use verdict::verdict;

const PROGRAM: &str = include_str!(concat!(env!("OUT_DIR"), "/web/page.js"));

/// Returns the page as HTML. `blocks` holds the packed columns of the timelines, by their names in
/// the page's data.
///
/// ```
/// let page = scxlab_page::data::Page { title: "<b>".into(), ..Default::default() };
/// let html = scxlab_page::html(&page, &[]);
/// assert!(html.starts_with("<!doctype html>") && html.contains("<title>&lt;b&gt;</title>"));
/// ```
pub fn html(page: &Page, blocks: &[(String, Vec<u8>)]) -> String {
    let data = serde_json::to_string(page).expect("a page is plain data").replace('<', "\\u003c");
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         script-src 'unsafe-inline'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n</head>\n<body>\n\
         <noscript>This page draws its tables and charts with JavaScript.</noscript>\n\
         <script type=\"application/json\" id=\"page-data\">{data}</script>\n",
        escape(&page.title)
    );
    for (name, bytes) in blocks {
        html.push_str(&format!("<script type=\"text/plain\" id=\"{name}\">"));
        STANDARD.encode_string(bytes, &mut html);
        html.push_str("</script>\n");
    }
    html.push_str("<script>");
    // A script ends at this tag even within a string.
    html.push_str(&PROGRAM.replace("</script", "<\\/script"));
    html.push_str("</script>\n</body>\n</html>\n");
    html
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
