//! The end of another program's output, for the error about this program.

/// The last lines of a program's output that are not blank, with a line break and two spaces before each line.
pub(crate) fn last_lines(output: &[u8], max: usize) -> String {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(max)..].iter().map(|line| format!("\n  {line}")).collect()
}
