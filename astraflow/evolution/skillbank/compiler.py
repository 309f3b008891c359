"""Base and active patches become a skill.

Invariant: the compiled text is a function of the base, the manifest and the active patches (and, for dependencies on
other skills, those skills' manifests) and of nothing else: not of hash seeds, directory order, the clock or earlier
output. Nothing is written here.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from astraflow.errors import suggestion
from astraflow.evolution.skillbank.bank import Bank, SkillSource
from astraflow.evolution.skillbank.patch import MAY_BE_ACTIVE, PATCH_ID, Action, Patch, PatchStatus
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError, refuse_if_any
from astraflow.evolution.skillbank.sections import Document, Part, Piece
from astraflow.evolution.skillbank.skill_format import TARGET_KEY, TARGETS, check_skill
from astraflow.evolution.skillbank.text_file import FENCE, without_field


@dataclass(frozen=True)
class Compiled:
    """A compiled skill and how it came about."""

    skill: str
    text: str
    """The whole SKILL.md."""
    document: Document
    """The body with every part's origin: what `--explain` shows and `--squash` writes."""
    patches: tuple[Patch, ...]
    """The active patches in the order in which they were applied."""
    warnings: tuple[Problem, ...]


def compile_skill(bank: Bank, name: str, profile: str | None = None, trial: Sequence[Patch] = ()) -> Compiled:
    """Compile one skill.

    `trial` patches apply as if the manifest named them last, whatever their status: the "after" of a measurement.
    Raises SkillBankError with every problem found at the first stage that has any.
    """
    source = bank.source(name)
    patches = _active_patches(source, profile, trial)
    refuse_if_any(_relation_problems(bank, source, patches))
    ordered = in_order(patches)
    refuse_if_any(_double_replaces(ordered))
    document = source.document
    for patch in ordered:
        document = apply_patch(document, patch, name)
    target = str(source.front.values.get(TARGET_KEY, TARGETS[0]))
    values = {key: value for key, value in source.front.values.items() if key != TARGET_KEY}
    body = document.render()
    refuse_if_any(check_skill(values, body, name, target, source.base_file))
    header = without_field(source.front.header, TARGET_KEY)
    text = f"{FENCE}\n{header}{FENCE}\n\n{body}"
    return Compiled(name, text, document, ordered, (*_deprecations(ordered), *_lost_parts(ordered)))


def in_order(patches: Sequence[Patch]) -> tuple[Patch, ...]:
    """Dependencies first, else as given: of all valid orders the one closest to the manifest's from its start on.

    Kahn's algorithm; among the patches that are free, the one that the manifest names first goes next.
    """
    place = {patch.id: index for index, patch in enumerate(patches)}
    waits_for = {patch.id: {need for need in patch.depends_on if need in place} for patch in patches}
    free = [place[patch_id] for patch_id, needs in waits_for.items() if not needs]
    heapq.heapify(free)
    ordered: list[Patch] = []
    while free:
        patch = patches[heapq.heappop(free)]
        ordered.append(patch)
        for other in patches:
            if patch.id in waits_for[other.id]:
                waits_for[other.id].discard(patch.id)
                if not waits_for[other.id]:
                    heapq.heappush(free, place[other.id])
    if len(ordered) < len(patches):
        circle = _find_circle(waits_for)
        message = f"patches depend on each other in a circle: {' → '.join((*circle, circle[0]))}"
        raise SkillBankError(Problem(Code.CYCLE, message, circle, patches[place[circle[0]]].file))
    return tuple(ordered)


def apply_patch(document: Document, patch: Patch, skill: str) -> Document:
    """The document after one patch. SkillBankError if its target is not there, or its new section already is."""
    target = document.section(patch.target_section)
    if target is None:
        known = list(document.section_names)
        hint = suggestion(patch.target_section, known)
        message = (
            f"patch '{patch.id}' targets the unknown section '{patch.target_section}' of '{skill}'{hint}; "
            f"known: {', '.join(known) or 'none'}"
        )
        raise SkillBankError(Problem(Code.UNKNOWN_SECTION, message, (patch.id,), patch.file))
    part = Part(patch.body, patch.id, patch.file, patch.body_line)
    match patch.action:
        case Action.REPLACE:
            return document.with_section(target.with_parts(part))
        case Action.APPEND:
            return document.with_section(target.with_parts(*target.parts, part))
        case Action.PREPEND:
            return document.with_section(target.with_parts(part, *target.parts))
        case Action.INSERT_AFTER:
            if document.section(patch.id) is not None:
                message = f"patch '{patch.id}' would make a second section '{patch.id}' in '{skill}'"
                raise SkillBankError(Problem(Code.DUPLICATE_SECTION, message, (patch.id,), patch.file))
            return document.with_new_section(Piece(patch.id, (part,)), after=target.name)


