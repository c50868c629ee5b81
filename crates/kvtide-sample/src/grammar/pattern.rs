//! Regular expressions as grammars. They match whole texts: `^` at the start and `$` at the end change nothing and are
//! dropped. Other anchors, word boundaries and look-around need text outside the match and are refused.

use llguidance::api::TopLevelGrammar;
use regex_syntax::hir::{Hir, HirKind, Look};

use crate::error::{Error, Result};

/// The deepest nesting of groups.
const NESTING_MAX: u32 = 200;

/// Checks a regular expression. O(pattern).
pub(super) fn to_grammar(pattern: &str) -> Result<TopLevelGrammar> {
    let pattern = unanchored(pattern, &parsed(pattern)?);
    if !parsed(pattern)?.properties().look_set().is_empty() {
        let reason = "anchors and word boundaries inside of it are not supported: it matches whole texts";
        return Err(Error::grammar(None, reason));
    }
    if pattern.is_empty() {
        return Ok(TopLevelGrammar::from_lark("start: \"\"".to_owned()));
    }
    Ok(TopLevelGrammar::from_regex(pattern))
}

fn parsed(pattern: &str) -> Result<Hir> {
    let parser = regex_syntax::ParserBuilder::new().nest_limit(NESTING_MAX).build().parse(pattern);
    parser.map_err(|error| {
        let (offset, reason) = match &error {
            regex_syntax::Error::Parse(error) => (error.span().start.offset, error.kind().to_string()),
            regex_syntax::Error::Translate(error) => (error.span().start.offset, error.kind().to_string()),
            _ => return Error::grammar(None, "not a regular expression"),
        };
        Error::grammar(Some(format!("character {}", pattern[..offset].chars().count())), reason)
    })
}

/// The pattern without the anchors of whole texts.
fn unanchored<'a>(pattern: &'a str, parsed: &Hir) -> &'a str {
    let parts = match parsed.kind() {
        HirKind::Concat(parts) => parts.as_slice(),
        HirKind::Look(_) => std::slice::from_ref(parsed),
        _ => return pattern,
    };
    let is = |part: Option<&Hir>, look| part.is_some_and(|part| part.kind() == &HirKind::Look(look));
    let inner = pattern.strip_prefix('^').filter(|_| is(parts.first(), Look::Start)).unwrap_or(pattern);
    inner.strip_suffix('$').filter(|_| is(parts.last(), Look::End)).unwrap_or(inner)
}
