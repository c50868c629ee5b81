//! Selects the form in which a query reads pages that exist both as floats and quantised, as full pages of drafts and steps
//! do: pages before the query's own page quantised, and its own page as floats. So a query reads the same whatever the
//! number of tokens in its step.

use std::ops::Range;

use super::call::asked::Asked;
use crate::paged::PageRows;

/// Queries of a sequence that read its pages in the same form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnPage {
    /// The queries, by index within the sequence.
    pub queries: Range<usize>,
    /// The index of their own page, from which on pages are read as floats; 0 if all pages have one form.
    pub place: usize,
}

impl OwnPage {
    /// The own page of a query, and the following queries with the same own page. O(those queries), or O(pages) if pages
    /// have one form.
    pub fn of(asked: &Asked<'_>, pages: Option<&PageRows<'_>>, sequence: usize, first: usize) -> OwnPage {
        let end = asked.sequences[sequence].queries;
        let Some(pages) = pages.filter(|pages| first < end && pages.has_two_forms(sequence)) else {
            return OwnPage { queries: first..end, place: 0 };
        };
        let of = |query: usize| asked.page_of(sequence, asked.position(sequence, query), pages.block_size());
        let place = of(first);
        let end = (first + 1..end).find(|&query| of(query) != place).unwrap_or(end);
        OwnPage { queries: first..end, place }
    }

    /// All queries of a sequence, in order.
    pub fn all<'a>(
        asked: &'a Asked<'_>,
        pages: Option<&'a PageRows<'_>>,
        sequence: usize,
    ) -> impl Iterator<Item = OwnPage> + 'a {
        let mut next = 0;
        std::iter::from_fn(move || {
            let is_there = next < asked.sequences[sequence].queries;
            let found = is_there.then(|| OwnPage::of(asked, pages, sequence, next))?;
            next = found.queries.end;
            Some(found)
        })
    }
}
