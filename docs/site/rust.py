"""The reference of the Rust crates, by cargo where it is there."""
import os
import shutil
import subprocess


def is_here():
    return shutil.which("cargo") is not None


def add(root, site):
    """Puts rustdoc's pages into the site; says what it did."""
    if not is_here():
        return " (without the Rust crate's pages: cargo is not here)"
    target = os.path.join(root, "build", "site-rust")
    # The feature `load` links nothing, so that liblasp need not be built.
    done = subprocess.run(["cargo", "doc", "--quiet", "--offline", "--no-deps", "--features", "load", "-p", "lasp",
                           "-p", "lasp-sys", "--target-dir", target], cwd=os.path.join(root, "bindings", "rust"), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"cargo doc failed:\n{done.stderr}")
    shutil.copytree(os.path.join(target, "doc"), os.path.join(site, "rust"), dirs_exist_ok=True)
    return ""
