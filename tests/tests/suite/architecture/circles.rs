//! Checks that no file of a crate imports itself through other files, and no room through other rooms. A file imports
//! the files that define the names in its paths. A room is a file or a folder, and all files of a folder belong to it. A
//! module and the modules inside it belong together, so a path to a surrounding module is no import. Calls of methods
//! are not seen.

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

/// The nodes of a graph that are in circles or between two circles, with the nodes to which they lead.
fn circles(mut graph: BTreeMap<&str, BTreeSet<&str>>) -> Vec<String> {
    loop {
        let from: BTreeSet<&str> = graph.keys().copied().collect();
        graph.values_mut().for_each(|to| to.retain(|name| from.contains(name)));
        let to: BTreeSet<&str> = graph.values().flatten().copied().collect();
        graph.retain(|name, its| to.contains(name) && !its.is_empty());
        if graph.len() == from.len() {
            return graph.iter().map(|(name, to)| format!("{name} imports {to:?}")).collect();
        }
    }
}

/// The rooms of a folder, with the rooms that they import. A room is a file or a folder, and `a.rs` belongs to `a/`.
fn rooms<'c>(files: &BTreeMap<&'c str, BTreeSet<&'c str>>, folder: &str) -> BTreeMap<&'c str, BTreeSet<&'c str>> {
    let room = |name: &'c str| {
        let inside = name.strip_prefix(folder)?;
        let end = inside.find(['/', '.']).unwrap_or(inside.len());
        let is_own = matches!(&inside[..end], "mod" | "lib" | "main");
        (!is_own).then(|| &name[..folder.len() + end])
    };
    let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, imported) in files {
        let Some(from) = room(name) else { continue };
        let to = imported.iter().filter_map(|name| room(name)).filter(|to| *to != from);
        graph.entry(from).or_default().extend(to);
    }
    graph
}

/// The folders of these files, from `src` on. Each ends in a slash.
fn folders<'c>(files: &BTreeMap<&'c str, BTreeSet<&'c str>>) -> BTreeSet<&'c str> {
    let above = |name: &'c str| {
        let src = name.find("/src/").map_or(0, |at| at + "/src".len());
        name.match_indices('/').map(move |(at, _)| at).filter(move |at| *at >= src).map(move |at| &name[..=at])
    };
    files.keys().flat_map(|name| above(name)).collect()
}

#[test]
fn no_file_imports_itself_through_other_files() {
    for dir in CRATES {
        assert_eq!(circles(Crate::new(sources(dir)).imports()), Vec::<String>::new());
    }
}

#[test]
fn no_room_imports_itself_through_other_rooms() {
    for dir in CRATES {
        let all = Crate::new(sources(dir));
        let files = all.imports();
        for folder in folders(&files) {
            assert_eq!(circles(rooms(&files, folder)), Vec::<String>::new(), "{folder}");
        }
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
    let of_files = |files| circles(Crate::new(files).imports());
    let found = of_files(files("use super::Kind;\npub struct Job(super::super::view::View);\n"));
    let expected =
        [r#"a/src/job/inside.rs imports {"a/src/view.rs"}"#, r#"a/src/view.rs imports {"a/src/job/inside.rs"}"#];
    assert_eq!(found, expected);
    assert_eq!(of_files(files("use super::Kind;\npub struct Job(Kind);\n")), Vec::<String>::new());
}

#[test]
fn a_circle_of_rooms_is_found_although_no_file_imports_itself() {
    let text = |name: &str, text: &str| (format!("a/src/{name}.rs"), text.to_owned());
    let all = Crate::new(vec![
        text("lib", "mod job;\nmod view;\n"),
        text("job/mod", "mod one;\nmod two;\n"),
        text("job/one", "use crate::view::View;\n"),
        text("job/two", "pub struct Two;\n"),
        text("view", "use crate::job::two::Two;\npub struct View;\n"),
    ]);
    let files = all.imports();
    assert_eq!(circles(files.clone()), Vec::<String>::new());
    assert_eq!(folders(&files), BTreeSet::from(["a/src/", "a/src/job/"]));
    let expected = [r#"a/src/job imports {"a/src/view"}"#, r#"a/src/view imports {"a/src/job"}"#];
    assert_eq!(circles(rooms(&files, "a/src/")), expected);
    assert_eq!(circles(rooms(&files, "a/src/job/")), Vec::<String>::new());
}
