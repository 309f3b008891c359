"""Base and patches become a skill: what each action does, in which order, and what is refused with which ids."""

import json
import os
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.evolution.skillbank import Code, Problem, SkillBankError, compile_skill
from astraflow.evolution.skillbank.compiler import in_order
from astraflow.evolution.skillbank.patch import Action, Patch, PatchStatus

BASE_THAT_IS_RIGHT = "---\nname: one\ndescription: d\n---\n<!-- section:intro -->\nx\n<!-- /section:intro -->\n"
HEAD = "---\nname: one\ndescription: What one does and when to use it.\n---\n\n# one\n\n"


def body(files) -> str:
    return compile_skill(files.load(), "one").text.removeprefix(HEAD)


def refusal(files, **options) -> Problem:
    with pytest.raises(SkillBankError) as refused:
        compile_skill(files.load(), "one", **options)
    return refused.value.problems[0]


def test_without_patches_the_anchors_go_and_nothing_else(make_bank) -> None:
    assert compile_skill(make_bank().load(), "one").text == f"{HEAD}The intro.\n\nBetween.\n\nThe steps.\n"


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("replace", "P.\n\nBetween.\n\nThe steps.\n"),
        ("append", "The intro.\n\nP.\n\nBetween.\n\nThe steps.\n"),
        ("prepend", "P.\n\nThe intro.\n\nBetween.\n\nThe steps.\n"),
        ("insert_after", "The intro.\n\nP.\n\nBetween.\n\nThe steps.\n"),
    ],
)
def test_each_action(make_bank, action: str, expected: str) -> None:
    files = make_bank({"one": ["p"]})
    files.patch("one", "p", "\n\nP.\n\n", action=action)
    assert body(files) == expected
    sections = compile_skill(files.load(), "one").document.section_names
    assert sections == (("intro", "p", "steps") if action == "insert_after" else ("intro", "steps"))


def test_insert_after_goes_right_after_its_target_and_can_be_a_target(make_bank) -> None:
    files = make_bank({"one": ["first", "second", "third"]})
    files.patch("one", "first", "F.", action="insert_after")
    files.patch("one", "second", "S.", action="insert_after")
    files.patch("one", "third", "T.", action="append", target_section="first")
    assert body(files) == "The intro.\n\nS.\n\nF.\n\nT.\n\nBetween.\n\nThe steps.\n"


def test_manifest_order_then_dependencies(make_bank) -> None:
    files = make_bank({"one": ["c", "b", "a"]})
    files.patch("one", "c", "C.", depends_on=["a"])
    assert [patch.id for patch in compile_skill(files.load(), "one").patches] == ["b", "a", "c"]
    files.patch("one", "c", "C.", depends_on=["one:a"])
    assert [patch.id for patch in compile_skill(files.load(), "one").patches] == ["b", "a", "c"]


def test_a_profile_is_compiled_in_place_of_the_active_list(make_bank) -> None:
    files = make_bank({"one": ["a", "b"]})
    files.manifest("one", active=["a"], profiles={"small": {"active": ["b"]}})
    assert "Text of b" in compile_skill(files.load(), "one", "small").text
    assert "Text of a" not in compile_skill(files.load(), "one", "small").text
    assert refusal(files, profile="large").code is Code.UNKNOWN_SKILL


def test_a_trial_applies_last_whatever_its_status_and_changes_no_file(make_bank, snapshot_of_tree) -> None:
    files = make_bank({"one": ["a"]})
    before = snapshot_of_tree(files.repository)
    proposed = Patch("t", "intro", Action.APPEND, "T.", status=PatchStatus.PROPOSED)
    assert "Text of a.\n\nT.\n" in compile_skill(files.load(), "one", trial=[proposed]).text
    assert snapshot_of_tree(files.repository) == before


