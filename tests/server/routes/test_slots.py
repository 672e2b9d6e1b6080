"""Slots saved, restored and erased over HTTP, with the real decoder on a tiny model: restored KV gives the same tokens
bit for bit, under the list it was computed under and no other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.adapters.arguments import AdapterArgument
from server.assembly import load_engine
from server.settings import Settings
from server.slots.file import SlotReader, SlotWriter
from tests.load.stamps import stamp_name, write_adapters, write_model
from tests.server.fakes import FakeExecutor, fake_engine
from tests.server.live import LiveServer

PROMPT = [17 * i % 256 for i in range(70)]
ONE, TWO = stamp_name(0), stamp_name(1)
LIST = [{"name": ONE, "scale": 0.5}, {"name": TWO, "scale": 1.0}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, adapters, and a place for saved slots."""
    path = tmp_path_factory.mktemp("slots")
    write_model(path / "model")
    write_adapters(path / "adapters", range(2))
    (path / "saved").mkdir()
    return path


def settings_of(folder: Path, **values: object) -> Settings:
    loras = tuple(AdapterArgument(str(folder / "adapters" / name)) for name in (ONE, TWO))
    given: dict[str, object] = {"model": folder / "model", "alias": "tiny", "port": 0, "parallel": 2, "threads": 1}
    given |= {"lora": loras, "lora_init_without_apply": True, "slot_save_path": folder / "saved", "dtype": "float32"}
    return Settings.model_validate(given | values)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    with LiveServer(load_engine, settings_of(folder)) as running:
        yield running


@pytest.fixture
def client(server: LiveServer) -> Iterator[httpx.Client]:
    with server.client() as opened:
        yield opened


def ask(client: httpx.Client, prompt: list[int] = PROMPT, **fields: object) -> tuple[Any, int]:
    """The tokens and probabilities of an answer, and how many tokens of its prompt were cached."""
    body = {"prompt": prompt, "n_predict": 20, "n_probs": 5, "temperature": 0, "return_tokens": True, "id_slot": 1}
    response = client.post("/completion", json=body | {"ignore_eos": True} | fields)
    assert response.status_code == 200, response.text
    answer = response.json()
    return (answer["tokens"], answer["completion_probabilities"]), answer["timings"]["cache_n"]


