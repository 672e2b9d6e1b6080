"""The parts of `make bench-peer` that need neither server."""

import json
import math
import os
import tarfile
from io import BytesIO
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors.numpy

from tests.load.client import Stream
from tests.load.peer import Peer, cmake_flags, find_peer, quantise, unpack_source
from tests.load.peer_adapters import RANK, make_adapter
from tests.load.peer_compare import by_setup
from tests.load.peer_figures import Figures, Span, condense, fastest, percentile, ratios, spread, summarise
from tests.load.peer_perplexity import MAX_SEGMENT, forcing_body, segments
from tests.load.peer_report import Comparison, adapter_overhead, comparison_lines, json_line, start_lines
from tests.load.peer_servers import Contender, Setup, Start, peak_rss_bytes
from tests.load.peer_workloads import FOUR_LISTS, WORKLOADS, choose
from tests.model.tiny import make_model, write_gguf


def stream(sent_s: float, *token_times_s: float) -> Stream:
    return Stream(sent_s, token_times_s=list(token_times_s))


def figures(tokens_per_s: float, ttft_s: float = 1.0, **list_tokens: int) -> Figures:
    return Figures(tokens_per_s, 10.0, [ttft_s], [0.1], list_tokens or {"a": 1})


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, p) for p in (0, 50, 90, 99, 100)] == [1, 50, 90, 99, 100]
    assert percentile([7.0], 50) == 7.0
    assert math.isnan(percentile([], 50))


def test_only_what_comes_in_the_span_counts() -> None:
    first = [stream(0.0, 0.5, 1.5, 2.0), stream(2.0, 2.5)]
    second = [stream(0.5, 2.75, 3.0)]
    found = condense(["a", "b"], [first, second], Span(1.0, 3.0), num_prompt=10)
    assert found.list_tokens == {"a": 3, "b": 1}
    assert found.tokens_per_s == 2.0
    assert found.prompt_tokens_per_s == 10.0
    assert found.ttfts_s == [0.5, 2.25]
    assert found.gaps_s == [1.0, 0.5]
    assert found.worst_list == 1


def test_clients_of_one_list_count_together() -> None:
    found = condense(["a", "a", "b"], [[stream(0, 1)], [stream(0, 1)], [stream(0, 1)]], Span(0, 2), 1)
    assert found.list_tokens == {"a": 2, "b": 1}
    assert found.jain == pytest.approx(0.9)


def test_a_request_that_waits_in_vain_counts_with_the_time_it_has_waited() -> None:
    served, starved, fresh = stream(0.0, 1.5), stream(0.0), stream(2.5)
    found = condense(["a", "b", "c"], [[served], [starved], [fresh]], Span(1.0, 3.0), 1)
    assert found.ttfts_s == [1.5, 3.0]
    assert found.num_unserved == 1
    assert found.worst_list == 0


def test_ratios_are_taken_round_by_round() -> None:
    compared = ratios([figures(30), figures(10), figures(40)], [figures(10), figures(10), figures(20)])
    assert (compared["tokens_per_s"].median, compared["tokens_per_s"].least, compared["tokens_per_s"].most) == (2, 1, 3)
    assert compared["ttft_p50"].median == 1.0
    assert math.isnan(ratios([figures(1)], [figures(0)])["tokens_per_s"].median)


def test_a_spread_with_a_missing_round_is_missing() -> None:
    assert math.isnan(spread([1.0, math.nan]).median)


def test_a_summary_pools_the_samples_of_all_rounds() -> None:
    summary = summarise([figures(1, 0.1), figures(5, 0.2), figures(3, 0.3)])
    assert summary.tokens_per_s == 3
    assert summary.ttft_ms == {"p50": 200.0, "p90": 300.0, "p99": 300.0}
    assert summary.rounds == [1, 5, 3]


def test_the_fastest_quantisation_wins_the_probe_the_first_of_equals() -> None:
    assert fastest({"as shipped": 1.0, "Q4_0": 3.0, "Q8_0": 3.0}) == "Q4_0"


