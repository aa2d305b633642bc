//! The bindings against the compiled header: every struct, field, constant, alias and function, in both directions.
mod compiled;
mod measured;
mod text;

use compiled::{rust_type, Header};
use text::Declarations;

/// Everything in which the two differ, in words.
fn differences(header: &Header, bindings: &Declarations, structs: &[measured::Struct]) -> Vec<String> {
    let mut wrong = constants(header, bindings);
    wrong.extend(functions(header, bindings));
    for (name, of) in &header.structs {
        match (structs.iter().find(|s| s.name == name), bindings.structs.get(name)) {
            (Some(measured), Some(declared)) => wrong.extend(one_struct(of, measured, declared)),
            _ => wrong.push(format!("{}: missing in the bindings or in this test's list", name)),
        }
    }
    let known = |name: &String| {
        header.structs.contains_key(name)
            || header.handles.contains(name)
            || ["CUstream_st", "ncclComm"].contains(&&name[..])
    };
    wrong.extend(
        bindings.structs.keys().filter(|name| !known(name)).map(|name| format!("{}: not in the header", name)),
    );
    wrong.extend(
        header
            .handles
            .iter()
            .filter(|name| !bindings.structs.contains_key(*name))
            .map(|name| format!("{}: missing", name)),
    );
    for (name, (kind, _)) in &header.aliases {
        if bindings.aliases.get(name) != Some(&rust_type(kind)) {
            wrong.push(format!("{}: {:?}, in C {}", name, bindings.aliases.get(name), kind));
        }
    }
    wrong
}

fn constants(header: &Header, bindings: &Declarations) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, (value, group)) in &header.constants {
        let kind = if group == "macro" { "i32" } else { group };
        let expected = (kind.to_string(), value.clone());
        if bindings.constants.get(name) != Some(&expected) {
            wrong.push(format!("{}: {:?}, in C {:?}", name, bindings.constants.get(name), expected));
        }
        // An enumeration's values travel as int32_t.
        if group != "macro" && bindings.aliases.get(group).map(|kind| &kind[..]) != Some("i32") {
            wrong.push(format!("{}: {:?}, must be i32", group, bindings.aliases.get(group)));
        }
    }
    let unknown = bindings.constants.keys().filter(|name| !header.constants.contains_key(*name));
    wrong.extend(unknown.map(|name| format!("{}: not in the header", name)));
    wrong
}

fn functions(header: &Header, bindings: &Declarations) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, (parameters, result)) in &header.functions {
        let parameters: Vec<_> = parameters.iter().map(|(name, kind)| (name.clone(), rust_type(kind))).collect();
        let expected = (parameters, rust_type(result));
        if bindings.functions.get(name) != Some(&expected) {
            wrong.push(format!("{}: {:?}, in C {:?}", name, bindings.functions.get(name), expected));
        }
    }
    let unknown = bindings.functions.keys().filter(|name| !header.functions.contains_key(*name));
    wrong.extend(unknown.map(|name| format!("{}: not in the header", name)));
    wrong
}

fn one_struct(c: &compiled::Struct, measured: &measured::Struct, declared: &[text::Typed]) -> Vec<String> {
    let mut wrong = Vec::new();
    if (measured.size, measured.align) != (c.size, c.align) {
        wrong.push(format!(
            "{}: size {} and alignment {}, in C {} and {}",
            measured.name, measured.size, measured.align, c.size, c.align
        ));
    }
    let names: Vec<_> = c.fields.iter().map(|(name, kind, _, _)| (name.clone(), rust_type(kind))).collect();
    if names != declared {
        wrong.push(format!("{}: fields {:?}, in C {:?}", measured.name, declared, names));
    }
    let places: Vec<_> = c.fields.iter().map(|(name, _, offset, size)| (&name[..], *offset, *size)).collect();
    if places != measured.fields {
        wrong.push(format!("{}: places {:?}, in C {:?}", measured.name, measured.fields, places));
    }
    if let Some(init) = &c.init {
        if measured.init.as_ref() != Some(init) {
            wrong.push(format!("{}: INIT is {:?}, in C {:?}", measured.name, measured.init, init));
        }
    }
    wrong
}

