"""A skill's manifest: its base, which patches are active in which order, and named variants of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astraflow.errors import suggestion
from astraflow.evolution.skillbank.problem import Code, Problem, SkillBankError
from astraflow.evolution.skillbank.text_file import Fields, read_mapping, to_yaml


@dataclass(frozen=True)
class Profile:
    """A variant of the active patches, chosen with `-p NAME`."""

    description: str
    active: tuple[str, ...] | None
    """Takes the place of the manifest's active list; None leaves it."""
    disabled: tuple[str, ...]
    """Taken out of that list."""


@dataclass(frozen=True)
class Manifest:
    """What `manifest.yaml` says."""

    file: Path
    base: str
    active: tuple[str, ...]
    """Patch ids in the order in which they apply, dependencies aside."""
    disabled: tuple[str, ...]
    """Patch ids that are known and not active; a note for readers."""
    profiles: Mapping[str, Profile]

    @classmethod
    def read(cls, file: Path) -> Manifest:
        """Read and check a manifest. SkillBankError names the key or id that is wrong."""
        fields = Fields(read_mapping(file), file).only("base", "active", "disabled", "profiles")
        manifest = cls(
            file=file,
            base=fields.text("base", "base.md"),
            active=fields.texts("active"),
            disabled=fields.texts("disabled"),
            profiles={name: _profile(inner) for name, inner in fields.mappings("profiles").items()},
        )
        _check_ids(manifest.active, manifest.disabled, "", fields)
        for name, profile in manifest.profiles.items():
            _check_ids(profile.active or (), profile.disabled, f"profile '{name}': ", fields)
        return manifest

    def active_in(self, profile: str | None) -> tuple[str, ...]:
        """The active patches, in order, of a profile or (None) of the manifest itself."""
        if profile is None:
            return self.active
        if profile not in self.profiles:
            known = sorted(self.profiles)
            message = f"unknown profile '{profile}'{suggestion(profile, known)}; known: {', '.join(known) or 'none'}"
            raise SkillBankError(Problem(Code.UNKNOWN_SKILL, message, (profile,), self.file))
        chosen = self.profiles[profile]
        listed = self.active if chosen.active is None else chosen.active
        return tuple(patch_id for patch_id in listed if patch_id not in chosen.disabled)

    def with_active(self, active: tuple[str, ...]) -> Manifest:
        """The manifest with another active list; what becomes active is no longer disabled."""
        return replace(self, active=active, disabled=tuple(i for i in self.disabled if i not in active))

    def render(self) -> str:
        """The text of this manifest's file."""
        values: dict[str, Any] = {"base": self.base, "active": list(self.active), "disabled": list(self.disabled)}
        if self.profiles:
            values["profiles"] = {name: _profile_values(profile) for name, profile in self.profiles.items()}
        return to_yaml(values)


def _profile(fields: Fields) -> Profile:
    fields.only("description", "active", "disabled")
    active = fields.texts("active") if fields.values.get("active") is not None else None
    return Profile(fields.text("description"), active, fields.texts("disabled"))


def _profile_values(profile: Profile) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if profile.description:
        values["description"] = profile.description
    if profile.active is not None:
        values["active"] = list(profile.active)
    if profile.disabled:
        values["disabled"] = list(profile.disabled)
    return values


def _check_ids(active: tuple[str, ...], disabled: tuple[str, ...], where: str, fields: Fields) -> None:
    for patch_id in active:
        if active.count(patch_id) > 1:
            raise fields.error(f"{where}patch '{patch_id}' is active twice")
        if patch_id in disabled:
            raise fields.error(f"{where}patch '{patch_id}' is both active and disabled")
