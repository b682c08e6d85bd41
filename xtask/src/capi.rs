//! Builds and installs the libraries for C and C++.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

/// Headers that are installed.
const HEADERS: [&str; 7] = [
    "isobath.h",
    "isobath_omp.h",
    "kvs_api.h",
    "kvs_const.h",
    "kvs_files.h",
    "kvs_result.h",
    "kvs_struct.h",
];

/// Actions on the libraries for C and C++.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Build them and install them with headers, a pkg-config file and CMake files
    Install(Install),
}

#[derive(Debug, Parser)]
struct Install {
    /// Directory that gets lib/ and include/
    #[arg(long, default_value = "/usr/local")]
    prefix: PathBuf,
    /// Where the files go if not there: below this directory, for packages
    #[arg(long)]
    destdir: Option<PathBuf>,
    /// Takes them from this directory, where cargo has built the workspace, and builds nothing
    #[arg(long, value_name = "DIR")]
    built: Option<PathBuf>,
    /// The command `isobath` too, into bin/
    #[arg(long)]
    command: bool,
}

/// Runs a verb; whether it succeeded.
pub(crate) fn run(args: &Args) -> bool {
    let Verb::Install(install) = &args.verb;
    match install.run() {
        Ok(to) => {
            println!("installed below {}", to.display());
            true
        }
        Err(error) => {
            eprintln!("error: {error}");
            false
        }
    }
}

impl Install {
    fn run(&self) -> io::Result<PathBuf> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let built = match &self.built {
            Some(built) => built.clone(),
            None => self.build(&root)?,
        };
        let prefix = std::path::absolute(&self.prefix)?;
        let to = match &self.destdir {
            None => prefix.clone(),
            Some(destdir) => destdir.join(prefix.strip_prefix("/").unwrap_or(&prefix)),
        };
        let (lib, include) = (to.join("lib"), to.join("include"));
        let (pkgconfig, cmake) = (lib.join("pkgconfig"), lib.join("cmake/isobath"));
        for directory in [&lib, &include, &pkgconfig, &cmake] {
            fs::create_dir_all(directory)?;
        }
        let source = root.join("crates/isobath-capi");
        for header in HEADERS {
            copy(&source.join("include").join(header), &include.join(header))?;
        }
        if self.command {
            fs::create_dir_all(to.join("bin"))?;
            copy(&built.join("isobath"), &to.join("bin/isobath"))?;
        }
        copy(&built.join("libisobath_c.a"), &lib.join("libisobath_c.a"))?;
        copy(
            &built.join("libisobath_c.so"),
            &lib.join("libisobath_c.so.0"),
        )?;
        let link = lib.join("libisobath_c.so");
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => std::os::unix::fs::symlink("libisobath_c.so.0", &link)?,
        }
        let prefix = prefix.display().to_string();
        for (template, file) in [
            ("isobath.pc.in", pkgconfig.join("isobath.pc")),
            ("isobath_omp.pc.in", pkgconfig.join("isobath_omp.pc")),
            (
                "isobath-config.cmake.in",
                cmake.join("isobath-config.cmake"),
            ),
            (
                "isobath-config-version.cmake.in",
                cmake.join("isobath-config-version.cmake"),
            ),
        ] {
            let text = fs::read_to_string(source.join("install").join(template))?;
            let text = text
                .replace("@prefix@", &prefix)
                .replace("@version@", env!("CARGO_PKG_VERSION"));
            fs::write(file, text)?;
        }
        Ok(to)
    }

    /// Builds the libraries; the directory that they are in.
    fn build(&self, root: &Path) -> io::Result<PathBuf> {
        // The one that runs this, or that of the path: it chooses one toolchain. The compiler's own
        // leaves that to the folder of each dependency.
        let mut cargo = crate::cargo();
        cargo
            .current_dir(root)
            .args(["build", "--release", "-p", "isobath-capi"]);
        match self.command {
            true => cargo.args(["-p", "isobath-cli"]),
            false => cargo.arg("--lib"),
        };
        if !crate::succeeds(&mut cargo) {
            return Err(io::Error::other("the libraries could not be built"));
        }
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        Ok(target.join("release"))
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    // A library that programs have loaded must not be written over.
    match fs::remove_file(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::copy(from, to)
        .map(|_| ())
        .map_err(|error| io::Error::other(format!("{}: {error}", from.display())))
}
