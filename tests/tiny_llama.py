"""Owns a llama.cpp server on a model of a hundred kilobytes: `python tests/tiny_llama.py FOLDER` prints its address.
Refuses to download a model: it writes one.

The weights are random but for this: where tools are offered the model says one call and ends; where there are only
instructions, as for a summary, it says two words and ends; else it never stops by itself. A byte is a token.
"""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CONTEXT_TOKENS = 12_288
WHEELS = ("x86_64", "aarch64", "arm64")
"""Machines that xllamacpp has wheels for."""

CALL = '<tool_call>\n{"name": "run_command", "arguments": {"command": "ls"}}\n</tool_call>'
NOTES = "Short notes."
TEMPLATE = """
{%- if tools %}<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}user: <tool_response>
{{ message.content }}
</tool_response>
{% else %}{{ message.role }}: {{ message.content or "" }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}assistant: {% if tools %}<|calls|>
{%- elif messages[0].role == "system" %}<|notes|>{% endif %}{% endif %}"""

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["<unk>", "<s>", "</s>", "<|calls|>", "<|notes|>", CALL, NOTES, *BYTES]
UNKNOWN, BEGIN, END, CALLS_ASKED, NOTES_ASKED, CALL_SAID, NOTES_SAID = range(7)
NORMAL, UNKNOWN_KIND, CONTROL, BYTE = 1, 2, 3, 6
KINDS = [UNKNOWN_KIND, CONTROL, CONTROL, CONTROL, CONTROL, NORMAL, NORMAL, *[BYTE] * 256]
WIDTH, HEADS, INNER = 32, 2, 64


def write(path: Path) -> None:
    """A model of one layer, whose next word depends on the last one alone."""
    import gguf
    import numpy as np

    random = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    # The first number of a word's vector says whether words must follow it, the second whether the end must.
    vectors, heads = drawn(len(WORDS), WIDTH), 0.2 * drawn(len(WORDS), WIDTH)
    vectors[:, :2], heads[:, :2] = 10, 0
    vectors[[CALLS_ASKED, NOTES_ASKED], 0] = vectors[[CALL_SAID, NOTES_SAID], 1] = -10
    heads[[UNKNOWN, BEGIN, CALLS_ASKED, NOTES_ASKED], :2] = -100
    heads[CALL_SAID], heads[NOTES_SAID] = 10 * vectors[CALLS_ASKED], 10 * vectors[NOTES_ASKED]
    heads[END] = 10 * (vectors[CALL_SAID] + vectors[NOTES_SAID])
    heads[[CALL_SAID, NOTES_SAID], 1] = heads[END, 0] = 0

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(WORDS)
    writer.add_token_scores([0.0] * len(WORDS))
    writer.add_token_types(KINDS)
    writer.add_unk_token_id(UNKNOWN)
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(END)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    tensors = {
        "token_embd": vectors,
        "output": heads,
        "output_norm": np.ones(WIDTH, np.float32),
        "blk.0.attn_norm": np.ones(WIDTH, np.float32),
        "blk.0.ffn_norm": np.ones(WIDTH, np.float32),
        **{f"blk.0.attn_{name}": drawn(WIDTH, WIDTH) for name in "qkv"},
        "blk.0.attn_output": np.zeros((WIDTH, WIDTH), np.float32),
        "blk.0.ffn_gate": drawn(INNER, WIDTH),
        "blk.0.ffn_up": drawn(INNER, WIDTH),
        "blk.0.ffn_down": np.zeros((WIDTH, INNER), np.float32),
    }
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def serve(folder: Path) -> None:
    """Serve until a signal ends this process."""
    import xllamacpp

    write(folder / "tiny.gguf")
    wanted = xllamacpp.CommonParams()
    wanted.model.path = str(folder / "tiny.gguf")
    wanted.n_ctx, wanted.n_parallel, wanted.cpuparams.n_threads = CONTEXT_TOKENS, 1, 1
    wanted.port, wanted.use_jinja, wanted.warmup = 0, True, False
    server = xllamacpp.Server(wanted)
    print(server.listening_address, flush=True)
    signal.pause()


@dataclass(frozen=True)
class Llama:
    """Where it listens, and what it writes of what it does."""

    url: str
    log: Path

    def begun(self) -> int:
        """How many replies it began to write."""
        return self.log.read_text().count("processing task")

    def given_up(self) -> int:
        """How many of them it stopped to write because nobody waited any more."""
        return self.log.read_text().count("cancel task")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """A llama.cpp server with the tiny model."""
    if platform.machine() not in WHEELS:
        pytest.skip(f"xllamacpp has no wheel for {platform.machine()}")
    folder = tmp_path_factory.mktemp("llama")
    log_path = folder / "log"
    with log_path.open("wb") as log:
        command = [sys.executable, __file__, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, log_path.read_text()
            yield Llama(address, log_path)
            process.kill()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
