"""The page for agents: every call returns what the page quotes; the skill names what there is."""

from __future__ import annotations

import ast
import json
import re

import pytest
from golden_files import UPDATE
from paths import DOCS, ROOT
from terminal import options_of

pytest.importorskip("mcp", reason="the mcp package is not installed")
pytest.importorskip("duckdb", reason="an example is a query")

from traceq.agent_tools.answer import Tool
from traceq.agent_tools.readings import Readings
from traceq.agent_tools.server import TOOLS, call_tool

PAGE, SKILL = DOCS / "agents.md", DOCS / "skill" / "SKILL.md"
EXAMPLE = re.compile(r"```python\n(.*?)\n```\n\n```json\n(.*?)```", re.DOTALL)


def printed(call: str) -> str:
    """The answer of a call, a member per line."""
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    arguments = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    answer = call_tool(Readings(), ast.unparse(node.func), arguments)
    members = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in answer.items()]
    return "{\n" + ",\n".join(members) + "\n}\n"


@pytest.mark.slow
def test_every_call_returns_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = PAGE.read_text(encoding="utf-8")
    examples = EXAMPLE.findall(text)
    assert {re.split(r"\W", call)[0] for call, _ in examples} == set(TOOLS)
    for call, quoted in examples:
        if UPDATE:
            text = text.replace(f"{call}\n```\n\n```json\n{quoted}", f"{call}\n```\n\n```json\n{printed(call)}")
        else:
            assert printed(call) == quoted
    if UPDATE:
        PAGE.write_text(text, encoding="utf-8")


def signature(name: str, tool: type[Tool]) -> str:
    required = [field for field in tool.__struct_fields__ if field not in optional(tool)]
    return f"{name}({', '.join([*required, *(f'{field}?' for field in optional(tool))])})"


def optional(tool: type[Tool]) -> tuple[str, ...]:
    number = len(tool.__struct_defaults__)
    return tool.__struct_fields__[len(tool.__struct_fields__) - number :] if number else ()


def test_the_page_lists_every_tool_with_its_arguments() -> None:
    listed = re.findall(r"^\| `(\w+\(.*?\))` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(signature(name, tool) for name, tool in TOOLS.items())


def test_the_skill_names_tools_and_commands_that_are() -> None:
    text = SKILL.read_text(encoding="utf-8")
    assert re.match(r"---\nname: traceq\ndescription: .{50,1000}\n---\n", text)
    for line in re.findall(r"`traceq ([^`]+)`", text):
        name, *words = line.partition(" -- ")[0].split()
        assert {word for word in words if word.startswith("--")} <= options_of(name), line
    rows = re.findall(r"^\|[^|]+\| (`.*?) \|", text, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} <= set(TOOLS)


def test_skill_and_page_are_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(str(page.relative_to(ROOT)) in readme for page in (PAGE, SKILL))