class TestRefusals:
    """Each error of a compile: its code, its ids, its file."""

    def test_conflict(self, make_bank) -> None:
        files = make_bank({"one": ["a", "b"]})
        files.patch("one", "a", conflicts_with=["b"])
        problem = refusal(files)
        assert (problem.code, problem.ids) == (Code.CONFLICT, ("a", "b"))
        files.manifest("one", active=["a"])
        assert "Text of a" in body(files)

    def test_conflict_across_skills(self, make_bank) -> None:
        files = make_bank({"one": ["a"], "two": ["b"]})
        files.patch("one", "a", conflicts_with=["two:b"])
        assert (refusal(files).code, refusal(files).ids) == (Code.CONFLICT, ("a", "two:b"))

    def test_cycle(self, make_bank) -> None:
        files = make_bank({"one": ["x", "c", "b", "a"]})
        for patch_id, need in (("a", "b"), ("b", "c"), ("c", "a"), ("x", "a")):
            files.patch("one", patch_id, depends_on=[need])
        problem = refusal(files)
        assert (problem.code, problem.ids) == (Code.CYCLE, ("a", "b", "c"))
        assert "a → b → c → a" in problem.message

    def test_a_patch_that_needs_itself(self, make_bank) -> None:
        files = make_bank({"one": ["a"]})
        files.patch("one", "a", depends_on=["a"])
        assert (refusal(files).code, refusal(files).ids) == (Code.CYCLE, ("a",))

    def test_inactive_dependency(self, make_bank) -> None:
        files = make_bank({"one": ["a"]})
        files.patch("one", "a", depends_on=["b"])
        files.patch("one", "b")
        problem = refusal(files)
        assert (problem.code, problem.ids) == (Code.INACTIVE_DEPENDENCY, ("a", "b"))
        assert problem.file is not None
        assert problem.file.name == "a.md"

    def test_inactive_dependency_across_skills(self, make_bank) -> None:
        files = make_bank({"one": ["a"], "two": ["b"]})
        files.patch("one", "a", depends_on=["two:b"])
        assert "Text of a" in body(files)
        files.manifest("two", active=[])
        assert (refusal(files).code, refusal(files).ids) == (Code.INACTIVE_DEPENDENCY, ("a", "two:b"))
        files.patch("one", "a", depends_on=["three:b"])
        assert refusal(files).ids == ("a", "three:b")

    def test_unknown_section(self, make_bank) -> None:
        files = make_bank({"one": ["a"]})
        files.patch("one", "a", target_section="step")
        problem = refusal(files)
        assert (problem.code, problem.ids) == (Code.UNKNOWN_SECTION, ("a",))
        assert "did you mean 'steps'?; known: intro, steps" in problem.message

    def test_unknown_action(self, make_bank) -> None:
        files = make_bank({"one": ["a"]})
        files.patch("one", "a", action="merge")
        assert (refusal(files).code, refusal(files).ids) == (Code.UNKNOWN_ACTION, ("a",))

    def test_missing_files(self, make_bank) -> None:
        files = make_bank({"one": ["a", "b"]})
        (files.root / "rllm/one/patches/a.md").unlink()
        (files.root / "rllm/one/patches/b.md").unlink()
        with pytest.raises(SkillBankError) as refused:
            compile_skill(files.load(), "one")
        assert [(p.code, p.ids) for p in refused.value.problems] == [(Code.MISSING_FILE, (i,)) for i in "ab"]
        for name in ("base.md", "manifest.yaml"):
            (files.root / "rllm/one" / name).unlink()
            problem = refusal(files)
            assert problem.code is Code.MISSING_FILE
            assert problem.file is not None
            assert problem.file.name == name

    @pytest.mark.parametrize("status", ["archived", "proposed", "evaluated", "rejected"])
    def test_a_patch_that_may_not_be_active(self, make_bank, status: str) -> None:
        files = make_bank({"one": ["a"]})
        files.patch("one", "a", status=status)
        problem = refusal(files)
        assert (problem.code, problem.ids) == (Code.INACTIVE_STATUS, ("a",))
        assert status in problem.message

    def test_two_active_replaces_of_one_section(self, make_bank) -> None:
        files = make_bank({"one": ["a", "b"]})
        files.patch("one", "a", action="replace")
        files.patch("one", "b", action="replace", depends_on=["a"])
        assert (refusal(files).code, refusal(files).ids) == (Code.DOUBLE_REPLACE, ("a", "b"))
        files.patch("one", "b", action="replace", target_section="steps")
        assert body(files) == "Text of a.\n\nBetween.\n\nText of b.\n"

    def test_malformed_anchor(self, make_bank) -> None:
        files = make_bank()
        files.skill("one", base="---\nname: one\ndescription: d\n---\n\n<!-- section:a -->\nnever closed\n")
        problem = refusal(files)
        assert (problem.code, problem.line) == (Code.MALFORMED_ANCHOR, 6)
        assert problem.file is not None
        assert problem.file.name == "base.md"

    def test_a_section_that_is_there_already(self, make_bank) -> None:
        files = make_bank({"one": ["steps"]})
        files.patch("one", "steps", action="insert_after")
        assert (refusal(files).code, refusal(files).ids) == (Code.DUPLICATE_SECTION, ("steps",))

    def test_the_format(self, make_bank) -> None:
        files = make_bank()
        files.skill("one", base="---\nname: other\n---\n\nText\n")
        with pytest.raises(SkillBankError) as refused:
            compile_skill(files.load(), "one")
        assert {problem.code for problem in refused.value.problems} == {Code.SKILL_FORMAT}
        assert len(refused.value.problems) == 2


