//! Decides what happens to a training image's ENTRYPOINT, which the agent replaces. If the ENTRYPOINT is a shell script
//! that prepares the environment and ends with `exec "$@"`, the agent runs that script with `python exec.py` as
//! arguments.

use super::layer::AGENT_PATH;
use protocol::agent::PYTHONS;
use protocol::code::SCRIPT;

/// Programs that only start another program and reap its orphans, as the agent does.
const INITS: [&str; 3] = ["tini", "dumb-init", "catatonit"];
const SHELLS: [&str; 3] = ["sh", "bash", "dash"];

/// The kind of an ENTRYPOINT, from its words alone.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EntrypointKind<'a> {
    /// Pods do not need the ENTRYPOINT: it is empty, or the agent does the same work.
    Unneeded,
    /// These words run the file `script`. The agent keeps the words if the file [`passes_on`] its arguments.
    Script { words: &'a [String], script: &'a str },
    /// Any other ENTRYPOINT. Pods do not run it.
    Other,
}

impl<'a> EntrypointKind<'a> {
    pub(super) fn of(words: &'a [String]) -> Self {
        let words = without_init(words);
        match words {
            [] => Self::Unneeded,
            [program, ..] if program == AGENT_PATH => Self::Unneeded,
            [program, rest @ ..] if is_one_of(program, &PYTHONS) => match rest {
                [] => Self::Unneeded,
                [script] if script == SCRIPT => Self::Unneeded,
                [..] => Self::Other,
            },
            [shell, script] if is_one_of(shell, &SHELLS) && !script.starts_with('-') => Self::Script { words, script },
            [shell] if is_one_of(shell, &SHELLS) => Self::Other,
            [script] => Self::Script { words, script },
            [..] => Self::Other,
        }
    }
}

/// Whether a line of a shell script runs the arguments of that script as a command, with `exec`.
pub(super) fn passes_on(script: &str) -> bool {
    let code = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    code.flat_map(|line| line.split(';')).any(|part| {
        part.split_once("exec ").is_some_and(|(before, command)| {
            let is_a_word = before.chars().next_back().is_none_or(char::is_whitespace);
            is_a_word && matches!(command.trim(), "\"$@\"" | "\"${@}\"")
        })
    })
}

/// The warning that the ENTRYPOINT with these words is left out.
pub(super) fn left_out(words: &[String]) -> String {
    let words = serde_json::json!(words);
    format!(
        "warning: pods do not run its ENTRYPOINT {words}, only python {SCRIPT}; Muster keeps an ENTRYPOINT if it is a \
         script that ends with exec \"$@\""
    )
}

fn without_init(words: &[String]) -> &[String] {
    match words {
        [program, rest @ ..] if is_one_of(program, &INITS) => {
            let flags = rest.iter().take_while(|word| word.starts_with('-')).count();
            &rest[flags..]
        }
        [..] => words,
    }
}

fn is_one_of(program: &str, names: &[&str]) -> bool {
    let name = program.rsplit('/').next().unwrap_or(program);
    names.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn an_entrypoint_is_unneeded_or_a_shell_script_or_another_program() {
        for line in ["", "tini --", "/usr/bin/tini -g --", "/muster/agent", "python", "/usr/bin/python3 exec.py"] {
            assert_eq!(EntrypointKind::of(&words(line)), EntrypointKind::Unneeded, "{line}");
        }
        for (line, kept, file) in [
            ("/entrypoint.sh", "/entrypoint.sh", "/entrypoint.sh"),
            ("docker-entrypoint.sh", "docker-entrypoint.sh", "docker-entrypoint.sh"),
            ("/bin/bash /entrypoint.sh", "/bin/bash /entrypoint.sh", "/entrypoint.sh"),
            ("tini -g -- start.sh", "start.sh", "start.sh"),
        ] {
            let (line, kept) = (words(line), words(kept));
            assert_eq!(EntrypointKind::of(&line), EntrypointKind::Script { words: &kept, script: file });
        }
        for line in ["/bin/sh -c ./serve", "bash", "/entrypoint.sh serve", "python -u exec.py", "python other.py"] {
            assert_eq!(EntrypointKind::of(&words(line)), EntrypointKind::Other, "{line}");
        }
    }

    #[test]
    fn only_a_shell_script_that_execs_its_arguments_passes_the_command_on() {
        for script in [
            "#!/bin/sh\nset -e\nexport A=1\nexec \"$@\"\n",
            "#!/bin/bash\nif [ $# = 0 ]; then\n  exec /bin/bash\nelse\n\texec \"$@\"\nfi\n",
            "#!/bin/sh\ntest -n \"$1\" && exec \"${@}\"",
            "#!/bin/sh\nif true; then exec \"$@\"; fi\n",
        ] {
            assert!(passes_on(script), "{script}");
        }
        for script in [
            "",
            "#!/bin/sh\njupyter lab\n",
            "#!/bin/sh\n# exec \"$@\"\n\"$@\"\nmy_exec \"$@\"\n",
            "#!/bin/sh\nexec jupyter lab \"$@\"\n",
            "#!/bin/sh\nexec gosu postgres \"$0\" \"$@\"\n",
        ] {
            assert!(!passes_on(script), "{script}");
        }
    }
}
