//! The bindings in the tree are what bindgen makes of today's lasp.h: `cargo test -p lasp-sys --features generate`.
#![cfg(feature = "generate")]

const IN_THE_TREE: &str = include_str!("../src/bindings.rs");
const GENERATED: &str = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// Text without its layout, which is rustfmt's and differs from one rustfmt to the next.
fn squeezed(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    text.replace(",)", ")").replace(",}", "}").replace(",>", ">")
}

#[test]
fn the_bindings_in_the_tree_are_up_to_date() {
    let first = |text: &'static str| text.lines().next().unwrap_or("");
    if first(IN_THE_TREE) != first(GENERATED) {
        // Another bindgen writes the same in other words; the layout test, which runs on what it made, judges that.
        println!("made by another bindgen: {} in the tree, {} here", first(IN_THE_TREE), first(GENERATED));
        return;
    }
    let (old, new) = (squeezed(IN_THE_TREE), squeezed(GENERATED));
    let at = old.bytes().zip(new.bytes()).take_while(|(a, b)| a == b).count();
    let near = |text: &str| text.chars().skip(at.saturating_sub(60)).take(120).collect::<String>();
    assert!(
        old == new,
        "in the tree: ...{}...\ngenerated:   ...{}...\n`./check regenerate`",
        near(&old),
        near(&new)
    );
}
