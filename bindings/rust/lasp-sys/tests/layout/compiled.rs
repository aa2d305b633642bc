//! What the C compiler makes of lasp.h: the words of the program lasp-layout (bindings/layout).
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

#[derive(Debug, Default)]
pub struct Header {
    pub constants: BTreeMap<String, (String, String)>, // value, group
    pub handles: Vec<String>,
    pub aliases: BTreeMap<String, (String, usize)>, // C type, size
    pub structs: BTreeMap<String, Struct>,
    pub functions: BTreeMap<String, (Vec<(String, String)>, String)>, // parameters (name, C type), result
}

#[derive(Debug, Default)]
pub struct Struct {
    pub size: usize,
    pub align: usize,
    pub init: Option<Vec<u8>>,
    pub fields: Vec<(String, String, usize, usize)>, // name, C type, offset, size
}

/// The program's lines of tab-separated words: `LASP_LAYOUT` names it; without it it is compiled here.
pub fn words() -> String {
    static WORDS: Mutex<Option<String>> = Mutex::new(None);
    let mut words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    words.get_or_insert_with(|| run(env::var_os("LASP_LAYOUT").map_or_else(compile, PathBuf::from))).clone()
}

fn run(program: PathBuf) -> String {
    let output = Command::new(&program).arg("--tsv").output();
    let output = output.unwrap_or_else(|e| panic!("{}: {}", program.display(), e));
    assert!(output.status.success(), "{}: {:?}", program.display(), output);
    String::from_utf8(output.stdout).expect("text")
}

fn compile() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(folder).unwrap();
    let program = folder.join("lasp-layout");
    let mut cc = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.arg("-I").arg(root.join("capi/include")).arg(root.join("bindings/layout/lasp_layout.c"));
    let status = cc.arg("-o").arg(&program).status().expect("a C compiler");
    assert!(status.success(), "lasp_layout.c does not compile");
    program
}

pub fn read(words: &str) -> Header {
    let mut header = Header::default();
    for line in words.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        let text = |i: usize| words[i].to_string();
        let size = |i: usize| words[i].parse::<usize>().expect("a size");
        match words[0] {
            "constant" => drop(header.constants.insert(text(1), (text(2), text(3)))),
            "handle" => header.handles.push(text(1)),
            "alias" => drop(header.aliases.insert(text(1), (text(2), size(3)))),
            "struct" => {
                let bytes = |hex: &str| -> Vec<u8> {
                    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
                };
                let init = if words[4] == "-" { None } else { Some(bytes(words[4])) };
                header.structs.insert(text(1), Struct { size: size(2), align: size(3), init, fields: vec![] });
            }
            "field" => {
                let of = header.structs.get_mut(words[1]).expect("a field's struct");
                of.fields.push((text(2), text(3), size(4), size(5)));
            }
            "function" => drop(header.functions.insert(text(1), (vec![], text(2)))),
            "parameter" => header.functions.get_mut(words[1]).expect("its function").0.push((text(2), text(3))),
            other => panic!("unknown word {:?}", other),
        }
    }
    header
}

/// A C type as the bindings spell it (see text::plain).
pub fn rust_type(c: &str) -> String {
    let c = c.trim();
    if let Some((result, parameters)) = c.split_once("(*)(") {
        let parameters = parameters.strip_suffix(')').expect("a parameter list");
        let parameters: Vec<String> = match parameters {
            "void" => vec![],
            list => list.split(',').map(rust_type).collect(),
        };
        let result = match result.trim() {
            "void" => String::new(),
            other => rust_type(other),
        };
        return format!("fn({}){}", parameters.join(","), result);
    }
    if let Some(pointee) = c.strip_suffix('*') {
        let pointee = pointee.trim();
        return match pointee.strip_prefix("const ") {
            Some(constant) if !constant.ends_with('*') => format!("*const {}", rust_type(constant)),
            _ => format!("*mut {}", rust_type(pointee)),
        };
    }
    if let Some((element, count)) = c.strip_suffix(']').and_then(|c| c.split_once('[')) {
        return format!("[{};{}]", rust_type(element), count);
    }
    let c = c.strip_prefix("struct ").unwrap_or(c);
    let known = [
        ("int32_t", "i32"),
        ("int64_t", "i64"),
        ("uint64_t", "u64"),
        ("size_t", "usize"),
        ("float", "f32"),
        ("double", "f64"),
        ("char", "c_char"),
        ("void", "c_void"),
    ];
    known.iter().find(|(name, _)| *name == c).map_or(c, |(_, rust)| rust).to_string()
}
