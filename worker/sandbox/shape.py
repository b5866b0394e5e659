"""Owns what a container looks like: the hardening, limits, mounts and labels of every container we create.
Refuses to talk to an engine: it only makes bodies for Engine.create.

Secrets and variables are not here: they travel on the stream, so that `docker inspect` shows none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from posixpath import normpath
from typing import Any, Final

from worker.contract.errors import EnvironmentFault
from worker.contract.task import Limits
from worker.sandbox.protocol import SECRETS, Owner, Role

LABEL: Final = "dawnfleet"
AGENT_UID: Final = 1000
MIB: Final = 2**20
STREAM_DIR: Final = "/run/dawnfleet"
"""A folder no image has, for what arrives on the stream: a tmpfs there gets exactly the mode it is given."""
WORKSPACE: Final = "/workspace"
MOUNTED: Final = (WORKSPACE, STREAM_DIR, "/tmp", "/dev/shm")
"""Where something of ours lies over the image."""
STREAM_BYTES: Final = 64 * MIB
SHM_BYTES: Final = 64 * MIB
SECRETS_BYTES: Final = 4 * MIB
"""Sixteen of the longest that an environment can hold."""
NOFILE: Final = 16_384
"""The engine cannot give more than its own hard limit, and then no container starts: 20,000 is one that was met."""
KEEPER_MEMORY_BYTES: Final = 512 * MIB
KEEPER_PIDS: Final = 64

KEEPER_CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID")
SETUP_CAPABILITIES: Final = (*KEEPER_CAPABILITIES, "KILL", "SETFCAP", "SETGID", "SETUID")
"""What package managers need to install as root: they change users and owners. No raw sockets, no devices."""


def labels(owner: Owner) -> dict[str, str]:
    """The labels that say whose a container or volume is."""
    return {
        LABEL: "1",
        f"{LABEL}.archive": owner.archive,
        f"{LABEL}.run": owner.run,
        f"{LABEL}.claim": str(owner.claim),
        f"{LABEL}.role": owner.role,
    }


def owner(found: Mapping[str, str]) -> Owner | None:
    """The owner that `labels` wrote, None when these are not our labels."""
    role: Role
    for role in ("agent", "prepare", "baseline", "verdict"):
        if found.get(f"{LABEL}.role") == role:
            break
    else:
        return None
    archive, run, claim = (found.get(f"{LABEL}.{name}", "") for name in ("archive", "run", "claim"))
    return Owner(archive, run, int(claim), role) if archive and run and claim.isdecimal() else None


def call(
    owner: Owner,
    image: str,
    volume: str,
    limits: Limits,
    *,
    entrypoint: Sequence[str],
    image_volumes: Mapping[str, str],
    network: str,
    writes: bool,
    root: bool,
    cpus: int,
    secrets: bool = False,
) -> dict[str, Any]:
    """A container for one call. image_volumes: path that the image declares as a volume -> volume to mount there.
    network: `none`, `bridge` or `container:<keeper>`. cpus: what the engine has. secrets: files of them will come."""
    body = _body(owner, image, volume, entrypoint, limits.memory_bytes, limits.pids)
    host = body["HostConfig"]
    host["NetworkMode"] = network
    host["NanoCpus"] = int(min(limits.cpus, cpus) * 1e9)
    host["Mounts"][0]["ReadOnly"] = not writes
    # Left to the engine each were a nameless volume: writable, and on the disk that all share. Like the root they are
    # read-only instead; the engine lays down what the image has there.
    host["Mounts"] += [
        {"Type": "volume", "Source": volume, "Target": path, "ReadOnly": True}
        for path, volume in image_volumes.items()
        if not (secrets and path == SECRETS)
    ]
    # A file larger than the whole workspace may be is never right, and a full disk hurts everybody.
    host["Ulimits"].append(_ulimit("fsize", limits.workspace_bytes))
    uid = 0 if root else AGENT_UID
    if root:
        host["CapAdd"] = list(KEEPER_CAPABILITIES)
    body["User"] = f"{uid}:{uid}"
    host["Tmpfs"] = {
        STREAM_DIR: f"rw,noexec,nosuid,nodev,size={STREAM_BYTES},nr_inodes=64,mode=0755,uid={uid},gid={uid}",
        # Builds run programs from /tmp, so it is the one that may.
        "/tmp": f"rw,exec,nosuid,nodev,size={limits.tmpfs_bytes},nr_inodes={limits.tmpfs_inodes},mode=1777",
        "/dev/shm": f"rw,noexec,nosuid,nodev,size={SHM_BYTES},nr_inodes={limits.tmpfs_inodes},mode=1777",
    }
    if secrets:
        mode = f"mode=0700,uid={uid},gid={uid}"
        host["Tmpfs"][SECRETS] = f"rw,noexec,nosuid,nodev,size={SECRETS_BYTES},nr_inodes=64,{mode}"
    return body


def setup(
    owner: Owner,
    image: str,
    volume: str,
    limits: Limits,
    *,
    entrypoint: Sequence[str],
    image_volumes: Mapping[str, str],
    cpus: int,
    secrets: bool = False,
) -> dict[str, Any]:
    """A root container with network whose filesystem is to become an image: the only one that may write its root.

    /tmp is memory here too, so that nothing of it is committed: half of the memory limit.
    """
    wide = limits.model_copy(update={"tmpfs_bytes": max(limits.tmpfs_bytes, limits.memory_bytes // 2)})
    body = call(
        owner,
        image,
        volume,
        wide,
        entrypoint=entrypoint,
        image_volumes=image_volumes,
        network="bridge",
        writes=True,
        root=True,
        cpus=cpus,
        secrets=secrets,
    )
    body["HostConfig"] |= {"ReadonlyRootfs": False, "CapAdd": list(SETUP_CAPABILITIES)}
    return body


def keeper(owner: Owner, image: str, volume: str, *, entrypoint: Sequence[str]) -> dict[str, Any]:
    """The container that owns a volume and the network namespace of its calls; runs only our code."""
    body = _body(owner, image, volume, entrypoint, KEEPER_MEMORY_BYTES, KEEPER_PIDS)
    body["User"] = "0:0"
    body["HostConfig"] |= {
        "NetworkMode": "none",
        "CapAdd": list(KEEPER_CAPABILITIES),
        "Tmpfs": {"/tmp": f"rw,noexec,nosuid,nodev,size={64 * MIB},nr_inodes=1000,mode=1777"},
    }
    return body


def image_volumes(declared: Iterable[str]) -> list[str]:
    """Of the paths that an image declares as volumes, those where nothing of ours is mounted. Raises
    EnvironmentFault("image") for one that would hide the workspace, or a folder that a mount of ours must be made in.
    """
    found = []
    for path in sorted({normpath(f"/{path.lstrip('/')}") for path in declared} - set(MOUNTED)):
        if path.startswith(f"{WORKSPACE}/") or any(ours.startswith(f"{path.rstrip('/')}/") for ours in MOUNTED):
            raise EnvironmentFault(
                "image", f"the image declares a volume at {path}, where {WORKSPACE} or a folder of ours is mounted"
            )
        found.append(path)
    return found


def image_changes() -> list[str]:
    """What turns the configuration of a setup container back into an image's: without our program and labels, or
    everything started from the image would look like ours."""
    return [
        # An empty one would be taken for none given, and ours would stay.
        'ENTRYPOINT ["sh"]',
        f"LABEL {LABEL}=image " + " ".join(f"{LABEL}.{name}=-" for name in ("archive", "run", "claim", "role")),
    ]


def _body(
    owner: Owner, image: str, volume: str, entrypoint: Sequence[str], memory_bytes: int, pids: int
) -> dict[str, Any]:
    return {
        "Image": image,
        "Entrypoint": list(entrypoint),
        "Cmd": [],
        "WorkingDir": "/",
        "Labels": labels(owner),
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        # The end of our connection is the end of its stdin: a dead driver's parked containers end by themselves.
        "StdinOnce": True,
        "Tty": False,
        "Healthcheck": {"Test": ["NONE"]},
        # A shell that is PID 1 ignores TERM: the engine's own stop would wait 10 s for each, and would not thaw
        # a frozen one before it kills it.
        "StopSignal": "SIGKILL",
        "HostConfig": {
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true", f"seccomp={_seccomp()}"],
            "IpcMode": "private",
            "Init": False,
            "Memory": memory_bytes,
            "MemorySwap": memory_bytes,
            "PidsLimit": pids,
            "Ulimits": [_ulimit("core", 0), _ulimit("nofile", NOFILE)],
            "LogConfig": {"Type": "none"},
            "Mounts": [
                {
                    "Type": "volume",
                    "Source": volume,
                    "Target": WORKSPACE,
                    "ReadOnly": False,
                    # An image that has files at /workspace must not fill the volume with them.
                    "VolumeOptions": {"NoCopy": True},
                }
            ],
        },
    }


def _ulimit(name: str, value: int) -> dict[str, Any]:
    return {"Name": name, "Soft": value, "Hard": value}


@cache
def _seccomp() -> str:
    return (resources.files("worker.sandbox") / "seccomp.json").read_text(encoding="utf-8")
