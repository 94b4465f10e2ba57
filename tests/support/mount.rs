//! File systems of a test's own, for full and failing disks. They take the right to mount.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// A mounted file system, unmounted and gone with this.
pub struct Mount {
    directory: TempDir,
    /// The file that an ext4 lies in.
    image: Option<PathBuf>,
}

impl Mount {
    /// A file system in memory of so many bytes. `None`, said loudly, where this process may not mount.
    pub fn tmpfs(bytes: u64) -> Option<Self> {
        Self::in_memory("tmpfs", &format!("size={bytes}"))
    }

    /// A file system in memory that refuses O_DIRECT, which tmpfs no longer does. `None`, said loudly, where this
    /// process may not mount.
    pub fn ramfs() -> Option<Self> {
        Self::in_memory("ramfs", "mode=700")
    }

    fn in_memory(kind: &str, options: &str) -> Option<Self> {
        let mount = Self {
            directory: temporary_directory(),
            image: None,
        };
        run(Command::new("mount")
            .args(["-t", kind, "-o", options, kind])
            .arg(mount.path()))?;
        Some(mount)
    }

    /// An ext4 in a file of so many bytes, through a loop device. `None`, said loudly, where this process may not
    /// mount.
    pub fn ext4(bytes: u64) -> Option<Self> {
        let directory = temporary_directory();
        let image = directory.path().join("image");
        let file = std::fs::File::create(&image).expect("an image file");
        file.set_len(bytes).expect("its length");
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        let mount = Self {
            directory,
            image: Some(image.clone()),
        };
        std::fs::create_dir(mount.path()).expect("a directory to mount on");
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(mount.path()))?;
        Some(mount)
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        match self.image {
            Some(_) => self.directory.path().join("mounted"),
            None => self.directory.path().to_path_buf(),
        }
    }

    /// Takes the medium away from `bytes` on: reads there fail with EIO from now on.
    pub fn cut_medium(&self, bytes: u64) {
        let image = self.image.as_ref().expect("a file system in a file");
        let file = std::fs::File::options()
            .write(true)
            .open(image)
            .expect("the image file");
        file.set_len(bytes).expect("its length");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}

fn temporary_directory() -> TempDir {
    let prefix = tempfile::Builder::new().prefix("ringd-mount-").tempdir();
    prefix.expect("a temporary directory")
}

/// `None` when the command fails, as it does where mounting is not permitted.
fn run(command: &mut Command) -> Option<()> {
    let problem = match command.output() {
        Ok(output) if output.status.success() => return Some(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    eprintln!("SKIPPED, this test shows nothing here: {command:?}: {}", problem.trim());
    None
}
