"""What a command can see and do from inside its container: nothing that is not its own (faults H20 to H28, H31)."""

from __future__ import annotations

import hashlib
import json
import platform
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from conftest import wait_for
from sandboxes import MIB, SMALL, Shell, containers, in_background, owner

from worker.contract.cancel import Cancel
from worker.sandbox.protocol import Command
from worker.sandbox.sandbox import DockerSandbox

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def status(shell: Shell) -> dict[str, str]:
    """The kernel's word on a command's process: field -> value."""
    lines = shell.text("cat /proc/self/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.parametrize("field", ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])
def test_command_has_no_capability(status: dict[str, str], field: str) -> None:
    """No set of capabilities holds anything, so none can be regained either."""
    assert int(status[field], 16) == 0


def test_command_is_an_ordinary_user_under_a_filter(status: dict[str, str]) -> None:
    """uid 1000, a seccomp filter, and no way to gain privileges by execve."""
    assert (status["Uid"].split()[1], status["Seccomp"], status["NoNewPrivs"]) == ("1000", "2", "1")


def test_engine_sockets_are_out_of_reach(shell: Shell) -> None:
    """No socket of the engine or of containerd is anywhere in the file system."""
    assert shell.text("find / -xdev -type s 2>/dev/null; ls /var/run/docker.sock /run/containerd 2>/dev/null") == ""


def test_processes_of_the_host_are_invisible(shell: Shell) -> None:
    """The first process is our own shell, and a handful is all there is."""
    text = shell.text("tr '\\0' ' ' </proc/1/cmdline | head -c 6; ls -d /proc/[0-9]* | wc -l")
    assert text.startswith("sh -c ")
    assert int(text.removeprefix("sh -c ")) < 10


def test_devices_are_the_harmless_ones(shell: Shell) -> None:
    """/dev holds no disk, no kvm, no fuse, no memory."""
    found = set(shell.text("cd /dev; find . -type c -o -type b").split())
    assert found == {f"./{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "pts/ptmx")}


def test_only_named_folders_are_writable(shell: Shell) -> None:
    """The root is read-only; the workspace's two folders and sized memory are all that can be written."""
    script = """find / -xdev -writable -type d 2>/dev/null
for f in $(cut -d' ' -f2 /proc/mounts) /workspace/*/; do test -d $f -a -w $f && echo $f; done"""
    found = shell.text(script)
    assert set(found.split()) == {
        "/tmp",
        "/dev/shm",
        "/dev/mqueue",
        "/run/dawnfleet",
        "/workspace/repo/",
        "/workspace/home/",
    }


SYSCALLS = """
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": dict(io_uring_setup=425, keyctl=250, bpf=321, userfaultfd=323, perf_event_open=298, add_key=248,
    mount=165, umount2=166, unshare=272, setns=308, pivot_root=155, chroot=161, kexec_load=246, init_module=175,
    open_by_handle_at=304, quotactl=179, fsopen=430, move_mount=429, swapon=167, reboot=169, settimeofday=164,
    iopl=172, acct=163, syslog=103),
  "aarch64": dict(io_uring_setup=425, keyctl=219, bpf=280, userfaultfd=282, perf_event_open=241, add_key=217,
    mount=40, umount2=39, unshare=97, setns=268, pivot_root=41, chroot=51, kexec_load=104, init_module=105,
    open_by_handle_at=265, quotactl=60, fsopen=430, move_mount=429, swapon=224, reboot=142, settimeofday=170,
    acct=89, syslog=116)}[os.uname().machine]
for name, number in numbers.items():
    argument = 0x10000000 if name == "unshare" else 0
    answer = libc.syscall(number, argument, 0, 0, 0, 0)
    print(name, "allowed" if answer >= 0 else errno.errorcode[ctypes.get_errno()])
for name, family in dict(vsock=40, alg=38, packet=17, bluetooth=31, xdp=44).items():
    try:
        socket.socket(family, socket.SOCK_RAW if name == "packet" else socket.SOCK_STREAM)
        print("AF_" + name, "allowed")
    except OSError as error:
        print("AF_" + name, errno.errorcode[error.errno])
clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
for name, flag in dict(newuser=0x10000000, newnet=0x40000000, newns=0x20000, newpid=0x20000000).items():
    answer = libc.syscall(clone, flag | 17, 0, 0, 0, 0)
    if answer == 0:
        os._exit(0)
    print("clone_" + name, "allowed" if answer > 0 else errno.errorcode[ctypes.get_errno()])
"""


def test_dangerous_syscalls_are_refused_by_our_own_filter(shell: Shell) -> None:
    """io_uring, AF_VSOCK, mounts, namespaces, keys, bpf and the rest end in EPERM or ENOSYS before they look at
    their arguments (a plain capability check would say EINVAL or EFAULT for some of these zeros)."""
    answers = dict(line.split() for line in shell.text(f"python3 - <<'E'\n{SYSCALLS}\nE").splitlines())
    assert len(answers) > 30
    assert {name: answer for name, answer in answers.items() if answer not in ("EPERM", "ENOSYS")} == {}


def test_a_program_may_trace_its_own_child(shell: Shell) -> None:
    """Leak sanitizers, debuggers and crash handlers in test suites do. Nothing is gained by refusing the call: of a
    process of the same user /proc/<pid>/mem can be written without it."""
    script = """python3 - <<'E'
import ctypes, os, signal
libc = ctypes.CDLL(None)
child = os.fork()
if not child:
    libc.ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(7)
print(os.WIFSTOPPED(os.waitpid(child, 0)[1]), libc.ptrace(7, child, 0, 0))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
E"""
    assert shell.text(script) == "True 0\n7\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the other door is one of x86")
def test_syscalls_of_32_bit_do_not_pass_by_the_filter(shell: Shell) -> None:
    """`int 0x80` would reach sockets of any family through socketcall: the process dies (SIGSYS or SIGSEGV)."""
    script = """python3 - <<'E'
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("b814000000cd80c3"))  # eax = 20 (getpid), int 0x80, ret
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
print(function())
E"""
    assert shell.run(script).exit_code in (128 + 31, 128 + 11)


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/drop_caches",
        "/proc/sysrq-trigger",
        "/proc/self/oom_score_adj_",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/memory/release_agent",
        "/sys/fs/cgroup/release_agent",
        "/proc/sys/net/ipv4/ip_forward",
    ],
)
def test_switches_of_the_kernel_cannot_be_written(shell: Shell, path: str) -> None:
    """Writing to the kernel's own files is refused, also those that some container escapes used."""
    assert shell.run(f"echo 1 >{path}").exit_code == 1


