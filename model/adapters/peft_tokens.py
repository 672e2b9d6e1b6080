"""What a PEFT adapter changes in the embedding and the head: low-rank deltas, and rows of single tokens.

PEFT can put a whole matrix in the place of either (`modules_to_save`), train rows of single tokens
(`trainable_token_indices`), and it saves the base model's own two matrices where the vocabulary was resized or where it
adapts them. Of all that only the rows are kept that differ from the base model's; added tokens are rows beyond its
vocabulary. With a tied head this is, part by part, what PEFT computes on a fresh base model: a saved matrix or a delta
changes the one of the two it belongs to, unless `ensure_weight_tying` is set; rows of single tokens change both.

V the base model's vocabulary, D hidden, R rank, n changed tokens.
"""

from dataclasses import dataclass

import torch

from model.adapters.adapter import EmbeddingDelta, LoraDelta, TokenRows
from model.adapters.changed_rows import ChangedRows
from model.adapters.peft_deltas import DeltaReader, Pair
from model.adapters.peft_fields import CONFIG_FILE, MERGE, refused
from model.adapters.peft_targets import EMBEDDING, HEAD
from model.adapters.peft_tensors import WEIGHTS_FILE, Part
from model.adapters.tensors import AdapterError, NamedTensor


@dataclass(frozen=True, slots=True)
class TokenChanges:
    """What an adapter changes in the two matrices that have a row for each token."""

    embedding: EmbeddingDelta | None
    head: LoraDelta | None
    embedding_rows: TokenRows | None
    head_rows: TokenRows | None


@dataclass(slots=True)
class _Found:
    """What the file has for one of the two matrices."""

    whole: NamedTensor | None = None  # (V or more, D), in place of the base model's
    tokens: NamedTensor | None = None  # (n, D)
    token_ids: tuple[int, ...] = ()


