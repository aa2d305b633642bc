#!/usr/bin/env python3
"""The list is the header's, the printed layout is whole, and a wrong header or a wrong list is noticed.

    test_layout.py HEADER C_COMPILER LASP_LAYOUT
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
HEADER, COMPILER, PROGRAM = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
TEXT = HEADER.read_text(encoding="utf-8")
LIST = HERE / "layout_list.inc"


def check_list(header_text):
    """Exit status and output of generate_list.py --check with another header."""
    with tempfile.NamedTemporaryFile("w", suffix=".h") as file:
        file.write(header_text)
        file.flush()
        command = [sys.executable, "-B", HERE / "generate_list.py", "--check", file.name, LIST]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def compiles(list_text):
    """Whether lasp_layout.c compiles with another list."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        (copy / "lasp_layout.c").write_text((HERE / "lasp_layout.c").read_text())
        (copy / "layout_list.inc").write_text(list_text)
        command = [COMPILER, "-std=c99", "-Werror", "-fsyntax-only", f"-I{HEADER.parent.parent}", "lasp_layout.c"]
        return subprocess.run(command, cwd=folder, stderr=subprocess.DEVNULL, check=False).returncode == 0


def printed(*arguments):
    return subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout


class List(unittest.TestCase):
    def test_is_what_the_header_gives(self):
        status, output = check_list(TEXT)
        self.assertEqual(status, 0, output)

    def test_notices_a_changed_header(self):
        plan, step = "typedef struct lasp_plan lasp_plan;", "LASP_API lasp_status lasp_step("
        changes = {
            "a field added": ("  int32_t has_nccl; ", "  int32_t has_rocm;\n  int32_t has_nccl; "),
            "a field's type": ("  int64_t max_sequences;", "  int32_t max_sequences;"),
            "an array's length": ("predicted_us[16]", "predicted_us[17]"),
            "a callback's parameter": ("int64_t time_limit_ms, int32_t *lost_rank);", "int32_t *lost_rank);"),
            "a status added": ("LASP_ERROR_TRANSPORT = 502,", "LASP_ERROR_TRANSPORT = 502, LASP_ERROR_NEW = 503,"),
            "a macro added": ("#define LASP_ABI 2", "#define LASP_ABI 2\n#define LASP_MORE 2"),
            "a function added": (step, "LASP_API void lasp_new(void);\n" + step),
            "a parameter's type": ("size_t capacity, size_t *needed", "int32_t capacity, size_t *needed"),
            "a struct added": (plan, "typedef struct lasp_new { int x; } lasp_new;\n" + plan),
            "a struct without its macro": ("#define LASP_GROUPS_INIT", "#define LASP_GROUP_INIT"),
            "a bit field": ("  int32_t reserved;                /* 0 */", "  int32_t reserved : 4;"),
            "a union": (plan, "union lasp_new { int x; };\n" + plan),
            "an enum member without a value": ("LASP_FLOAT16 = 3,", "LASP_FLOAT16 = 3, LASP_FLOAT8,"),
        }
        for name, (old, new) in changes.items():
            with self.subTest(name):
                self.assertIn(old, TEXT)
                status, _ = check_list(TEXT.replace(old, new, 1))
                self.assertNotEqual(status, 0)

    def test_with_a_wrong_type_does_not_compile(self):
        text = LIST.read_text()
        self.assertTrue(compiles(text))
        field = "LAYOUT_FIELD(lasp_problem, batch, \"int64_t\", "
        for old, new in [
            (field + "(int64_t *p))", field + "(int32_t *p))"),
            ("(double (*p)[16])", "(double (*p)[4])"),
            ("(lasp_status (*p)(lasp_plan *, lasp_stream))", "(lasp_status (*p)(lasp_plan *))"),
            ("LAYOUT_CONSTANT(LASP_OK,", "LAYOUT_CONSTANT(LASP_FINE,"),
        ]:
            with self.subTest(old):
                self.assertIn(old, text)
                self.assertFalse(compiles(text.replace(old, new, 1)))


class Output(unittest.TestCase):
    def setUp(self):
        self.layout = json.loads(printed())

    def test_json_is_whole(self):
        self.assertEqual(self.layout["constants"]["LASP_ERROR_PEER_LOST"]["value"], 500)
        self.assertEqual(self.layout["handles"], ["lasp_comm", "lasp_context", "lasp_plan", "lasp_halo"])
        for name in self.layout["functions"]:
            self.assertIn(f"{name}(", TEXT)
        # Two counts made without the reader: of the functions, and of the bytes that a struct's fields fill.
        self.assertEqual(len(self.layout["functions"]), TEXT.count("\nLASP_API "))
        for name, struct in self.layout["structs"].items():
            at = 0
            for field in struct["fields"].values():
                self.assertEqual(field["offset"], at, name)
                at += field["size"]
            self.assertEqual(struct["size"], at, name)
            if "size" in struct["fields"]:
                self.assertEqual(int.from_bytes(bytes.fromhex(struct["init"])[:8], sys.byteorder), at, name)

    def test_lines_say_the_same(self):
        lines = [line.split("\t") for line in printed("--tsv").splitlines()]
        constants = {line[1]: {"value": int(line[2]), "group": line[3]} for line in lines if line[0] == "constant"}
        self.assertEqual(constants, self.layout["constants"])
        self.assertEqual([line[1] for line in lines if line[0] == "handle"], self.layout["handles"])
        aliases = {line[1]: {"type": line[2], "size": int(line[3])} for line in lines if line[0] == "alias"}
        self.assertEqual(aliases, self.layout["aliases"])
        structs, functions = {}, {}
        for kind, name, *rest in lines:
            if kind == "struct":
                init = None if rest[2] == "-" else rest[2]
                structs[name] = {"size": int(rest[0]), "align": int(rest[1]), "init": init, "fields": {}}
            elif kind == "field":
                field = {"type": rest[1], "offset": int(rest[2]), "size": int(rest[3])}
                structs[name]["fields"][rest[0]] = field
            elif kind == "function":
                functions[name] = {"returns": rest[0], "parameters": []}
            elif kind == "parameter":
                functions[name]["parameters"].append({"name": rest[0], "type": rest[1]})
        self.assertEqual(structs, self.layout["structs"])
        self.assertEqual(functions, self.layout["functions"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
