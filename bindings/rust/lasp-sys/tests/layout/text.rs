//! The bindings' own text, read as far as declarations go: names, types and values.
use std::collections::BTreeMap;

#[cfg(not(feature = "generate"))]
pub const BINDINGS: &str = include_str!("../../src/bindings.rs");
#[cfg(feature = "generate")]
pub const BINDINGS: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// A name and its type, as Rust text without spaces.
pub type Typed = (String, String);

#[derive(Debug, Default)]
pub struct Declarations {
    pub constants: BTreeMap<String, (String, String)>, // type, value
    pub aliases: BTreeMap<String, String>,
    pub structs: BTreeMap<String, Vec<Typed>>,
    pub functions: BTreeMap<String, (Vec<Typed>, String)>, // parameters, result
}

/// Splits at commas that are in no bracket.
fn split(list: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut items) = (0, 0, Vec::new());
    let mut previous = ' ';
    for (i, c) in list.char_indices() {
        match c {
            '(' | '<' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '>' if previous != '-' => depth -= 1,
            ',' if depth == 0 => {
                items.push(list[begin..i].trim());
                begin = i + 1;
            }
            _ => {}
        }
        previous = c;
    }
    items.push(list[begin..].trim());
    items.into_iter().filter(|item| !item.is_empty()).collect()
}

/// `name: type`; a name may be missing.
fn typed(item: &str) -> Typed {
    let item = item.strip_prefix("pub ").unwrap_or(item);
    match item.find(": ") {
        Some(colon) if item[..colon].chars().all(|c| c.is_alphanumeric() || c == '_') => {
            (item[..colon].to_string(), plain(&item[colon + 2..]))
        }
        _ => (String::new(), plain(item)),
    }
}

/// Parameters and result of `(...) -> ...`.
fn signature(text: &str) -> (Vec<Typed>, String) {
    let close = text.rfind(") -> ").or_else(|| text.rfind(')')).expect("a parameter list");
    let result = text[close + 1..].trim().strip_prefix("-> ").unwrap_or("");
    (split(&text[1..close]).into_iter().map(typed).collect(), plain(result))
}

/// A type in one spelling: no spaces, short paths, no names of a function pointer's parameters.
fn plain(text: &str) -> String {
    let text = text.trim();
    let option = text.strip_prefix("::std::option::Option<").map(str::trim_start);
    if let Some(rest) = option.and_then(|rest| rest.strip_prefix("unsafe extern \"C\" fn")) {
        let rest = rest.trim_end_matches(&['>', ',', ' '][..]);
        let (parameters, result) = signature(rest);
        let parameters: Vec<String> = parameters.into_iter().map(|(_, kind)| kind).collect();
        return format!("fn({}){}", parameters.join(","), result);
    }
    let text = text.replace("::std::os::raw::", "").replace("usize]", "]");
    text.replace("*mut ", "*mut:").replace("*const ", "*const:").replace(' ', "").replace(':', " ")
}

pub fn read(bindings: &str) -> Declarations {
    let code: Vec<&str> = bindings.lines().map(str::trim).filter(|line| !line.starts_with("#[")).collect();
    let code = code.join(" ");
    let mut all = Declarations::default();
    for item in code.split("pub const ").skip(1) {
        let (name, rest) = item.split_once(": ").expect("a constant's type");
        let (kind, rest) = rest.split_once(" = ").expect("a constant's value");
        let value = rest.split(';').next().unwrap();
        all.constants.insert(name.to_string(), (kind.to_string(), value.to_string()));
    }
    for item in code.split("pub type ").skip(1) {
        let (name, rest) = item.split_once(" = ").expect("an alias's type");
        all.aliases.insert(name.to_string(), plain(rest.split(';').next().unwrap()));
    }
    for item in code.split("pub struct ").skip(1) {
        let (name, rest) = item.split_once(" {").expect("a struct's fields");
        let fields = split(rest.split('}').next().unwrap());
        all.structs.insert(name.to_string(), fields.into_iter().map(typed).collect());
    }
    for item in code.split("pub fn ").skip(1) {
        let item = item.split(';').next().unwrap();
        let (name, _) = item.split_once('(').expect("a function's parameters");
        all.functions.insert(name.to_string(), signature(&item[name.len()..]));
    }
    all
}
