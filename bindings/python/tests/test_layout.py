"""The raw layer against lasp-layout, a program compiled from lasp.h: sizes, offsets, constants and signatures.
Offsets are found by writing through the binding and looking at memory."""

import copy
import ctypes
import json
import os
import re

import pytest

import liblasp
from liblasp import raw

with open(os.environ["LASP_LAYOUT"], encoding="ascii") as file:
    LAYOUT = json.load(file)


def memory_of(struct, size):
    return (ctypes.c_ubyte * size).from_address(int(struct.this))


def is_nested(kind):
    return kind in LAYOUT["structs"]


def written_bytes(name, size, field, value):
    """(offset, size) of what changes when the binding sets a field to all ones. A field within a struct is reached
    through the address that the binding gives it."""
    struct = getattr(raw, name)()
    memory = memory_of(struct, size)
    ctypes.memset(memory, 0, size)
    setattr(struct, field, value)
    changed = [i for i in range(size) if memory[i]]
    return changed[0], len(changed)


ALL_ONES = {"int32_t": -1, "int64_t": -1, "uint64_t": 2 ** 64 - 1, "size_t": 2 ** 64 - 1, "void *": 2 ** 64 - 1,
            "const void *": 2 ** 64 - 1, "const int64_t *": 2 ** 64 - 1, "const lasp_run *": 2 ** 64 - 1,
            "lasp_function": 2 ** 64 - 1, "lasp_log_function": 2 ** 64 - 1, "lasp_interrupted_function": 2 ** 64 - 1}
# A transport's functions are given as methods of a Python object: the raw layer does not set them.
NOT_SET = {("lasp_transport", function)
            for function in ("send", "receive", "test", "wait", "cancel", "abort", "destroy", "wait_for",
                             "peer_state")}


def read_bytes(name, size, field, kind, length):
    """(offset, size) of a field that is found by reading: memory is filled byte by byte until the value changes."""
    struct = getattr(raw, name)()
    memory = memory_of(struct, size)
    ctypes.memset(memory, 0, size)
    offsets = []
    before = getattr(struct, field)
    for i in range(size):
        memory[i] = 0x3f
        if getattr(struct, field) != before:
            offsets.append(i)
        memory[i] = 0
    return offsets[0], len(offsets)


def place_of(name, size, field, told):
    """(offset, size) of a field by the binding, or None for function tables, which Python fills by other ways."""
    kind = told["type"]
    if kind in ALL_ONES:
        return written_bytes(name, size, field, ALL_ONES[kind])
    if is_nested(kind):
        struct = getattr(raw, name)()
        return int(getattr(struct, field).this) - int(struct.this), LAYOUT["structs"][kind]["size"]
    if kind in ("float", "double") or kind.startswith(("double[", "int64_t[")):
        return read_bytes(name, size, field, kind, told["size"])
    if kind == "const lasp_packing *":  # points to another struct of the binding
        struct, pointed = getattr(raw, name)(), raw.lasp_packing()
        memory = memory_of(struct, size)
        ctypes.memset(memory, 0, size)
        setattr(struct, field, pointed)
        found = [offset for offset in range(0, size, 8)
                 if ctypes.c_void_p.from_buffer(memory, offset).value == int(pointed.this)]
        return (found[0], 8) if len(found) == 1 else None
    if kind == "const char *":  # read only: point it to a string
        struct = getattr(raw, name)()
        memory = memory_of(struct, size)
        ctypes.memset(memory, 0, size)
        text = ctypes.create_string_buffer(b"here")
        for offset in range(0, size, 8):
            ctypes.c_void_p.from_buffer(memory, offset).value = ctypes.addressof(text)
            if getattr(struct, field) == "here":
                return offset, 8
            ctypes.c_void_p.from_buffer(memory, offset).value = None
    return None


def differences(layout):
    """Every difference between the binding and a layout."""
    found = []
    for name, told in layout["constants"].items():
        if getattr(raw, name, None) != told["value"]:
            found.append(f"{name}: {getattr(raw, name, None)}, in C {told['value']}")
    for name, told in layout["structs"].items():
        made = getattr(raw, name)()
        if "size" in told["fields"] and made.size != told["size"]:
            found.append(f"{name}: {made.size} bytes, in C {told['size']}")
            continue  # the fields are looked for in that many bytes
        fields = {field for field, value in vars(type(made)).items() if isinstance(value, property)} - {"thisown"}
        if fields != set(told["fields"]):
            found.append(f"{name}: fields {sorted(fields)}, in C {sorted(told['fields'])}")
        for field in sorted(fields & set(told["fields"])):
            place, in_c = place_of(name, told["size"], field, told["fields"][field]), told["fields"][field]
            if place is None and (name, field) not in NOT_SET:
                found.append(f"{name}.{field}: cannot be set or read as {in_c['type']}")
            if place is not None and place != (in_c["offset"], in_c["size"]):
                found.append(f"{name}.{field}: {place}, in C {in_c['offset'], in_c['size']}")
    for name, told in layout["functions"].items():
        found += signature_differences(name, told)
    return found