def test_every_workload_has_a_setup_with_a_seat_for_each_client() -> None:
    for workload in WORKLOADS:
        assert len(workload.lists) <= workload.setup.slots
        assert workload.num_prompt + workload.num_output <= workload.setup.context
        used = {index for adapters in workload.lists for index, _ in adapters}
        assert used == set(range(workload.setup.num_adapters))
    assert len(set(FOUR_LISTS)) == 4
    assert sum(len(group) for group in by_setup(WORKLOADS).values()) == len(WORKLOADS)


def test_workloads_are_chosen_by_name_or_by_its_beginning() -> None:
    assert [workload.name for workload in choose("base-1")] == ["base-1"]
    assert [workload.name for workload in choose("long,base-4")] == ["base-4", "long-prompts", "long-contexts"]
    with pytest.raises(SystemExit, match="there is no workload 'gpu'"):
        choose("base-1,gpu")


def test_a_shortened_workload_differs_only_where_the_number_of_requests_is_fixed() -> None:
    timed, fixed = choose("base-16")[0], choose("long-prompts")[0]
    assert timed.shortened() is timed
    assert (len(fixed.shortened().lists), fixed.shortened().requests_per_client) == (2, 1)


def test_first_answers_spread_the_clients_over_time() -> None:
    timed, fixed = choose("base-16")[0], choose("long-contexts")[0]
    assert [timed.first_output(client) for client in range(16)] == list(range(4, 65, 4))
    assert choose("base-1")[0].first_output(0) == 64
    assert {fixed.first_output(client) for client in range(8)} == {128}


def test_segments_cover_the_window_and_hold_no_token_within_reach_of_itself() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 3, 3, 4, 3, 12, 13, 4, 14, 15, 16, 17, 18, 19, 20]
    found = segments(tokens, 2)
    assert [begin for begin, _ in found] == [2, *(end for _, end in found[:-1])]
    assert found[-1][1] == len(tokens)
    assert found[0] == (2, 2 + MAX_SEGMENT)
    for begin, end in found:
        assert generated(tokens, begin, end) == tokens[begin:end]


def generated(tokens: list[int], begin: int, end: int) -> list[int]:
    """What a server makes of a forcing request, whatever its model: these logits are against it."""
    body = forcing_body(tokens, begin, end)
    history = list(body["prompt"])
    assert history == tokens[:begin]
    for _ in range(body["n_predict"]):
        logits = dict.fromkeys(range(50), 40.0)
        for token, bias in body["logit_bias"]:
            logits[token] += bias - 80.0
        for token in set(history[-body["repeat_last_n"] :] if body["repeat_last_n"] else []):
            logits[token] -= body["presence_penalty"]
        history.append(max(logits, key=lambda token: logits[token]))
    return history[begin:]


def test_both_servers_get_the_same_seats_and_each_its_own_files() -> None:
    setup = Setup("adapters", slots=4, context=128, num_adapters=1, is_lean=True)
    contender = Contender("ours", "", ("serve",), Path("m"), (Path("a"), Path("b")), ("--flag",), ("--lean",))
    command = contender.command(setup, threads=2, port=81)
    assert " ".join(command) == "serve -m m --host 127.0.0.1 --port 81 -np 4 -c 512 -t 2 --lora a --flag --lean"


def test_the_report_ends_with_a_line_of_json_without_nan() -> None:
    base = Comparison("base-16", "Q4_0", {"Q4_0": 5.0}, ours=[figures(30)], peer=[figures(20)], our_perplexity=9.5)
    adapted = Comparison("adapter-16", "BF16", {"BF16": 5.0}, ours=[figures(27)], peer=[figures(10)])
    starts = {("base", "ours"): [Start(1.0, 1.5, 500_000_000)]}
    overheads = adapter_overhead([base, adapted])
    assert overheads["adapter-16"]["ours"].median == pytest.approx(0.9)
    assert overheads["adapter-16"]["peer"].median == pytest.approx(0.5)
    report = json.loads(json_line({"cpu": "x"}, {"rounds": 1}, [base, adapted], starts))
    assert report["workloads"]["base-16"]["ratios"]["tokens_per_s"] == {"median": 1.5, "least": 1.5, "most": 1.5}
    assert report["workloads"]["base-16"]["ours"]["perplexity"] == 9.5
    assert report["workloads"]["base-16"]["peer"]["perplexity"] is None
    assert report["starts"]["base ours"] == {"ready_s": 1.0, "first_token_s": 1.5, "peak_rss_mb": 500.0}
    assert "tok/s 1.50 [1.50 to 1.50]" in comparison_lines(base)[2]
    assert "500" in start_lines(starts)[1]


