//! For the feature `load`: the bindings as functions that look liblasp up when they are first called, made out of those
//! that bindgen made, which the linker would look up.

/// One function of an `extern "C"` block: all on one line, without its comment.
struct Function {
    name: String,
    parameters: Vec<(String, String)>,
    result: String,
}

/// The same text with each declaration in an `extern "C"` block replaced by a function of the same signature.
pub fn loaded(bindings: &str) -> String {
    let mut text = String::new();
    let mut declaration: Option<String> = None;
    let mut inside = false;
    for line in bindings.lines() {
        match (inside, line) {
            (false, "extern \"C\" {") => inside = true,
            (true, "}") => inside = false,
            (false, _) => text += &format!("{}\n", line),
            (true, _) if line.trim_start().starts_with("#[") => text += &format!("{}\n", line.trim_start()),
            (true, _) => {
                let declared = declaration.get_or_insert_with(String::new);
                if !declared.is_empty() {
                    *declared += " ";
                }
                *declared += line.trim();
                if declared.ends_with(';') {
                    text += &wrapper(&parse(declared));
                    declaration = None;
                }
            }
        }
    }
    text
}

fn parse(declared: &str) -> Function {
    let unknown =
        || -> ! { panic!("lasp-sys: bindgen declares a function in a way that is not known: {}", declared) };
    let open = declared.find('(').unwrap_or_else(|| unknown());
    let close = declared.rfind(") -> ").unwrap_or_else(|| unknown());
    let name = declared[..open].strip_prefix("pub fn ").unwrap_or_else(|| unknown());
    let words = declared[open + 1..close].split(',').map(str::trim).filter(|word| !word.is_empty());
    let split = |word: &str| word.split_once(": ").map(|(name, of)| (name.to_string(), of.to_string()));
    Function {
        name: name.to_string(),
        parameters: words.map(|word| split(word).unwrap_or_else(|| unknown())).collect(),
        result: declared[close + 5..declared.len() - 1].to_string(),
    }
}

/// What a call returns where liblasp was not found. Only statuses and two functions about them are returned.
fn without_library(function: &Function) -> String {
    match (function.name.as_str(), function.result.as_str()) {
        ("lasp_last_error", _) => "crate::load::sentence()".to_string(),
        ("lasp_status_name", _) => "crate::load::status_name(status)".to_string(),
        (name, "lasp_status") => format!("crate::load::absent(\"{}\")", name),
        (name, result) => {
            panic!("lasp-sys: {} returns {}, for which there is no value without liblasp", name, result)
        }
    }
}

fn wrapper(function: &Function) -> String {
    let join = |part: &dyn Fn(&(String, String)) -> String| -> String {
        function.parameters.iter().map(part).collect::<Vec<_>>().join(", ")
    };
    format!(
        "pub unsafe extern \"C\" fn {name}({declared}) -> {result} {{
    static FOUND: crate::load::Function = crate::load::Function::new();
    match FOUND.find(\"{name}\\0\") {{
        Some(found) => std::mem::transmute::<_, unsafe extern \"C\" fn({types}) -> {result}>(found)({names}),
        None => {absent},
    }}
}}
",
        name = function.name,
        declared = join(&|(name, of)| format!("{}: {}", name, of)),
        types = join(&|(_, of)| of.clone()),
        names = join(&|(name, _)| name.clone()),
        result = function.result,
        absent = without_library(function),
    )
}
