"""What a package is called."""

import pytest

from astraflow.evolution.skillbank import SkillBankError
from astraflow.evolution.skillbank.packages import PackageId


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("stable:1.0", "stable/1.0"),
        ("experimental:math:a", "experimental/math/a"),
        ("vertical:math:a", "vertical/math/a"),
        ("task:a", "task-packages/a"),
        ("lineage:math:a", "lineage-archive/math/a"),
    ],
)
def test_an_id_reads_back_and_has_a_folder(text: str, folder: str) -> None:
    package_id = PackageId.parse(text)
    assert str(package_id) == text
    assert package_id.folder.as_posix() == folder


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stabel:1", "must start with one of stable:"),
        ("1", "must start with one of"),
        ("stable:math:1", "has no domain in its id"),
        ("vertical:1", r"needs a domain \(--domain\)"),
        ("stable:", "package name '' must be"),
        ("stable:../x", "package name '../x' must be"),
        ("vertical:../x:1", "package domain '../x' must be"),
        ("stable:a b", "package name 'a b' must be"),
    ],
)
def test_what_is_no_id_is_refused(text: str, message: str) -> None:
    with pytest.raises(SkillBankError, match=message):
        PackageId.parse(text)
