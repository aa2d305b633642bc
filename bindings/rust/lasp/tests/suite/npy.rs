//! Reads a .npy file of little-endian float32 in C order.
use std::convert::TryInto;
use std::fs;
use std::path::Path;

pub fn read(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {}", path.display(), e));
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00", "{}: not a version 1 .npy file", path.display());
    let begin = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..begin]).expect("a header of text");
    assert!(header.contains("'descr': '<f4'"), "{}: not little-endian float32", path.display());
    assert!(header.contains("'fortran_order': False"), "{}: not in C order", path.display());
    let open = header.find("'shape': (").expect("a shape") + 10;
    let shape = header[open..].split(')').next().unwrap();
    let extents = shape.split(',').map(str::trim).filter(|s| !s.is_empty());
    let count: usize = extents.map(|s| s.parse::<usize>().expect("an extent")).product();
    assert_eq!(bytes.len(), begin + 4 * count, "{}: size and shape disagree", path.display());
    bytes[begin..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}