def plain(kind):
    """A C type as SWIG's one-line documentation names it: without const, struct and the star of a struct
    pointer."""
    kind = re.sub(r"\b(const|struct)\b", "", kind).replace("*", "").strip()
    return kind


def results_of(parameters):
    """The parameters that are results in Python: handles, numbers by pointer, text."""
    return {p["name"] for p in parameters
            if p["type"].endswith("**") or p["name"] in ("text", "comms")
            or re.fullmatch(r"(int32_t|size_t|double|lasp_status) \*", p["type"])}


def signature_differences(name, told):
    documentation = getattr(getattr(raw, name, None), "__doc__", None) or ""
    match = re.match(rf"{name}\((.*?)\)(?: -> (.+))?$",
     documentation.strip().splitlines()[0] if documentation else "")
    if not match:
        return [f"{name}: not in the binding"]
    given = [word.strip() for word in match.group(1).split(",") if word.strip()]
    found = [(word.rpartition(" ")[2], plain(word.rpartition(" ")[0])) for word in given]
    # An array and its count, and text and its room, are one parameter by typemap; the first of both names it.
    results = results_of(told["parameters"])
    wanted = [(p["name"], plain(p["type"])) for p in told["parameters"] if p["name"] not in results]
    merged = {"lasp_comm_create_threads": [("nranks", "int32_t")], "lasp_plan_describe": None,
              "lasp_context_get_async_error": None}
    if name in merged and merged[name] is None:
        found, wanted = [found[0]], [wanted[0]]
    differs = [] if found == wanted else [f"{name}: takes {found}, in C {wanted}"]
    returned = plain((match.group(2) or "void"))
    if plain(told["returns"]) not in (returned, "char") and not returned.startswith(plain(told["returns"])):
        differs.append(f"{name}: returns {returned}, in C {told['returns']}")
    return differs


def test_layout():
    assert differences(LAYOUT) == []


def wrong(change):
    layout = copy.deepcopy(LAYOUT)
    change(layout)
    return layout


def rename_field(layout):
    fields = layout["structs"]["lasp_problem"]["fields"]
    fields["tokenz"] = fields.pop("tokens")


WRONG = {
    "constant": lambda l: l["constants"]["LASP_ERROR_PEER_LOST"].update(value=499),
    "size": lambda l: l["structs"]["lasp_problem"].update(size=l["structs"]["lasp_problem"]["size"] + 8),
    "offset": lambda l: l["structs"]["lasp_plan_info"]["fields"]["chunk"].update(offset=0),
    "width": lambda l: l["structs"]["lasp_problem"]["fields"]["tokens"].update(size=4),
    "nested": lambda l: l["structs"]["lasp_problem"]["fields"]["dk"].update(offset=0),
    "double": lambda l: l["structs"]["lasp_plan_info"]["fields"]["predicted_us"].update(offset=8),
    "text": lambda l: l["structs"]["lasp_build_info"]["fields"]["blas"].update(offset=8),
    "field": rename_field,
    "function": lambda l: l["functions"].update(lasp_forwards=l["functions"]["lasp_forward"]),
    "parameters": lambda l: l["functions"]["lasp_forward"]["parameters"].pop(),
    "parameter's type": lambda l: l["functions"]["lasp_groups_of_rank"]["parameters"][0].update(type="int64_t"),
    "return type": lambda l: l["functions"]["lasp_forward"].update(returns="double"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_layout_fails(what):
    assert len(differences(wrong(WRONG[what]))) >= 1


def test_enumerations_have_every_constant():
    """The package's enumerations and exceptions name every constant of the header."""
    named = {"LASP_DEVICE_": liblasp.Device, "LASP_DECAY_": liblasp.Decay, "LASP_WRITE_": liblasp.Write,
             "LASP_MASK_": liblasp.Mask, "LASP_SCHEDULE_": liblasp.Schedule, "LASP_CACHE_": liblasp.Cache,
             "LASP_LOG_": liblasp.LogLevel, "LASP_OWN_": liblasp.Ownership}
    for prefix, kind in named.items():
        constants = {name[len(prefix):]: told["value"] for name, told in LAYOUT["constants"].items()
                     if name.startswith(prefix) and not name.endswith("FORCE_INT32")}
        assert constants == {member.name: member.value for member in kind}
    statuses = [told["value"] for name, told in LAYOUT["constants"].items() if name.startswith("LASP_ERROR_")]
    assert len(statuses) > 15
    for status in statuses:
        assert type(liblasp.errors.error_of(status, "sentence")) is not liblasp.Error