#[test]
fn the_bindings_are_the_headers() {
    let header = compiled::read(&compiled::words());
    assert!(header.structs.len() >= 15 && header.functions.len() >= 30, "lasp-layout says little: {:?}", header);
    let wrong = differences(&header, &text::read(text::BINDINGS), &measured::structs());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// One thing changed on the header's side, and one on the bindings': each must be seen, and named.
#[test]
fn a_wrong_layout_is_seen() {
    let words = compiled::words();
    for (from, to, name) in [
        ("field\tlasp_layout\ttoken\tint64_t\t16\t8", "field\tlasp_layout\ttoken\tint64_t\t24\t8", "lasp_layout"),
        ("field\tlasp_groups\tdata_rank\tint32_t", "field\tlasp_groups\tdata_rank\tint64_t", "lasp_groups"),
        ("struct\tlasp_traffic\t48", "struct\tlasp_traffic\t56", "lasp_traffic"),
        ("constant\tLASP_CACHE_CHUNKS\t1", "constant\tLASP_CACHE_CHUNKS\t2", "LASP_CACHE_CHUNKS"),
        ("constant\tLASP_CACHE_CHUNKS", "constant\tLASP_CACHE_PIECES", "LASP_CACHE_PIECES"),
        (
            "parameter\tlasp_step\targs\tconst lasp_step_args *",
            "parameter\tlasp_step\targs\tlasp_step_args *",
            "lasp_step",
        ),
        ("function\tlasp_version\tlasp_status", "function\tlasp_version\tint64_t", "lasp_version"),
        ("function\tlasp_version", "function\tlasp_new\tvoid\nfunction\tlasp_version", "lasp_new"),
        ("alias\tlasp_status\tint32_t", "alias\tlasp_status\tint64_t", "lasp_status"),
        ("handle\tlasp_plan", "handle\tlasp_map", "lasp_map"),
        ("c00200000000000001", "c00200000000000002", "lasp_problem: INIT"), // size, then batch
    ] {
        assert!(words.contains(from), "nothing to change: {:?}", from);
        let header = compiled::read(&words.replacen(from, to, 1));
        let wrong = differences(&header, &text::read(text::BINDINGS), &measured::structs());
        assert!(wrong.iter().any(|w| w.starts_with(name)), "{:?} for {:?} was not seen: {:?}", to, from, wrong);
    }
    let header = compiled::read(&words);
    for (from, to, name) in [
        ("pub heads_q: i32,", "pub heads_q: u32,", "lasp_problem"),
        ("pub const LASP_ABI: i32", "pub const LASP_ABI: u32", "LASP_ABI"),
        ("pub type lasp_dtype_values = i32;", "pub type lasp_dtype_values = u32;", "lasp_dtype_values"),
    ] {
        assert!(text::BINDINGS.contains(from), "nothing to change: {:?}", from);
        let wrong = differences(&header, &text::read(&text::BINDINGS.replacen(from, to, 1)), &measured::structs());
        assert!(wrong.iter().any(|w| w.starts_with(name)), "{:?} was not seen: {:?}", to, wrong);
    }
}

/// The header states the version; Cargo wants it written once more, so this holds them together.
#[test]
fn the_crates_have_the_headers_version() {
    let header = compiled::read(&compiled::words());
    let part = |name: &str| header.constants[name].0.clone();
    let version = [part("LASP_VERSION_MAJOR"), part("LASP_VERSION_MINOR"), part("LASP_VERSION_PATCH")].join(".");
    assert_eq!(env!("CARGO_PKG_VERSION"), version);
    let safe = include_str!("../../../lasp/Cargo.toml");
    assert!(safe.contains(&format!("\nversion = \"{}\" ", version)), "lasp's version is not {}", version);
    assert!(
        safe.contains(&format!("version = \"={}\" }}", version)),
        "lasp wants another lasp-sys than {}",
        version
    );
}