def test_peak_memory_is_read_of_a_running_process() -> None:
    assert peak_rss_bytes(os.getpid()) > 10_000_000


def test_a_peer_that_is_no_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_SERVER", str(tmp_path / "llama-server"))
    with pytest.raises(SystemExit, match="llama-server is not a program"):
        find_peer(tmp_path)


@pytest.mark.parametrize(
    ("cpu_flags", "is_kept_from_amx"), [("fpu avx512f amx_tile amx_int8", True), ("fpu avx2", False)]
)
def test_a_peer_built_where_there_is_amx_does_not_use_it(cpu_flags: str, is_kept_from_amx: bool) -> None:
    flags = cmake_flags(f"processor\t: 0\nflags\t\t: {cpu_flags}\nbugs\t\t:\n")
    assert "-DCMAKE_BUILD_TYPE=Release" in flags
    for language in ("C", "CXX"):
        flag = f"-DCMAKE_{language}_FLAGS=-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
        assert (flag in flags) == is_kept_from_amx


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_quantisations_are_made_once(tmp_path: Path) -> None:
    model = tmp_path / "model.Q4_1.gguf"
    model.write_bytes(b"weights")
    # llama-quantize --allow-requantize IN OUT TYPE
    peer = Peer(tmp_path / "llama-server", program(tmp_path / "llama-quantize", 'echo "$4" > "$3"'))
    files = quantise(peer, model, tmp_path / "made", ("Q4_0", "BF16"))
    assert list(files) == ["as shipped", "Q4_0", "BF16"]
    assert files["as shipped"] == model
    assert files["BF16"].read_text(encoding="utf-8") == "BF16\n"
    program(peer.quantize, "exit 1")
    assert quantise(peer, model, tmp_path / "made", ("Q4_0", "BF16")) == files
    with pytest.raises(SystemExit, match="exit code 1"):
        quantise(peer, model, tmp_path / "made", ("Q8_0",))


def archive(**contents: bytes) -> bytes:
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size = len(content)
            tar.addfile(entry, BytesIO(content))
    return packed.getvalue()


def test_only_the_peers_source_is_unpacked(tmp_path: Path) -> None:
    unpack_source(archive(pkg__other=b"x", **{"pkg__llama.cpp__CMakeLists.txt": b"cmake"}), tmp_path)
    assert (tmp_path / "llama.cpp" / "CMakeLists.txt").read_bytes() == b"cmake"
    assert [path.name for path in tmp_path.iterdir()] == ["llama.cpp"]
    with pytest.raises(SystemExit, match="no directory"):
        unpack_source(archive(pkg__other=b"x"), tmp_path)


def test_an_adapter_is_the_same_in_both_forms(tmp_path: Path) -> None:
    """As the servers read it; that the rows of q and k are reordered is what `interleave_halves` is tested for."""
    write_gguf(make_model("llama", tmp_path / "hf"), tmp_path / "model.gguf")
    files = make_adapter(tmp_path / "model.gguf", tmp_path / "adapters", seed=3)
    peft = safetensors.numpy.load_file(files.peft / "adapter_model.safetensors")
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(files.gguf["F32"]).tensors}
    down = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"
    assert np.array_equal(peft[down], tensors["blk.1.ffn_down.weight.lora_b"])
    query = peft["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"]
    assert query.shape[1] == RANK
    assert not np.array_equal(query, tensors["blk.0.attn_q.weight.lora_b"])
    assert np.array_equal(np.sort(query, axis=0), np.sort(tensors["blk.0.attn_q.weight.lora_b"], axis=0))
    assert len(peft) == len(tensors) == 2 * 7 * 2