def act(client: httpx.Client, action: str, slot: int | str = 1, **body: object) -> Any:
    """What an action answers."""
    response = client.post(f"/slots/{slot}?action={action}", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(client: httpx.Client, action: str, slot: int | str = 1, **body: object) -> str:
    """Why an action is a 400."""
    response = client.post(f"/slots/{slot}?action={action}", json=body)
    assert response.status_code == 400, response.text
    message: str = response.json()["error"]["message"]
    return message


@pytest.mark.parametrize("lora", [[], LIST], ids=["base", "list"])
def test_a_restored_slot_gives_the_same_tokens(server: LiveServer, client: httpx.Client, lora: object) -> None:
    act(client, "erase")
    first, num_cached = ask(client, lora=lora)
    assert num_cached == 0
    saved = act(client, "save", filename="a.bin")
    assert (saved["id_slot"], saved["filename"], saved["n_saved"]) == (1, "a.bin", 80)
    assert saved["n_written"] == (server.settings.slot_save_path or Path()).joinpath("a.bin").stat().st_size
    assert act(client, "erase") == {"id_slot": 1, "n_erased": 80}
    again, num_cached = ask(client, lora=lora)
    assert (again, num_cached) == (first, 0)
    act(client, "erase")
    restored = act(client, "restore", 3, filename="a.bin")  # slots wrap round
    assert (restored["id_slot"], restored["n_restored"], restored["n_read"]) == (1, 80, saved["n_written"])
    again, num_cached = ask(client, lora=lora)
    assert (again, num_cached) == (first, 64)
    longer, _ = ask(client, PROMPT + first[0][:15], lora=lora, n_predict=5)
    assert longer[0] == first[0][15:]
    assert server.is_idle
    server.engine.loop.scheduler.validate()


def test_a_list_finds_what_was_saved_under_it_alone(client: httpx.Client) -> None:
    ask(client, lora=LIST)
    act(client, "save", filename="list.bin")
    act(client, "erase")
    act(client, "restore", filename="list.bin")
    assert ask(client, lora=[{"name": ONE, "scale": 0.25}, LIST[1]])[1] == 0
    act(client, "erase")
    assert ask(client, lora=LIST)[1] == 64


def test_restoring_what_is_there_changes_nothing(server: LiveServer, client: httpx.Client) -> None:
    first, _ = ask(client)
    act(client, "save", filename="there.bin")
    num_idle = server.engine.loop.scheduler.kv.blocks.num_idle
    assert act(client, "restore", filename="there.bin")["n_restored"] == 80
    assert server.engine.loop.scheduler.kv.blocks.num_idle == num_idle
    assert ask(client) == (first, 64)


def test_another_process_restores_it(folder: Path, client: httpx.Client) -> None:
    act(client, "erase")
    first, _ = ask(client, lora=LIST)
    act(client, "save", filename="kept.bin")
    # Adapters of a folder are loaded when somebody names them.
    late = settings_of(folder, lora=(), lora_init_without_apply=False, lora_dir=folder / "adapters")
    with LiveServer(load_engine, late) as other, other.client() as stranger:
        message = refused(stranger, "restore", filename="kept.bin")
        assert f"it was saved under the adapter list {ONE}:0.5, {TWO}:1" in message
        assert "of adapters the server has none in memory" in message
        assert act(stranger, "restore", filename="kept.bin", lora=LIST)["n_restored"] == 80
        assert ask(stranger, lora=LIST) == (first, 64)


def test_another_list_than_the_request_names_is_refused_by_both_names(client: httpx.Client) -> None:
    ask(client, lora=LIST)
    act(client, "save", filename="named.bin")
    expected = (
        f"Unable to restore slot: it was saved under the adapter list {ONE}:0.5, {TWO}:1, and the request is for "
    )
    assert refused(client, "restore", filename="named.bin", model=ONE) == f"{expected}the adapter list {ONE}:1"
    assert refused(client, "restore", filename="named.bin", lora=[]) == f"{expected}the base model"
    assert act(client, "restore", filename="named.bin", lora=LIST)["n_restored"] == 80


def test_another_model_or_arithmetic_is_refused_by_both_names(folder: Path, client: httpx.Client) -> None:
    ask(client)
    act(client, "save", filename="model.bin")
    write_model(folder / "other")
    config = folder / "other" / "config.json"
    config.write_text(config.read_text() + "\n")
    with LiveServer(load_engine, settings_of(folder, model=folder / "other")) as other, other.client() as stranger:
        message = refused(stranger, "restore", filename="model.bin")
        assert message.startswith("Unable to restore slot: it was saved by another model: ")
        assert message.partition("this server has ")[2] not in message.partition("this server has ")[0]
    reader = SlotReader(folder / "saved" / "model.bin", 1000)
    origin = reader.header.origin | {"dtype": "torch.bfloat16"}
    writer = SlotWriter(folder / "saved" / "dtype.bin", reader.header.model_copy(update={"origin": origin}))
    writer.append(reader.read(reader.num_blocks))
    writer.finish()
    reader.close()
    message = refused(client, "restore", filename="dtype.bin")
    expected = "it was saved by another dtype: torch.bfloat16, this server has torch.float32"
    assert message == f"Unable to restore slot: {expected}"


def test_a_damaged_file_harms_nobody(folder: Path, server: LiveServer, client: httpx.Client) -> None:
    first, _ = ask(client)
    act(client, "save", filename="good.bin")
    content = bytearray((folder / "saved" / "good.bin").read_bytes())
    content[-100] ^= 1
    (folder / "saved" / "bad.bin").write_bytes(content)
    act(client, "erase")
    assert refused(client, "restore", filename="bad.bin") == "Unable to restore slot: block 4 is damaged"
    assert ask(client) == (first, 0)
    server.engine.loop.scheduler.validate()


@pytest.mark.parametrize(
    ("action", "slot", "body", "message"),
    [
        ("save", "x", {"filename": "a"}, "Invalid slot ID"),
        ("save", "-1", {"filename": "a"}, "Invalid slot ID"),
        ("save", "9" * 30, {"filename": "a"}, "Invalid slot ID"),
        ("burn", "0", {"filename": "a"}, "Invalid action"),
        ("save", "1", {"filename": "../a"}, "Invalid filename"),
        ("save", "1", {"filename": ".a"}, "Invalid filename"),
        ("restore", "1", {"filename": "a/b"}, "Invalid filename"),
        ("restore", "1", {"filename": "a\x00"}, "Invalid filename"),
        ("restore", "1", {"filename": "no such"}, "Unable to restore slot: No such file or directory"),
        ("restore", "1", {}, "Field 'filename': is required"),
        ("save", "1", {"filename": 5}, "Field 'filename': type must be string, but is number"),
        ("save", "0", {"filename": "a"}, "Unable to save slot: slot 0 has had no request yet"),
    ],
)
def test_what_cannot_be_done_is_told(
    client: httpx.Client, action: str, slot: str, body: dict[str, object], message: str
) -> None:
    assert refused(client, action, slot, **body) == message


def test_a_slot_that_never_ran_has_nothing_to_erase(client: httpx.Client) -> None:
    assert act(client, "erase", 0) == {"id_slot": 0, "n_erased": 0}


def test_without_a_folder_there_are_no_actions() -> None:
    with LiveServer(lambda settings: fake_engine(FakeExecutor(), settings)) as server, server.client() as client:
        response = client.post("/slots/0?action=erase")
        assert response.status_code == 501
        message = "This server does not support slots action. Start it with `--slot-save-path`"
        assert response.json()["error"]["message"] == message


def test_a_folder_that_is_none_ends_the_start(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"--slot-save-path .*: not a directory"):
        load_engine(settings_of(folder, slot_save_path=folder / "model" / "config.json"))
