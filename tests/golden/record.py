"""Records the golden run anew: `python tests/golden/record.py`, where a change of the harness is meant.

Needs an engine. Refuses to be clever: what is kept is the archive as a worker wrote it.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from deployments import Deployment

PLACE: Final = Path(__file__).with_name("replay.tar")
SCRIPT: Final = """
- calls: [{tool: run_checks, arguments: {}}]
- text: The answer is 42 now.
- calls:
    - {tool: update_plan, arguments: {items: [{text: write 42, status: doing}]}}
    - {tool: edit_file, arguments: {path: answer.txt, old_text: "41", new_text: "42"}}
    - {tool: nothing, arguments: {}}
    - {tool: delegate, arguments: {goal: What is the answer?}}
- calls:
    - {tool: run_command, arguments: {command: 'git push'}}
    - {tool: run_command, arguments: {command: 'mkdir d && mv answer.txt d && ls; exit 7'}}
    - {tool: run_command, arguments: {command: 'mv d/answer.txt . && rmdir d && cat answer.txt'}}
    - {tool: search, arguments: {pattern: "42"}}
- text: Now it is.
- delegate: answer
  replies:
    - calls: [{tool: run_command, arguments: {command: 'cat answer.txt; touch new'}}]
    - {expect: '42', text: It is 42.}
"""


def main() -> None:
    """One run with a command, red checks that are fed back, mistakes, a delegate, a denied call and a good end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "code").mkdir()
        (folder / "code" / "answer.txt").write_text("41\n")
        (folder / "script.yaml").write_text(SCRIPT)
        deployment = Deployment(folder)
        words = ("Make it 42.", "--model", "scripted:script.yaml", "--command", "echo begun > begun.txt")
        check = "answer=cat answer.txt; grep -q 42 answer.txt"
        done = deployment.dawn(
            "run", *words, "--repo", "code", "--check", check, "--key", "golden", cwd=folder, timeout_s=600
        )
        assert done.code == 0, done
        with tarfile.open(PLACE, "w") as tar:
            for part in ("batches", "environments", "runs"):
                tar.add(folder / "archive" / part, part, filter=_nobody_s)


def _nobody_s(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without who wrote it here and when."""
    return entry.replace(uid=0, gid=0, uname="", gname="", mtime=0, deep=False)


if __name__ == "__main__":
    main()
