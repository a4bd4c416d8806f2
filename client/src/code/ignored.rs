//! The patterns of a .dockerignore. Unlike in git, each pattern starts at the root: the folder of the .dockerignore.
//! The last pattern that matches a file or one of its folders decides (`moby/patternmatcher`).

use std::path::Path;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// Docker reads these files even if a pattern excludes them.
const ALWAYS_SENT: [&str; 2] = ["Dockerfile", ".dockerignore"];

pub(crate) struct Ignored {
    patterns: Vec<IgnorePattern>,
}

struct IgnorePattern {
    matcher: Gitignore,
    /// `false` for a pattern with `!`, which includes files again.
    leaves_out: bool,
}

impl Ignored {
    /// Parses the text of a file. The error is the invalid pattern.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
        let used = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let patterns = used.filter_map(|line| IgnorePattern::parse(line).transpose()).collect::<Result<_, _>>()?;
        Ok(Self { patterns })
    }

    /// Whether the file or folder with this path from the root is excluded.
    pub(crate) fn leaves_out(&self, path: &Path, is_folder: bool) -> bool {
        if ALWAYS_SENT.iter().any(|name| path == Path::new(name)) {
            return false;
        }
        let last = self.patterns.iter().rev().find(|pattern| pattern.matches(path, is_folder));
        last.is_some_and(|pattern| pattern.leaves_out)
    }

    /// Whether a pattern may include a file of an excluded folder again.
    pub(crate) fn takes_back(&self) -> bool {
        self.patterns.iter().any(|pattern| !pattern.leaves_out)
    }
}

impl IgnorePattern {
    /// Parses a line with a pattern. `None` for a pattern that matches only the root. The root cannot be excluded.
    fn parse(line: &str) -> Result<Option<Self>, String> {
        let (glob, leaves_out) = match line.strip_prefix('!') {
            Some(rest) => (rest.trim(), false),
            None => (line, true),
        };
        let parts: Vec<&str> = glob.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        if parts.is_empty() {
            return Ok(None);
        }
        let mut builder = GitignoreBuilder::new("");
        builder.allow_unclosed_class(false);
        let unreadable = |_| line.to_owned();
        builder.add_line(None, &format!("/{}", parts.join("/"))).map_err(unreadable)?;
        let matcher = builder.build().map_err(unreadable)?;
        Ok(Some(Self { matcher, leaves_out }))
    }

    fn matches(&self, path: &Path, is_folder: bool) -> bool {
        self.matcher.matched_path_or_any_parents(path, is_folder).is_ignore()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(patterns: &str, path: &str) -> bool {
        !Ignored::parse(patterns).unwrap().leaves_out(Path::new(path), false)
    }

    #[test]
    fn patterns_begin_at_the_root() {
        assert!(!sent("data", "data"));
        assert!(!sent("data", "data/a/b.bin"));
        assert!(sent("data", "src/data"));
        assert!(!sent("/data/", "data/a"));
        assert!(!sent("./data", "data/a"));
        assert!(!sent("**/data", "src/data/x"));
        assert!(!sent("*/temp*", "src/temporary.txt"));
        assert!(sent("*/temp*", "src/deep/temporary.txt"));
        assert!(!sent("*.pyc", "a.pyc"));
        assert!(sent("*.pyc", "src/a.pyc"));
        assert!(!sent("**/*.pyc", "src/deep/a.pyc"));
    }

    #[test]
    fn the_last_pattern_that_matches_decides() {
        assert!(sent("*\n!exec.py", "exec.py"));
        assert!(!sent("*\n!exec.py", "other.py"));
        assert!(sent("data\n!data/keep", "data/keep"));
        assert!(!sent("data\n!data/keep", "data/drop"));
        assert!(!sent("!data/keep\ndata", "data/keep"));
        assert!(Ignored::parse("data\n!data/keep").unwrap().takes_back());
    }

    #[test]
    fn comments_blank_lines_and_the_root_exclude_nothing() {
        for patterns in ["", "# data\n\n", "/\n.\n", "\u{feff}# bom"] {
            assert!(sent(patterns, "data"), "{patterns:?}");
        }
    }

    #[test]
    fn files_that_docker_itself_reads_are_always_sent() {
        assert!(sent("*", "Dockerfile") && sent("*", ".dockerignore"));
        assert!(!sent("*", "sub/Dockerfile"));
    }

    #[test]
    fn the_error_of_an_invalid_pattern_is_the_pattern() {
        assert_eq!(Ignored::parse("ok\n[a").err().as_deref(), Some("[a"));
    }
}