def test_deprecated_is_a_warning_that_names_the_better_one(make_bank) -> None:
    files = make_bank({"one": ["a"]})
    files.patch("one", "a", status="deprecated", superseded_by="b")
    (warning,) = compile_skill(files.load(), "one").warnings
    assert (warning.code, warning.ids) == (Code.DEPRECATED, ("a", "b"))


def test_text_that_a_later_replace_throws_away_is_a_warning(make_bank) -> None:
    files = make_bank({"one": ["a", "r", "b"]})
    files.patch("one", "r", action="replace")
    compiled = compile_skill(files.load(), "one")
    (warning,) = compiled.warnings
    assert (warning.code, warning.ids) == (Code.NO_EFFECT, ("a", "r"))
    assert "Text of b" in compiled.text


def test_keys_of_one_agent_need_its_target_which_is_not_written(make_bank) -> None:
    files = make_bank()
    front = "name: one\ndescription: d\nargument-hint: x"
    files.skill("one", base=f"---\n{front}\n---\n\nText\n")
    assert "key 'argument-hint' is not in the Agent Skills format" in refusal(files).message
    files.skill("one", base=f"---\ntarget: claude-code\n{front}\n---\n\nText\n")
    assert compile_skill(files.load(), "one").text == f"---\n{front}\n---\n\nText\n"


@st.composite
def acyclic_patches(draw: st.DrawFn) -> list[Patch]:
    """Patches in manifest order; each may need any that comes before it in a hidden order."""
    hidden = draw(st.permutations([f"p{i}" for i in range(draw(st.integers(1, 8)))]))
    patches = [
        Patch(
            id=patch_id,
            target_section="intro",
            action=Action.APPEND,
            body=patch_id,
            depends_on=tuple(draw(st.lists(st.sampled_from(hidden[:i]), unique=True)) if i else ()),
        )
        for i, patch_id in enumerate(hidden)
    ]
    return draw(st.permutations(patches))


@given(acyclic_patches())
def test_the_order_meets_every_need_and_is_the_least_such(patches: list[Patch]) -> None:
    ordered = in_order(patches)
    assert sorted(patch.id for patch in ordered) == sorted(patch.id for patch in patches)
    place = {patch.id: index for index, patch in enumerate(patches)}
    done: set[str] = set()
    for patch in ordered:
        assert done.issuperset(patch.depends_on)
        free = [other for other in patches if other.id not in done and done.issuperset(other.depends_on)]
        assert place[patch.id] == min(place[other.id] for other in free)
        done.add(patch.id)


