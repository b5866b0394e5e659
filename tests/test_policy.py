"""The short list: what is refused, what needs a person, and above all what it must leave alone."""

from __future__ import annotations

import pytest

from worker.policy import command_ruling


@pytest.mark.parametrize(
    "command",
    [
        "git push",
        "git push --force origin main",
        "git -C /workspace/repo push",
        "cd pkg && git push origin HEAD",
        "make; /usr/bin/git push",
        "if true; then git push; fi",
        "GIT_SSH_COMMAND=ssh git push",
        "(git push)",
        "npm publish",
        "twine upload dist/*",
        "cargo publish",
        "docker push x/y",
    ],
)
def test_publishing_is_refused(command: str) -> None:
    """Delivery is not the agent's part."""
    assert command_ruling(command).action == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "terraform destroy -auto-approve",
        "terraform -chdir=infra apply",
        "kubectl delete ns prod",
        "kubectl -n prod delete pod x",
        'psql -c "DROP TABLE users"',
        "mysql -e 'drop database x'",
        "dropdb x",
    ],
)
def test_what_cannot_be_undone_needs_a_person(command: str) -> None:
    """A question, not a refusal."""
    assert command_ruling(command).action == "ask"


@pytest.mark.parametrize(
    "command",
    [
        'grep "DROP TABLE" -r migrations',
        "echo git push",
        "git log --grep push",
        "git commit -m 'git push later'",
        "git stash push",
        "npm run publish-docs",
        "cat > README <<'EOF'\ngit push origin main\nEOF",
        "# git push would be next\nls",
        "python - <<EOF\nprint('git push')\nEOF\necho done",
        "psql -c 'select 1'",
        "kubectl get pods",
        "terraform plan -destroy",
        "rm -rf build && make",
        "git diff | grep push",
        "echo 'unbalanced",
        "",
    ],
)
def test_harmless_commands_run(command: str) -> None:
    """Words about an act are not the act."""
    assert command_ruling(command).action == "allow"


def test_the_stricter_ruling_wins() -> None:
    """A script with both is refused."""
    assert command_ruling("terraform apply; git push").action == "deny"
