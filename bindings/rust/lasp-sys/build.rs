//! Finds liblasp and, with the feature `generate`, makes the bindings from its header.
//!
//! `LASP_LIB_DIR` names the folder of liblasp.so; without it pkg-config is asked for a version that fits. A C
//! program would do the same, so no crate is needed for it. Inside the repository .cargo/config.toml names the folder of
//! its own build, which is taken where neither LASP_LIB_DIR nor PKG_CONFIG_PATH say otherwise.
use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{exit, Command};

mod loaded;

/// What bindgen is asked for: constants of plain integers (a Rust enum must never hold a value it does not name,
/// and a newer library may well give one), nothing but the header's own names, and its comments as documentation.
const BINDGEN_FLAGS: &[&str] = &[
    "--allowlist-function=lasp_.*",
    "--allowlist-type=lasp_.*",
    "--allowlist-var=LASP_.*",
    "--default-enum-style=consts",
    "--no-prepend-enum-name",
    "--translate-enum-integer-types",
    "--default-macro-constant-type=signed",
    "--no-layout-tests",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for name in [
        "LASP_LIB_DIR",
        "LASP_BUILT_LIB_DIR",
        "LASP_INCLUDE_DIR",
        "PKG_CONFIG",
        "PKG_CONFIG_PATH",
        "BINDGEN",
        "DOCS_RS",
    ] {
        println!("cargo:rerun-if-env-changed={}", name);
    }
    if env::var_os("CARGO_FEATURE_GENERATE").is_some() {
        generate(&header());
    }
    if env::var_os("CARGO_FEATURE_LOAD").is_some() {
        make_loaded();
    } else if env::var_os("DOCS_RS").is_none() {
        link();
    }
}

/// The feature `load`: nothing is linked; the functions look for the library when they are called.
fn make_loaded() {
    println!("cargo:rerun-if-changed=loaded.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let from = match env::var_os("CARGO_FEATURE_GENERATE") {
        Some(_) => out.join("bindings.rs"),
        None => Path::new(&env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("src/bindings.rs"),
    };
    println!("cargo:rerun-if-changed={}", from.display());
    let read = fs::read_to_string(&from).unwrap_or_else(|e| fail(&format!("{}: {}", from.display(), e)));
    let to = out.join("loaded.rs");
    fs::write(&to, loaded::loaded(&read)).unwrap_or_else(|e| fail(&format!("{}: {}", to.display(), e)));
}

fn fail(sentence: &str) -> ! {
    eprintln!("lasp-sys: {}", sentence);
    exit(1)
}

fn link() {
    println!("cargo:rustc-link-lib=dylib=lasp");
    let folder = match env::var("LASP_LIB_DIR") {
        Ok(folder) => {
            if !Path::new(&folder).join("liblasp.so").exists() {
                fail(&format!("LASP_LIB_DIR = {}: there is no liblasp.so in it", folder));
            }
            folder
        }
        Err(_) => built_folder().unwrap_or_else(pkg_config_folder),
    };
    println!("cargo:rustc-link-search=native={}", folder);
    show_to_cargo(Path::new(&folder));
    // A crate that depends on this one directly reads it as DEP_LASP_LIB_DIR.
    println!("cargo:lib_dir={}", folder);
}

/// `cargo run` and `cargo test` let programs look for libraries in the build's own folders only. A link there
/// spares their user LD_LIBRARY_PATH for a library that is not installed.
fn show_to_cargo(folder: &Path) {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for library in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("liblasp.so")) {
        let link = out.join(library.file_name());
        let _ = fs::remove_file(&link);
        let target = library.path().canonicalize().unwrap_or_else(|_| library.path());
        symlink(&target, &link).unwrap_or_else(|e| fail(&format!("{}: {}", link.display(), e)));
    }
    println!("cargo:rustc-link-search=native={}", out.display());
}

/// That of the repository's own build, where it was made and no other library is asked for.
fn built_folder() -> Option<String> {
    let folder = env::var("LASP_BUILT_LIB_DIR").ok()?;
    let is_wanted = env::var_os("PKG_CONFIG_PATH").is_none() && Path::new(&folder).join("liblasp.so").exists();
    is_wanted.then_some(folder)
}

