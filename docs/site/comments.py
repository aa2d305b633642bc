"""Comments of lasp.h as Markdown: paragraphs, lists and drawn blocks, names as links, shapes as code."""
import re

NAME = re.compile(r"\blasp_\w+(?:\(\))?|\bLASP_[A-Z0-9_]+\*?|\[[A-Za-z0-9_, *+./()-]{1,40}\](?!\()|\b[a-z]+(?:_[a-z0-9]+)+\b")
SPECIAL = re.compile(r"([\\*_|#\[\]{}])")


class Renderer:
    def __init__(self, known, constants):
        self.known, self.constants = known, constants

    def name(self, text):
        """A name of the header as code, with a link where it has a place on the page."""
        bare = text.rstrip("()*")
        goal = bare if bare in self.known else self.constants.get(bare)
        if goal is None and bare.endswith("_INIT") and bare[:-5].lower() in self.known:
            goal = bare[:-5].lower()
        return f"[`{text}`](#{goal})" if goal and goal != "macro" else f"`{text}`"

    def type(self, text):
        found = re.search(r"lasp_\w+", text)
        return f"[`{text}`](#{found[0]})" if found and found[0] in self.known else f"`{text}`"

    def inline(self, text):
        parts, at = [], 0
        for match in re.finditer(rf"`[^`]+`|{NAME.pattern}", text):
            parts.append(_escaped(text[at:match.start()]))
            found = match[0]
            parts.append(found if found.startswith("`") else f"`{found}`" if found.startswith("[") else self.name(found))
            at = match.end()
        return "".join(parts) + _escaped(text[at:])

    def text(self, comment):
        if not comment:
            return ""
        body = re.sub(r"^/\*\s?|\s*\*/$", "", comment)
        lines = [re.sub(r"^ {0,3}\*( |$)|^   (?=\S)", "", line) for line in body.split("\n")]
        out, block = [], []
        for line in [*lines, ""]:
            if line.strip() and (not block or line.startswith("    ") == block[0].startswith("    ")) and \
                    not line.startswith("- "):
                block.append(line)
                continue
            self._end(block, out)
            block = [line] if line.strip() else []
        self._end(block, out)
        return "\n".join(out) + "\n"

    def _end(self, block, out):
        if not block:
            return
        if block[0].startswith("    "):
            least = min(len(line) - len(line.lstrip()) for line in block)
            out.extend(["```text", *(line[least:].rstrip() for line in block), "```", ""])
        else:
            words = " ".join(line.strip() for line in block)
            said = self.inline(words.removeprefix("- "))
            out.extend([re.sub(r"^((?:\w+ ?){1,2}\.) ", r"- **\1** ", said) if words.startswith("- ") else said, ""])
            if words.startswith("- ") and not out[-2].startswith("- "):
                out[-2] = "- " + said

    def enum(self, code):
        rows = [(re.match(r"(\w+)\s*=\s*(\w+)", declared), said)
                for declared, said in _members(code, ",")]
        lines = [f"| | | {self.inline(said)} |" if match is None else
                 f'| <span id="{match[1]}"></span>`{match[1]}` | {match[2]} | {self.inline(said)} |'
                 for match, said in rows if match is None or "FORCE_INT32" not in match[1]]
        return "| value | | |\n|---|---|---|\n" + "\n".join(lines) + "\n"

    def struct(self, code, struct):
        types = {field.name: field.type for field in struct.fields}
        lines = []
        for declared, said in _members(code, ";"):
            names = [name for name in re.findall(r"\b\w+\b", declared) if name in types]
            if "(*" in declared:
                names = [re.search(r"\(\*(\w+)\)", declared)[1]]
            kind = declared.split(";")[0] if "(*" in declared else types[names[0]]
            kind = f"`{' '.join(kind.split())}`" if "(*" in declared else self.type(kind)
            lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {kind} | {self.inline(said)} |")
        seen = sum(line.split("|")[1].count("`") // 2 for line in lines)
        if seen != len(struct.fields):
            raise ValueError(f"lasp.h: {struct.name} has {len(struct.fields)} fields, and {seen} were found")
        begin = f"\nBegins as `{struct.init_macro}`.\n" if struct.init_macro else ""
        return begin + "\n| field | type | |\n|---|---|---|\n" + "\n".join(lines) + "\n"


def _escaped(text):
    return SPECIAL.sub(r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _members(code, end):
    """(declaration, comment) of each member of a struct or enum: its comment is behind it, or above it."""
    body = code[code.index("{") + 1:code.rindex("}")]
    waiting, found = "", []
    for match in re.finditer(r"/\*(.*?)\*/|([^/]+)", body, re.S):
        if match[1] is not None:
            said = " ".join(line.strip(" *") for line in match[1].split("\n")).strip()
            alone = not body[:match.start()].split("\n")[-1].strip()
            if alone and end == ",":  # of the values that follow
                found.append(["", said])
            elif not alone and found:
                found[-1][1] = (found[-1][1] + " " + said).strip()
            else:
                waiting = said
            continue
        for declared in filter(None, (part.strip() for part in _split(match[2], end))):
            found.append([declared, waiting])
            waiting = ""
    return [(declared, said) for declared, said in found]


def _split(text, end):
    depth, begin = 0, 0
    for at, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == end and depth == 0:
            yield text[begin:at]
            begin = at + 1
    yield text[begin:]
