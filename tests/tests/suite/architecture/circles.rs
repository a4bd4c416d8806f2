//! Checks that no file of a crate imports itself through other files. A file imports the files that define the names in
//! its paths. A module and the modules inside it belong together, so a path to a surrounding module is no import. Calls
//! of methods are not seen.

use std::collections::{BTreeMap, BTreeSet};

use super::{CRATES, sources};

/// The files of a crate by module, such as `crate::job::phase`.
struct Crate(BTreeMap<String, File>);

struct File {
    /// The path in the repository.
    name: String,
    /// The text without tests and comments.
    code: String,
}

impl Crate {
    /// `files` are paths, such as `agent/src/run/mod.rs`, and texts. Skips binaries and files with only tests.
    fn new(files: Vec<(String, String)>) -> Self {
        let module = |(name, text): (String, String)| {
            let path = name.split_once("/src/")?.1.strip_suffix(".rs")?;
            let is_apart = path == "main" || path.starts_with("bin/") || path.ends_with("_tests");
            let path = path.strip_suffix("/mod").unwrap_or(path).replace('/', "::");
            let module = if path == "lib" { "crate".to_owned() } else { format!("crate::{path}") };
            (!is_apart).then(|| (module, File { code: code(&text), name }))
        };
        Self(files.into_iter().filter_map(module).collect())
    }

    /// The name of each file, with the names of the files that it imports.
    fn imports(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let imported_by = |module: &str, file: &File| {
            let definers = self.paths(module, &file.code).into_iter().filter_map(|path| self.definer(&path, 0));
            let others = definers.filter(|other| module != *other && !module.starts_with(&format!("{other}::")));
            others.map(|other| self.0[other].name.as_str()).collect()
        };
        self.0.iter().map(|(module, file)| (file.name.as_str(), imported_by(module, file))).collect()
    }

    /// All paths in the code of a module that name something of this crate. They begin with `crate`.
    fn paths(&self, module: &str, code: &str) -> Vec<String> {
        let begins = code.match_indices("::").map(|(at, _)| at - word_before(&code[..at]).len());
        let is_whole = |begin: &usize| !code[..*begin].ends_with("::");
        begins.filter(is_whole).flat_map(|begin| self.paths_at(module, &code[begin..])).collect()
    }

    /// The paths at the beginning of this code, such as `crate::a::b` and `crate::a::c` for `crate::a::{b, c}`.
    fn paths_at(&self, module: &str, code: &str) -> Vec<String> {
        let (first, rest) = code.split_once("::").expect("the code begins with a path");
        let base = match first {
            "crate" => first.to_owned(),
            "self" => module.to_owned(),
            "super" => module.rsplit_once("::").map_or_else(String::new, |(parent, _)| parent.to_owned()),
            name => format!("{module}::{name}"),
        };
        if first == "super" && rest.starts_with("super::") {
            return self.paths_at(&base, rest);
        }
        let mut found = vec![];
        if self.0.contains_key(&base) {
            leaves(rest, &base, &mut found);
        }
        found
    }

    /// The module whose file defines what the path names. Follows `use` in other modules, except with `*` or `as`.
    /// `depth` is the number of `use` statements that were followed.
    fn definer(&self, path: &str, depth: usize) -> Option<&str> {
        let parents = std::iter::successors(Some(path), |path| path.rsplit_once("::").map(|(parent, _)| parent));
        let (module, file) = parents.into_iter().find_map(|parent| self.0.get_key_value(parent))?;
        let name = path[module.len()..].split("::").nth(1).filter(|_| depth < 5);
        let exported = name.and_then(|name| self.exported(module, &file.code, name));
        exported.and_then(|path| self.definer(&path, depth + 1)).or(Some(module))
    }