@given(acyclic_patches(), st.randoms(use_true_random=False))
def test_without_needs_the_manifest_is_the_order(patches: list[Patch], shuffle: random.Random) -> None:
    free = [Patch(patch.id, "intro", Action.APPEND, "x") for patch in patches]
    shuffle.shuffle(free)
    assert list(in_order(free)) == free


def test_the_text_depends_on_no_hash_seed_and_no_directory_order(make_bank, tmp_path_factory) -> None:
    names = [f"p{i}" for i in range(12)]
    needs = {"p0": ["p7", "p3"], "p3": ["p9", "p11", "p10"], "p5": ["two:q"], "p6": ["p0", "p1", "p2"]}
    files = make_bank({"one": [], "two": ["q"]})
    program = (
        "import sys, json\nfrom pathlib import Path\nfrom astraflow.evolution.skillbank import Bank, compile_skill\n"
        "print(json.dumps(compile_skill(Bank.load(Path(sys.argv[1])), 'one').text))"
    )
    texts = set()
    for seed in range(4):
        order = random.Random(seed).sample(names, len(names))
        for name in names:
            (files.root / f"rllm/one/patches/{name}.md").unlink(missing_ok=True)
        for name in order:  # the order in which files were made is the order of many directories
            action = "insert_after" if name in ("p2", "p9") else "prepend" if name == "p4" else "append"
            files.patch("one", name, depends_on=needs.get(name, []), action=action)
        files.manifest("one", active=names)
        done = subprocess.run(
            [sys.executable, "-c", program, str(files.root)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        )
        texts.add(json.loads(done.stdout))
    assert len(texts) == 1
    assert all(f"Text of {name}." in texts.copy().pop() for name in names)


FRONT = (
    "---\n",
    "id: p\n",
    "target_section: intro\n",
    "action: append\n",
    "status: [1]\n",
    "depends_on: [p, 'two:q']\n",
)
BODY = ("<!-- section:intro -->\n", "<!-- /section:intro -->\n", "<!-- section", "```\n", "`", "text\n")
MANIFEST = ("active: [p]\n", "base: base.md\n", "profiles: {x: {active: p}}\n", "name: one\n", "description: d\n")
ODD = (
    "depends_on: [p, 'two:q']\n",
    "{",
    "? [a]\n",
    "d: 2026-13-01\n",
    "\t",
    "\x00",
    "é",
    "- a\n",
    "&a *a\n",
    "\n",
    "[" * 2000,
)
SNIPPETS = st.sampled_from([*FRONT, *BODY, *MANIFEST, *ODD, "\n", "[" * 2000])


@given(base=st.lists(SNIPPETS), patch=st.lists(SNIPPETS), manifest=st.lists(SNIPPETS, max_size=4))
def test_whatever_the_sources_hold_a_compile_ends_in_a_skill_or_in_problems(
    base: list[str], patch: list[str], manifest: list[str], tmp_path_factory: pytest.TempPathFactory, bank_at
) -> None:
    files = bank_at(tmp_path_factory.mktemp("any")).skill("one")
    folder = files.root / "rllm" / "one"
    (folder / "base.md").write_text("".join(base) or BASE_THAT_IS_RIGHT, "utf-8")
    (folder / "patches" / "p.md").write_text("".join(patch), "utf-8")
    (folder / "manifest.yaml").write_text("".join(manifest) or "active: [p]\n", "utf-8")
    problems: tuple[Problem, ...] = ()
    text = ""
    try:
        text = compile_skill(files.load(), "one").text
    except SkillBankError as error:
        problems = error.problems
    assert bool(text) != bool(problems)