def test_setuid_program_gains_nothing(sandbox: DockerSandbox) -> None:
    """A root-owned setuid program on the very volume runs as the one who started it."""
    with sandbox.workspace(owner(), "python", SMALL) as workspace:
        shell = Shell(workspace)
        assert shell.run("cp /usr/bin/id id && chmod 4755 id", root=True).exit_code == 0
        assert shell.text("stat -c '%u %a' id; ./id -u") == "0 4755\n1000\n"


@pytest.fixture
def canary() -> Iterator[socket.socket]:
    """A listener on every address of this host."""
    with closing(socket.create_server(("0.0.0.0", 0), backlog=16)) as server:
        server.settimeout(0.2)
        yield server


def test_nothing_outside_can_be_reached(shell: Shell, canary: socket.socket) -> None:
    """Loopback is all there is: not the host, not the bridge, not the cloud's metadata, no name is resolved."""
    port = canary.getsockname()[1]
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect(("192.0.2.1", 9))
        host = probe.getsockname()[0]
    targets = [("127.0.0.1", port), (host, port), ("172.17.0.1", port), ("169.254.169.254", 80)]
    script = f"""python3 - <<'E'
import socket
print(sorted(name for _, name in socket.if_nameindex()))
for target in {targets!r}:
    try:
        socket.create_connection(target, timeout=2)
        print("reached", target)
    except OSError:
        pass
try:
    print("resolved", socket.gethostbyname("secret.example.com"))
except OSError:
    pass
E"""
    assert shell.text(script) == "['lo']\n"
    with pytest.raises(TimeoutError):
        canary.accept()


def test_limits_hold_inside(shell: Shell) -> None:
    """Files, cores and descriptors are bounded; the two caps on memory and swap are one."""
    script = """ulimit -c; ulimit -f; ulimit -n; cd /sys/fs/cgroup
cat memory/memory.limit_in_bytes memory/memory.memsw.limit_in_bytes 2>/dev/null || cat memory.max"""
    text = shell.text(script)
    core, fsize, nofile, *memory = text.split()
    assert (core, int(fsize) * 1024, int(nofile)) == ("0", 64 * MIB, 16_384)
    assert set(memory) == {str(96 * MIB)}


@pytest.mark.parametrize(
    ("kind", "read"), [("secrets", 'printf "%s" "$TOKEN"'), ("secret_files", "cat /run/secrets/TOKEN")]
)
def test_secret_reaches_the_program_and_nothing_else(sandbox: DockerSandbox, kind: str, read: str) -> None:
    """The program has the value, exactly, while the container's description holds neither it nor its name."""
    mine = owner()
    cancel = Cancel()
    value = "canary-7f3a\n'second \"line"
    digest = hashlib.sha256(value.encode()).hexdigest()
    with sandbox.workspace(mine, "python", SMALL) as workspace:
        before = set(containers(sandbox, mine))
        script = f"{read} | sha256sum; seq 100; sleep 60".encode()
        command = Command(script, **{kind: {"TOKEN": value}})  # type: ignore[arg-type]
        with in_background(lambda: workspace.run(command, cancel=cancel)) as returned:
            (called,) = wait_for(lambda: set(containers(sandbox, mine)) - before)
            wait_for(lambda: any(digest in path.read_text() for path in workspace._spool.glob("*.out")))
            described = json.dumps(sandbox._engine._api.inspect_container(called))
            cancel.set("seen enough")
        assert returned[0].cancelled
    assert "canary-7f3a" not in described
    assert "TOKEN" not in described


def test_environment_holds_nothing_of_the_worker(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's own keys are in no process of the container."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "canary-key-in-env")
    monkeypatch.setenv("DAWN_S3_SECRET_ACCESS_KEY", "canary-key-in-env")
    shell.run("true")
    assert "canary-key-in-env" not in shell.text("env; cat /proc/*/environ | tr '\\0' '\\n'")