def _active_patches(source: SkillSource, profile: str | None, trial: Sequence[Patch]) -> list[Patch]:
    on_trial = {patch.id for patch in trial}
    ids = [patch_id for patch_id in source.manifest.active_in(profile) if patch_id not in on_trial]
    patches: list[Patch] = []
    problems: list[Problem] = []
    for patch_id in ids:
        try:
            patch = source.patch(patch_id)
        except SkillBankError as error:
            problems += error.problems
            continue
        if patch.status not in MAY_BE_ACTIVE:
            message = f"patch '{patch_id}' is {patch.status} and may not be active"
            problems.append(Problem(Code.INACTIVE_STATUS, message, (patch_id,), patch.file))
        patches.append(patch)
    refuse_if_any(problems)
    own = f"{source.entry.name}:"
    return [
        replace(patch, depends_on=tuple(need.removeprefix(own) for need in patch.depends_on))
        for patch in (*patches, *trial)
    ]


def _relation_problems(bank: Bank, source: SkillSource, patches: Sequence[Patch]) -> Iterator[Problem]:
    """Needs that are not met and conflicts, in this skill and across skills."""
    active = {patch.id for patch in patches}
    for patch in patches:
        for need in patch.depends_on:
            if not _is_active(bank, source, active, need):
                message = f"patch '{patch.id}' depends on '{need}', which is not active"
                yield Problem(Code.INACTIVE_DEPENDENCY, message, (patch.id, need), patch.file)
        for rival in patch.conflicts_with:
            if rival != patch.id and _is_active(bank, source, active, rival, part_of_base_counts=False):
                message = f"patch '{patch.id}' conflicts with '{rival}' and both are active"
                yield Problem(Code.CONFLICT, message, (patch.id, rival), patch.file)


def _is_active(
    bank: Bank, source: SkillSource, active: set[str], reference: str, part_of_base_counts: bool = True
) -> bool:
    """Is a patch, given as `id` or `skill:id`, active? One that a squash made part of the base can count as such."""
    skill, _, patch_id = reference.rpartition(":")
    if skill and skill != source.entry.name:
        if skill not in bank.skills:
            return False
        active = set(bank.manifest(skill).active)
    if patch_id in active:
        return True
    if not part_of_base_counts or not PATCH_ID.fullmatch(patch_id):
        return False
    file = bank.folder(skill or source.entry.name) / "patches" / f"{patch_id}.md"
    return file.is_file() and Patch.read(file).is_part_of_base


def _double_replaces(patches: Sequence[Patch]) -> Iterator[Problem]:
    first: dict[str, Patch] = {}
    for patch in patches:
        if patch.action is Action.REPLACE:
            other = first.setdefault(patch.target_section, patch)
            if other is not patch:
                message = f"patches '{other.id}' and '{patch.id}' both replace section '{patch.target_section}'"
                yield Problem(Code.DOUBLE_REPLACE, message, (other.id, patch.id), patch.file)


def _deprecations(patches: Sequence[Patch]) -> Iterator[Problem]:
    for patch in patches:
        if patch.status is PatchStatus.DEPRECATED:
            better = f"; '{patch.superseded_by}' supersedes it" if patch.superseded_by else ""
            ids = (patch.id, patch.superseded_by) if better else (patch.id,)
            yield Problem(Code.DEPRECATED, f"patch '{patch.id}' is deprecated{better}", ids, patch.file)


def _lost_parts(patches: Sequence[Patch]) -> Iterator[Problem]:
    """What was appended or prepended before a replace of the same section is gone: say so."""
    for index, patch in enumerate(patches):
        if patch.action is not Action.REPLACE:
            continue
        for earlier in patches[:index]:
            if earlier.target_section == patch.target_section and earlier.action in (Action.APPEND, Action.PREPEND):
                message = (
                    f"patch '{earlier.id}' has no effect: '{patch.id}', applied later, replaces "
                    f"section '{patch.target_section}'"
                )
                yield Problem(Code.NO_EFFECT, message, (earlier.id, patch.id), patch.file)


def _find_circle(waits_for: dict[str, set[str]]) -> tuple[str, ...]:
    """One circle among patches that all wait, started at its first id in alphabetical order."""
    stuck = {patch_id for patch_id, needs in waits_for.items() if needs}
    path = [min(stuck)]
    while True:
        following = min(need for need in waits_for[path[-1]] if need in stuck)
        if following in path:
            circle = path[path.index(following) :]
            start = circle.index(min(circle))
            return tuple(circle[start:] + circle[:start])
        path.append(following)
