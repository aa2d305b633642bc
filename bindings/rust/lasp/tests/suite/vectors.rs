//! The project's test vectors: folders of case.json and .npy files.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use lasp::Decay;

use crate::{json, npy};

/// One problem with its global tensors, contiguous, and the results to expect of it. An absent tensor is not in the
/// map.
pub struct Vector {
    pub name: String,
    pub batch: usize,
    pub tokens: usize,
    pub heads_q: usize,
    pub heads_k: usize,
    pub heads_v: usize,
    pub dim_k: usize,
    pub dim_v: usize,
    pub decay: Decay,
    pub delta: bool,
    pub exact: bool,
    pub scale: f32,
    pub cu_seqlens: Vec<i64>,
    pub tensors: BTreeMap<String, Vec<f32>>,
}

impl Vector {
    fn read(folder: &Path) -> Vector {
        let case = json::parse_object(&fs::read_to_string(folder.join("case.json")).expect("case.json"));
        let names = case["tensors"].array().iter().map(|name| name.text().to_string());
        Vector {
            name: folder.file_name().unwrap().to_string_lossy().into_owned(),
            batch: case["B"].size(),
            tokens: case["T"].size(),
            heads_q: case["Hq"].size(),
            heads_k: case["Hk"].size(),
            heads_v: case["Hv"].size(),
            dim_k: case["K"].size(),
            dim_v: case["V"].size(),
            decay: match case["decay"].text() {
                "none" => Decay::None,
                "head" => Decay::Head,
                "scalar" => Decay::Scalar,
                "channel" => Decay::Channel,
                other => panic!("unknown decay {}", other),
            },
            delta: case["delta"].bool(),
            exact: case["exact"].bool(),
            scale: case["scale"].number() as f32,
            cu_seqlens: case["cu_seqlens"].array().iter().map(|n| n.number() as i64).collect(),
            tensors: names.map(|name| (name.clone(), npy::read(&folder.join(name + ".npy")))).collect(),
        }
    }

    pub fn named(name: &str) -> Vector {
        Vector::read(&folder().join(name))
    }

    pub fn heads(&self) -> usize {
        self.heads_q.max(self.heads_k).max(self.heads_v)
    }

    pub fn get(&self, name: &str) -> Option<&[f32]> {
        self.tensors.get(name).map(|values| &values[..])
    }

    /// Sequences: the packed ones, else one for each batch row.
    pub fn sequences(&self) -> usize {
        self.cu_seqlens.len().checked_sub(1).unwrap_or(self.batch)
    }
}

/// `LASP_TEST_VECTORS` in the environment, else the repository's.
fn folder() -> PathBuf {
    let repository = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/vectors");
    env::var_os("LASP_TEST_VECTORS").map(PathBuf::from).unwrap_or_else(repository)
}

pub fn all() -> Vec<Vector> {
    let entries = fs::read_dir(folder()).expect("the vectors' folder");
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).filter(|p| p.is_dir()).collect();
    folders.sort();
    assert!(!folders.is_empty(), "no vectors in {}", folder().display());
    folders.iter().map(|folder| Vector::read(folder)).collect()
}
