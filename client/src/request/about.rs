//! Says where a job comes from, so that its runs can be compared.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use protocol::about::About;
use protocol::code::ScriptPath;
use protocol::image::ImageRef;
use tokio::process::Command;
use tokio::time::timeout;

/// Maximum time for `git`, which looks at all files of the folder. A submit does not wait longer.
const GIT_TIMEOUT: Duration = Duration::from_secs(1);

/// The origin of a job that runs a script of this folder.
pub(crate) async fn of_folder(folder: &Path, script: &ScriptPath) -> About {
    let source = folder.join(script.as_str());
    let commit = commit_of(source.parent().unwrap_or(folder)).await;
    About { source: source.to_str().map(str::to_owned), commit }
}

/// The origin of a job that runs this image.
pub(crate) fn of_image(image: &ImageRef) -> About {
    About { source: Some(image.repository().to_owned()), commit: None }
}

/// The commit of a folder. Ends in `-dirty` if files that git tracks have changed since. `None` without git, or outside
/// a repository.
async fn commit_of(folder: &Path) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(["describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]);
    // Without this variable, git may write its index, although `describe` only reads.
    git.env("GIT_OPTIONAL_LOCKS", "0").stdin(Stdio::null()).kill_on_drop(true);
    let done = timeout(GIT_TIMEOUT, git.output()).await.ok()?.ok()?;
    let commit = String::from_utf8(done.stdout).ok()?;
    done.status.success().then(|| commit.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(folder: &Path, arguments: &[&str]) {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
        let done = std::process::Command::new("git").arg("-C").arg(folder).args(identity).args(arguments).output();
        assert!(done.unwrap().status.success(), "{arguments:?}");
    }

    #[tokio::test]
    async fn a_job_names_its_script_and_the_commit_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        std::fs::write(path.join("train.py"), "print(1)").unwrap();
        let script: ScriptPath = "train.py".parse().unwrap();
        let about = of_folder(path, &script).await;
        assert_eq!(about, About { source: Some(format!("{}/train.py", path.display())), commit: None });
        git(path, &["init", "--quiet"]);
        git(path, &["add", "train.py"]);
        git(path, &["commit", "--quiet", "--message", "one"]);
        let commit = of_folder(path, &script).await.commit.unwrap();
        assert!(commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{commit}");
        std::fs::write(path.join("train.py"), "print(2)").unwrap();
        assert_eq!(of_folder(path, &script).await.commit, Some(format!("{commit}-dirty")));
    }
}
