//! Of which ranks to print the lines, if replicas have several processes.

use std::collections::BTreeSet;
use std::str::FromStr;

use protocol::processes::rank_of;

/// A choice of ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ShownRanks {
    #[default]
    All,
    Only(BTreeSet<u32>),
}

impl ShownRanks {
    /// The label and the text to print for a line; `None` if its rank is not chosen. Lines without a rank are always
    /// printed. If only one rank is chosen, its label is empty.
    pub(crate) fn shown<'a>(&self, line: &'a str) -> Option<(&'a str, &'a str)> {
        let (rank, text) = rank_of(line).map_or((None, line), |(rank, text)| (Some(rank), text));
        let label = &line[..line.len() - text.len()];
        match (self, rank) {
            (Self::All, _) | (Self::Only(_), None) => Some((label, text)),
            (Self::Only(ranks), Some(rank)) if ranks.contains(&rank) => {
                Some((if ranks.len() == 1 { "" } else { label }, text))
            }
            (Self::Only(_), Some(_)) => None,
        }
    }

    /// The highest chosen rank; `None` if all are chosen.
    pub(crate) fn highest(&self) -> Option<u32> {
        if let Self::Only(ranks) = self { ranks.last().copied() } else { None }
    }
}

impl FromStr for ShownRanks {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ranks = match text {
            "all" => return Ok(Self::All),
            "first" => "0",
            ranks => ranks,
        };
        let ranks: Result<_, _> = ranks.split(',').map(str::parse).collect();
        ranks.map(Self::Only).map_err(|_| "use first, all, or ranks such as 0,8")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_of_the_chosen_ranks_are_printed_and_one_rank_alone_without_its_label() {
        let shown = |choice: &str, line| {
            choice.parse::<ShownRanks>().unwrap().shown(line).map(|(label, text)| format!("{label}{text}"))
        };
        let line = "[rank8] step 4";
        assert_eq!(shown("all", line).as_deref(), Some(line));
        assert_eq!(shown("0,8", line).as_deref(), Some(line));
        assert_eq!(shown("8", line).as_deref(), Some("step 4"));
        assert_eq!(shown("first", line), None);
        assert_eq!(shown("first", "[rank0] a").as_deref(), Some("a"));
        for unlabelled in ["step 4", "[rank] a", "[rank8]a", "[muster: no warm start]"] {
            assert_eq!(shown("first", unlabelled).as_deref(), Some(unlabelled));
        }
        for bad in ["", "x", "0,", "-1"] {
            assert!(bad.parse::<ShownRanks>().is_err(), "{bad}");
        }
    }
}
