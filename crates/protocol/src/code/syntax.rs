//! The Python program that client and master run to check that scripts parse, and the program's input.

/// Parses files without running them. The standard input contains the files' names and contents, in the form of
/// [`syntax_input`]. The program prints a sentence about the first file that does not parse, and exits with
/// [`DOES_NOT_PARSE`]. Any other exit code except 0 means that Python itself does not work.
const PROGRAM: &str = "
import ast, sys
for head in iter(sys.stdin.buffer.readline, b''):
    size, path = head.decode().rstrip(chr(10)).split(' ', 1)
    try: ast.parse(sys.stdin.buffer.read(int(size)), path)
    except Exception as error:
        line = getattr(error, 'lineno', None)
        place = f'{path}, line {line}' if line else path
        sentence = f'{getattr(error, \"msg\", error)} ({place})'
        sys.stdout.buffer.write(sentence.encode(errors='replace'))
        sys.exit(65)
";

/// The arguments with which Python checks the files on its standard input. `-I` and `-S` keep the user's modules out.
pub const CHECK_SYNTAX: [&str; 4] = ["-I", "-S", "-c", PROGRAM];

/// The exit code for a file that does not parse: `EX_DATAERR` of sysexits.h.
pub const DOES_NOT_PARSE: i32 = 65;

/// The standard input of [`CHECK_SYNTAX`]: for each file a line with its size in bytes and its path, then its content.
pub fn syntax_input<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut input = Vec::new();
    for (path, content) in files {
        input.extend(format!("{} {path}\n", content.len()).bytes());
        input.extend_from_slice(content);
    }
    input
}
