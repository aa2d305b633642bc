//! Traces: what a rank did when, as a file.
use std::fs;
use std::path::PathBuf;

use lasp::{Plan, Status};

use crate::helpers::{context, refused, small_problem};

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("lasp-rust-{}-{}.json", std::process::id(), name))
}

#[test]
fn calls_are_recorded() {
    let (context, path) = (context(), file("calls"));
    context.start_trace(0).unwrap();
    drop(Plan::new(&context, &small_problem()).unwrap());
    context.stop_trace().unwrap();
    context.write_trace(&path).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(text.contains("\"name\":\"lasp_plan_create\""), "{}", text);
    assert!(text.contains("\"name\":\"lasp_plan_destroy\""), "{}", text);
}

#[test]
fn wrong_uses() {
    let context = context();
    refused(context.stop_trace(), Status::INVALID_ARGUMENT, "not traced");
    refused(context.write_trace(file("none")), Status::INVALID_ARGUMENT, "nothing was recorded");
    refused(context.start_trace(u64::MAX), Status::INVALID_ARGUMENT, "options.max_records");
    context.start_trace(16).unwrap();
    refused(context.start_trace(16), Status::IN_USE, "traced already");
    refused(context.write_trace("no/such/folder/t.json"), Status::INVALID_ARGUMENT, "No such file");
    refused(context.write_trace("a\0b"), Status::INVALID_ARGUMENT, "zero byte");
}