/// From this crate's version up to the next that may break: the minor number while the major is 0.
fn version_range() -> [String; 2] {
    let part = |name: &str| -> u32 { env::var(name).unwrap().parse().unwrap() };
    let (major, minor) = (part("CARGO_PKG_VERSION_MAJOR"), part("CARGO_PKG_VERSION_MINOR"));
    let next = if major == 0 { format!("0.{}", minor + 1) } else { (major + 1).to_string() };
    [format!("lasp >= {}", env::var("CARGO_PKG_VERSION").unwrap()), format!("lasp < {}", next)]
}

fn pkg_config(arguments: &[&str]) -> Result<String, String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_string());
    let output = Command::new(&program).args(arguments).output().map_err(|e| format!("{}: {}", program, e))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_string()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
    }
}

fn pkg_config_folder() -> String {
    let range = version_range();
    if let Err(why) = pkg_config(&["--exists", "--print-errors", &range[0], &range[1]]) {
        fail(&format!(
            "liblasp was not found ({}, {}). Install it, point PKG_CONFIG_PATH at its pkgconfig folder, or set \
             LASP_LIB_DIR to the folder of liblasp.so. pkg-config says: {}",
            range[0], range[1], why
        ));
    }
    pkg_config(&["--variable=libdir", "lasp"]).unwrap_or_else(|why| fail(&why))
}

/// lasp.h: in `LASP_INCLUDE_DIR`, in the repository that this crate lies in, or where it is installed.
fn header() -> PathBuf {
    let mut folders = Vec::new();
    match env::var_os("LASP_INCLUDE_DIR") {
        Some(folder) => folders.push(PathBuf::from(folder)),
        None => {
            folders.push(Path::new(&env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../../../capi/include"));
            folders.extend(pkg_config(&["--variable=includedir", "lasp"]).map(PathBuf::from));
        }
    }
    let mut headers = folders.iter().map(|folder| folder.join("lasp/lasp.h"));
    match headers.find(|header| header.exists()) {
        Some(header) => header,
        None => fail("lasp/lasp.h was not found; set LASP_INCLUDE_DIR to the folder that holds lasp/"),
    }
}

fn generate(header: &Path) {
    println!("cargo:rerun-if-changed={}", header.display());
    let program = env::var("BINDGEN").unwrap_or_else(|_| "bindgen".to_string());
    let mut command = Command::new(&program);
    command.arg(header).args(BINDGEN_FLAGS);
    if is_before_0_61(&program) {
        command.args(["--size_t-is-usize", "--rust-target=1.47"]); // later ones do so unasked
    }
    command.args(["--", "-fparse-all-comments"]);
    let output = match command.output() {
        Ok(output) if output.status.success() => output,
        Ok(output) => fail(&format!("{}: {}", program, String::from_utf8_lossy(&output.stderr))),
        Err(e) => fail(&format!("{}: {}; install bindgen, or name it in BINDGEN", program, e)),
    };
    let text = String::from_utf8(output.stdout).unwrap_or_else(|e| fail(&e.to_string()));
    if text.lines().count() < 100 {
        fail(&format!("{} wrote all in a line or two: it needs rustfmt to lay its output out", program));
    }
    let to = Path::new(&env::var_os("OUT_DIR").unwrap()).join("bindings.rs");
    fs::write(&to, finish(&text)).unwrap_or_else(|e| fail(&format!("{}: {}", to.display(), e)));
}

fn is_before_0_61(program: &str) -> bool {
    let output = match Command::new(program).arg("--version").output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(_) => return false,
    };
    let version = output.split_whitespace().last().unwrap_or("");
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    parts.next() == Some(0) && parts.next().unwrap_or(0) < 61
}

/// The values of an enumeration travel as int32_t, whatever the C compiler would choose for the enumeration itself;
/// and the C library's own names for its integers are not ours to give out.
fn finish(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("pub type __"));
    lines.map(|line| line.replace("_values = u32;", "_values = i32;") + "\n").collect()
}