class TokenReader:
    """Takes them out of the tensors of one file."""

    def __init__(self, deltas: DeltaReader) -> None:
        self._deltas = deltas
        self._config, self._targets, self._tensors = deltas.config, deltas.targets, deltas.tensors
        self._base = deltas.base
        self._is_tied = deltas.base.config.tied_embeddings
        self._found = {EMBEDDING: _Found(), HEAD: _Found()}

    def read(self) -> TokenChanges:
        """Return the changes. Raises AdapterError naming the field or the tensor."""
        self._read_whole()
        self._read_tokens()
        embedding, head = self._embedding_delta(), self._head_pair()
        self._check_both_deltas(embedding, head)
        embedding_rows, head_rows = self._changed_rows(EMBEDDING), self._changed_rows(HEAD)
        V = self._base.config.vocab_size
        if embedding is not None:
            embedding_rows.add_low_rank(embedding.a[V:], embedding.b, embedding.factor)
            embedding = EmbeddingDelta(embedding.a[:V], embedding.b, embedding.factor)
        head_delta = self._head_delta(head, head_rows)
        _check_added(embedding_rows, head_rows)
        if self._config.invocation_tokens and (embedding or len(embedding_rows) or len(head_rows)):
            raise refused(
                "alora_invocation_tokens",
                list(self._config.invocation_tokens),
                "the adapter also changes rows of embedding or head, of tokens before the invocation too: train with "
                "the linear modules of the layers alone",
            )
        return TokenChanges(embedding, head_delta, embedding_rows.finish(), head_rows.finish())

    # Whole matrices

    def _read_whole(self) -> None:
        saved = dict(self._targets.saved(self._found))
        direct = {module: self._direct(module, module in saved) for module in self._found}
        if self._is_tied:  # loading either of them writes to the matrix that they share
            _check_equal(*direct.values())
            shared = direct[EMBEDDING] or direct[HEAD]
            direct = {EMBEDDING: shared, HEAD: shared}
        for module, found in self._found.items():
            found.whole = self._saved(module) if module in saved else direct[module]
            if found.whole is not None:
                self._check_rows(found.whole)
        if self._targets.ties_saved:
            _check_equal(self._found[EMBEDDING].whole, self._found[HEAD].whole)

    def _saved(self, module: str) -> NamedTensor:
        """Return what modules_to_save put in the place of a matrix."""
        found = self._tensors.take(module, Part.WEIGHT)
        if found is None:
            raise _no_tensor("modules_to_save", module)
        _check_equal(found, self._tensors.take(module, Part.SAVED_WEIGHT))
        return found

    def _direct(self, module: str, is_saved: bool) -> NamedTensor | None:
        """Return the base model's own matrix as the file has it."""
        parts = (Part.BASE_WEIGHT, Part.ORIGINAL_WEIGHT, Part.TOKENS_BASE_WEIGHT, *(() if is_saved else (Part.WEIGHT,)))
        found = [tensor for tensor in (self._tensors.take(module, part) for part in parts) if tensor is not None]
        for other in found[1:]:
            _check_equal(found[0], other)
        return found[0] if found else None

    def _check_rows(self, whole: NamedTensor) -> None:
        V, D = self._base.config.vocab_size, self._base.config.hidden_size
        if whole.tensor.dim() != 2 or whole.tensor.shape[1] != D or len(whole.tensor) < V:
            raise AdapterError(
                f"tensor '{whole.name}' has shape {tuple(whole.tensor.shape)}, wanted is ({V} or more, {D}), that is "
                "(tokens, hidden)"
            )

    # Rows of single tokens

    def _read_tokens(self) -> None:
        ids = self._token_ids()
        is_shared = self._is_tied and EMBEDDING in ids and ids.get(HEAD, ids[EMBEDDING]) == ids[EMBEDDING]
        if self._targets.ties_embeddings and EMBEDDING in ids and not is_shared:
            raise self._refuse_tokens("with ensure_weight_tying both must name the same tokens")
        for module in (EMBEDDING, HEAD) if is_shared else ids:
            self._check_alone(module)
            found = self._found[module]
            found.token_ids = ids[EMBEDDING] if is_shared else ids[module]
            found.tokens = self._tensors.take(module, Part.TOKENS)
        if is_shared:
            _check_equal(self._found[EMBEDDING].tokens, self._found[HEAD].tokens)
            self._found[HEAD].tokens = self._found[EMBEDDING].tokens
        for module, found in self._found.items():
            if found.token_ids and found.tokens is None:
                raise _no_tensor("trainable_token_indices", module)
            if found.tokens is not None:
                found.tokens.check_shape((len(found.token_ids), self._base.config.hidden_size), "(tokens, hidden)")

    def _token_ids(self) -> dict[str, tuple[int, ...]]:
        ids: dict[str, tuple[int, ...]] = {}
        for name, own in self._config.trainable_tokens.items():
            module = next((module for module in self._found if name and module.endswith(name)), None)
            if module is None or module in ids:
                raise self._refuse_tokens("it must name embed_tokens or lm_head, and neither twice")
            ids[module] = own
        return ids

    def _check_alone(self, module: str) -> None:
        is_open = self._config.target_modules is None
        others = {
            "target_modules": None if is_open else self._targets.key_of_module(module),
            "target_parameters": self._targets.key_of_weight(module),
            "modules_to_save": dict(self._targets.saved([module])).get(module),
        }
        for field, named in others.items():
            if named is not None:
                raise self._refuse_tokens(f"{field} names '{module}' too: take it out of one of the two")

    def _refuse_tokens(self, advice: str) -> AdapterError:
        value = {module: list(ids) for module, ids in self._config.trainable_tokens.items()}
        return refused("trainable_token_indices", value, advice)

    # Low-rank deltas

    def _embedding_delta(self) -> EmbeddingDelta | None:
        """Return the embedding's delta, with a row of A for each token of the file."""
        key, parts = self._targets.key_of_module(EMBEDDING), (Part.EMBEDDING_A, Part.EMBEDDING_B)
        D, num_rows = self._base.config.hidden_size, self._num_rows(EMBEDDING)
        if key is None:  # its weight may be one of the target_parameters
            pair = self._deltas.pair(EMBEDDING, num_rows, D)
            return None if pair is None else EmbeddingDelta(pair.b.tensor, pair.a.tensor.T.contiguous(), pair.factor)
        if self._config.target_modules is None and not self._tensors.has_any(EMBEDDING, *parts):
            return None
        if self._config.use_dora:
            raise refused("use_dora", True, f"not with embed_tokens among the target modules: leave it out, or {MERGE}")
        a, b = self._deltas.halves(EMBEDDING, parts, "target_modules")
        rank = self._deltas.rank(key, a, 0)
        a.check_shape((rank, num_rows), "(rank, tokens)")
        b.check_shape((D, rank), "(hidden, rank)")
        return EmbeddingDelta(a.tensor.T.contiguous(), b.tensor, self._deltas.factor(key, b))

    def _head_pair(self) -> Pair | None:
        return self._deltas.pair(HEAD, self._num_rows(HEAD), self._base.config.hidden_size)

    def _head_delta(self, head: Pair | None, rows: ChangedRows) -> LoraDelta | None:
        """Return the head's delta on the base model's tokens; what it adds to added ones goes to `rows`."""
        if head is None:
            return None
        if head.magnitude is not None and len(rows):
            raise refused("use_dora", True, f"not together with other rows of the head: train without it, or {MERGE}")
        V = self._base.config.vocab_size
        if head.bias is not None and len(head.b.tensor) > V:
            raise refused("lora_bias", True, f"not together with added tokens: train without it, or {MERGE}")
        rows.add_low_rank(head.b.tensor[V:], head.a.tensor.T, head.factor)
        delta = self._deltas.delta(head, EMBEDDING if self._is_tied else HEAD)
        return LoraDelta(delta.a, delta.b[:V], delta.factor, delta.bias, delta.dora)

    def _check_both_deltas(self, embedding: EmbeddingDelta | None, head: Pair | None) -> None:
        if not self._targets.ties_deltas or embedding is None or head is None:
            return
        if not (torch.equal(embedding.a, head.b.tensor) and torch.equal(embedding.b.T, head.a.tensor)):
            raise AdapterError(
                f"ensure_weight_tying is true in {CONFIG_FILE}, but tensors '{head.a.name}' and '{head.b.name}' are "
                "not those of the embedding, transposed"
            )

    # What is left of it

    def _num_rows(self, module: str) -> int:
        whole = self._found[module].whole
        return self._base.config.vocab_size if whole is None else len(whole.tensor)

    def _changed_rows(self, module: str) -> ChangedRows:
        found, V = self._found[module], self._base.config.vocab_size
        rows = ChangedRows(V, self._base.config.hidden_size)
        if found.whole is not None or found.tokens is not None:
            base = self._base.tensors["model.embed_tokens.weight" if self._is_tied else f"{module}.weight"]
            if found.whole is not None:
                rows.replace_all(found.whole.tensor, base)
            if found.tokens is not None:
                rows.replace(torch.tensor(found.token_ids), found.tokens.tensor, base)
        return rows


def _check_equal(one: NamedTensor | None, other: NamedTensor | None) -> None:
    """Refuse two tensors that should be one and the same."""
    if one is not None and other is not None and not torch.equal(one.tensor, other.tensor):
        raise AdapterError(f"tensors '{one.name}' and '{other.name}' differ, but are the same matrix")


def _no_tensor(field: str, module: str) -> AdapterError:
    return AdapterError(f"{field} in {CONFIG_FILE} names '{module}', but {WEIGHTS_FILE} has no tensor for it")


def _check_added(embedding: ChangedRows, head: ChangedRows) -> None:
    """Refuse added tokens without a row in both: they could be read but not written, or would mean nothing."""
    for rows, where in ((embedding, "the embedding"), (head, "the head")):
        end = max(embedding.end, head.end)
        if (missing := rows.first_missing(end)) is not None:
            raise AdapterError(
                f"the adapter adds tokens up to {end - 1} to the base model's {rows.vocab_size}, but has no row of "
                f"token {missing} for {where}: save it with save_embedding_layers=True, so that all of them are there"
            )