    /// The path that the code of a module imports or exports under this name.
    fn exported(&self, module: &str, code: &str, name: &str) -> Option<String> {
        let mut paths = code.split(';').filter_map(tree_of_use).flat_map(|tree| self.paths(module, tree));
        paths.find(|path| path.ends_with(&format!("::{name}")) && *path != format!("{module}::{name}"))
    }
}

/// The text without tests and comments.
fn code(text: &str) -> String {
    let lines = text.lines().take_while(|line| *line != "#[cfg(test)]");
    lines.map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The names in a statement, if it is `use NAMES` or, for example, `pub(crate) use NAMES`.
fn tree_of_use(statement: &str) -> Option<&str> {
    let statement = statement.trim_start();
    let rest = statement.strip_prefix("pub").unwrap_or(statement);
    let rest = rest.strip_prefix('(').and_then(|inside| inside.split_once(')')).map_or(rest, |(_, rest)| rest);
    rest.trim_start().strip_prefix("use ")
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn word_before(text: &str) -> &str {
    &text[text.trim_end_matches(is_word).len()..]
}

/// Adds each path of a `use` tree to `found`, such as `base::a::b` and `base::a::c` for `a::{b, c}`. Returns the text
/// after the tree.
fn leaves<'c>(tree: &'c str, base: &str, found: &mut Vec<String>) -> &'c str {
    if let Some(mut rest) = tree.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches(|letter: char| letter.is_whitespace() || letter == ',');
            if !rest.starts_with(is_word) {
                return rest.strip_prefix('}').unwrap_or(rest);
            }
            rest = leaves(rest, base, found);
        }
    }
    let rest = tree.trim_start_matches(is_word);
    let path = format!("{base}::{}", &tree[..tree.len() - rest.len()]);
    match rest.strip_prefix("::") {
        Some(rest) if rest.starts_with(|letter| is_word(letter) || letter == '{') => leaves(rest, &path, found),
        Some(_) | None => {
            found.push(path);
            rest
        }
    }
}

/// The files that are in circles or between two circles, with their imports. Leaves out imports of other files.
fn circles(files: Vec<(String, String)>) -> Vec<String> {
    let all = Crate::new(files);
    let mut imports = all.imports();
    loop {
        let importers: BTreeSet<&str> = imports.keys().copied().collect();
        imports.values_mut().for_each(|imported| imported.retain(|name| importers.contains(name)));
        let imported: BTreeSet<&str> = imports.values().flatten().copied().collect();
        imports.retain(|name, its| imported.contains(name) && !its.is_empty());
        if imports.len() == importers.len() {
            return imports.iter().map(|(name, imported)| format!("{name} imports {imported:?}")).collect();
        }
    }
}

#[test]
fn no_file_imports_itself_through_other_files() {
    for dir in CRATES {
        assert_eq!(circles(sources(dir)), Vec::<String>::new());
    }
}

#[test]
fn a_circle_is_found_in_a_list_of_names_and_through_an_exported_name() {
    let files = |inside: &str| {
        let texts = [
            ("lib", "mod job;\nmod view;\nmod text;\n"),
            ("view", "use crate::{job::Job, text};\nfn f() { text::g() }\n"),
            ("text", "/// For [`crate::view::View`].\npub fn g() {}\n#[cfg(test)]\nuse crate::view::View;"),
            ("job/mod", "mod inside;\npub(crate) use self::inside::{A, Job};\npub enum Kind {}\n"),
            ("job/inside", inside),
        ];
        texts.map(|(name, text)| (format!("a/src/{name}.rs"), text.to_owned())).to_vec()
    };
    let found = circles(files("use super::Kind;\npub struct Job(super::super::view::View);\n"));
    let expected =
        [r#"a/src/job/inside.rs imports {"a/src/view.rs"}"#, r#"a/src/view.rs imports {"a/src/job/inside.rs"}"#];
    assert_eq!(found, expected);
    assert_eq!(circles(files("use super::Kind;\npub struct Job(Kind);\n")), Vec::<String>::new());
}
