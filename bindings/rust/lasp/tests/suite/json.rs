//! A strict reader for the flat objects in the vectors' case.json.
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    Array(Vec<Json>),
}

impl Json {
    pub fn number(&self) -> f64 {
        match self {
            Json::Number(x) => *x,
            other => panic!("{:?} is no number", other),
        }
    }
    pub fn size(&self) -> usize {
        self.number() as usize
    }
    pub fn bool(&self) -> bool {
        *self == Json::Bool(true)
    }
    pub fn text(&self) -> &str {
        match self {
            Json::Text(s) => s,
            other => panic!("{:?} is no string", other),
        }
    }
    pub fn array(&self) -> &[Json] {
        match self {
            Json::Array(items) => items,
            Json::Null => &[],
            other => panic!("{:?} is no array", other),
        }
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn peek(&mut self) -> char {
        self.rest = self.rest.trim_start();
        self.rest.chars().next().expect("the text ends early")
    }

    fn take(&mut self, literal: &str) -> bool {
        self.peek();
        let rest = self.rest.strip_prefix(literal);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, literal: &str) {
        assert!(self.take(literal), "expected {:?} before {:?}", literal, self.rest);
    }

    fn until(&mut self, end: impl Fn(char) -> bool) -> &'a str {
        let (taken, rest) = self.rest.split_at(self.rest.find(end).expect("the text ends early"));
        self.rest = rest;
        taken
    }

    fn text(&mut self) -> String {
        self.expect("\"");
        let text = self.until(|c| c == '"');
        assert!(!text.contains('\\'), "escapes are not for these files");
        self.expect("\"");
        text.to_string()
    }

    fn value(&mut self) -> Json {
        match self.peek() {
            '"' => Json::Text(self.text()),
            '[' => Json::Array(self.items("[", "]", Reader::value)),
            _ if self.take("null") => Json::Null,
            _ if self.take("true") => Json::Bool(true),
            _ if self.take("false") => Json::Bool(false),
            _ => Json::Number(self.until(|c| ",]} \n".contains(c)).parse().expect("a number")),
        }
    }

    fn items<T>(&mut self, open: &str, close: &str, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let mut items = Vec::new();
        self.expect(open);
        while !self.take(close) {
            if !items.is_empty() {
                self.expect(",");
            }
            items.push(item(self));
        }
        items
    }
}

pub fn parse_object(text: &str) -> BTreeMap<String, Json> {
    let mut reader = Reader { rest: text };
    let pairs = reader.items("{", "}", |reader| {
        let key = reader.text();
        reader.expect(":");
        (key, reader.value())
    });
    assert!(reader.rest.trim().is_empty(), "more text after the object: {:?}", reader.rest);
    pairs.into_iter().collect()
}

#[test]
fn reads_what_the_vectors_hold() {
    let object = parse_object("{\"a\": 1.5, \"b\": [1, -2],\n \"c\": [], \"d\": null, \"e\": true, \"f\": \"x\"}");
    assert_eq!(object["a"], Json::Number(1.5));
    assert_eq!(object["b"], Json::Array(vec![Json::Number(1.0), Json::Number(-2.0)]));
    assert_eq!((object["c"].array().len(), object["d"].array().len()), (0, 0));
    assert!(object["e"].bool() && object["f"].text() == "x");
    for wrong in ["", "{", "{\"a\" 1}", "{\"a\": }", "{\"a\": 1} x", "{\"a\": 1 \"b\": 2}"] {
        assert!(std::panic::catch_unwind(|| parse_object(wrong)).is_err(), "{:?} was read", wrong);
    }
}
